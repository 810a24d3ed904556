"""Pages of the seeded site, and the texts that each of them shows."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.seed.small import HOSTILE_METRIC, HOSTILE_NAME


@dataclass(frozen=True)
class Facts:
    """A page and what it shows.

    :param path: address below the server's
    :param texts: each is visible on the page
    """

    name: str
    path: str
    texts: tuple[str, ...]


PAGES = (
    Facts("experiments", "/plugin/dtrain/experiments", (
        "14 experiments", "cifar10-asha", "resnet-asha", "imagenet-resnet50", HOSTILE_NAME, HOSTILE_METRIC,
        "6 completed", "6 paused", "4 killed",
    )),
    Facts("cluster", "/plugin/dtrain/cluster", (
        "10 hosts", "a100-01", "replace the fan of GPU 3", "driver update", "reserved for the course on Friday",
        "unreachable", "NVIDIA H100 80GB HBM3", "of 40 GPUs in use", "of 8 CPU slots in use",
    )),
    Facts("queue", "/plugin/dtrain/queue", (
        "bert-distill", "llama-pretrain", "gpt2-finetune", "Held gang, no trial now",
        "24 slots can never be granted", "it is paused by bob",
    )),
)  # fmt: skip
