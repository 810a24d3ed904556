"""Places of user code that take the local rank for the number of a device."""

from __future__ import annotations

import textwrap

import pytest

from airflow_provider_dtrain.engine.attempt.device_numbers import frameworks_with_local_rank, uses_of_local_rank
from tests.support.supervisor_host import archive

RIGHT_UNDER_TORCHRUN = [
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    'local_rank = int(os.environ.get("LOCAL_RANK", 0))\nmodel.cuda(local_rank)',
    'rank = int(os.getenv("LOCAL_RANK"))\ndevice = torch.device(f"cuda:{rank}")\nmodel.to(device)',
    'n = os.environ["LOCAL_RANK"]\ndevice = "cuda:" + n\nmodel = model.to(device)',
    'torch.device("cuda:%d" % args.local_rank)',
    'torch.device("cuda:{}".format(self.local_rank))',
    "model = DDP(model, device_ids=[local_rank])",
    "torch.cuda.set_device(dist.get_node_local_rank())",
    'dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
]
NO_NUMBER_OF_A_DEVICE = [
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())',
    'if int(os.environ["LOCAL_RANK"]) == 0:\n    model.to("cuda")',
    "sampler = Sampler(data, rank=local_rank)\nbatch = next(iter(sampler))\nbatch.to(device)",
    'device = "cuda:0" if local_rank == 0 else "cpu"\nmodel.to(device)',
    'print("LOCAL_RANK", local_rank)',
    'parser.add_argument("--local-rank", type=int)',
    "torch.cuda.set_device(0)  # not LOCAL_RANK",
    "def broken(:\n local_rank",
]


@pytest.mark.parametrize("source", RIGHT_UNDER_TORCHRUN)
def test_the_line_that_takes_the_local_rank_for_a_device_is_named(source: str) -> None:
    found = uses_of_local_rank(archive({"sub/train.py": source}))
    assert found
    assert all(place.startswith("sub/train.py:") for place in found)


@pytest.mark.parametrize("source", NO_NUMBER_OF_A_DEVICE)
def test_other_uses_of_the_local_rank_are_not_named(source: str) -> None:
    assert uses_of_local_rank(archive({"train.py": source})) == ()


def test_each_line_is_named_once_with_its_number() -> None:
    source = textwrap.dedent(
        """
        import os, torch
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
        model = DDP(model.cuda(local_rank), device_ids=[local_rank])
        """
    )
    assert uses_of_local_rank(archive({"a.py": source, "b.py": ""})) == ("a.py:4", "a.py:5")


def test_frameworks_that_take_the_local_rank_for_a_device_are_named() -> None:
    files = {
        "a.py": "from transformers import Trainer",
        "b.py": "import lightning.pytorch as pl\nfrom . import accelerate",
    }
    assert frameworks_with_local_rank(archive(files)) == ("lightning", "transformers")
