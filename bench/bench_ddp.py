"""Two ranks over gloo on one machine: savings by gradient aggregation, and efficiency of weak scaling.

Both ranks alternate between the variants in blocks of 16 batches, each rank with one thread. Efficiency is weak
scaling: the throughput of two ranks over twice that of one process (`single`) while the other rank is idle. `cpu` is
rank 0's CPU time per batch, which is least sensitive to other load. The 10 M model is measured with 8 samples per batch
and with 1: the less computation, the more aggregation saves. `apart` is two processes without communication, the upper
bound for two cores of this machine. `ours` is the path of ctx.backward and ctx.step; `raw` is DistributedDataParallel
with a plain loop.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row

BLOCK = 16
#: Name -> layer sizes, batch per rank. With these, raw DDP reaches an efficiency of about 3/5 and 1/2 when idle.
MODELS = {
    "1.3 M": ((512, 1024, 768, 10), 160),
    "4.7 M": ((512, 2048, 1760, 10), 64),
    "10 M": ((1024, 2560, 2560, 320), 8),
    "10 M, 1": ((1024, 2560, 2560, 320), 1),
}
VARIANTS = {
    "1.3 M": ("single", "apart", "raw", 1, 8),
    "4.7 M": ("single", "apart", "raw", 1, 8),
    "10 M": ("raw", 1, 4),
    "10 M, 1": ("raw", 1, 4),
}
#: Efficiency with aggregation.
GOALS = {"1.3 M": 0.95, "4.7 M": 0.80}


def network(sizes: Sequence[int]) -> Any:
    import torch

    torch.manual_seed(0)
    layers: list[Any] = []
    for inner, outer in zip(sizes, sizes[1:], strict=False):
        layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def loop(variant: str | int, sizes: Sequence[int], batch: int, distributed: Any) -> Callable[[], None]:
    """Return a function that trains on one batch."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients

    model, inputs = network(sizes), torch.randn(batch, sizes[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.randint(0, sizes[-1], (batch,))
    loss_of = torch.nn.functional.cross_entropy
    if isinstance(variant, int):
        gradients = Gradients(distributed, lambda: torch.device("cpu"), {"aggregation_frequency": variant})
        wrapped = gradients.wrap_model(model)

        def ours() -> None:
            gradients.backward(loss_of(wrapped(inputs), labels))
            gradients.step(optimizer)

        return ours
    wrapped = DistributedDataParallel(model) if variant == "raw" else model

    def bare() -> None:
        loss_of(wrapped(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return bare


def rank(rounds: int) -> None:
    """Measure as one of the two ranks. Rank 0 prints seconds per batch."""
    import torch

    import airflow_provider_dtrain.train as dtrain

    torch.set_num_threads(1)
    with dtrain.init() as ctx:
        me = ctx.distributed.get_rank()
        for name, (sizes, batch) in MODELS.items():
            loops = {variant: loop(variant, sizes, batch, ctx.distributed) for variant in VARIANTS[name]}
            times: dict[str, list[float]] = {str(variant): [] for variant in loops}
            cpu: dict[str, list[float]] = {str(variant): [] for variant in loops}
            for number in range(rounds + 1):
                for variant, one_batch in loops.items():
                    ctx.distributed.barrier()
                    begin, burnt = time.perf_counter(), time.process_time()
                    for _ in range(BLOCK if me == 0 or variant != "single" else 0):
                        one_batch()
                    ctx.distributed.barrier()
                    if number:  # the first round is a warm-up
                        times[str(variant)].append((time.perf_counter() - begin) / BLOCK)
                        cpu[str(variant)].append((time.process_time() - burnt) / BLOCK)
            if me == 0:
                print("RESULT", json.dumps([name, [times, cpu]]), flush=True)


def pair(rounds: int) -> dict[str, tuple[dict[str, list[float]], dict[str, list[float]]]]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.bench_ddp", str(rounds)],
            env={**common, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE, text=True,
        ) for number in range(2)
    ]  # fmt: skip
    output = [process.communicate()[0] for process in ranks][0]
    lines = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
    return dict(lines)


def measure(run: Run) -> None:
    for name, measured in pair(run.rounds).items():
        for row, values in zip((name, f"{name}, CPU"), measured, strict=True):
            for variant, seconds in values.items():
                run.add(row, _side(variant), *(1e3 * value for value in seconds))


def _side(variant: str) -> str:
    return f"ours, aggregation {variant}" if variant.isdigit() else variant


def _goals(name: str) -> tuple[Goal, ...]:
    if name not in GOALS:
        return (Goal(side="ours, aggregation 4", at_most=0.55, of="ours, aggregation 1"),)
    # An efficiency of 0.95 is 1 / 0.95 of the time of one process.
    return (
        Goal(side="ours, aggregation 8", at_most=1 / GOALS[name], of="single"),
        Goal(side="ours, aggregation 1", at_most=1.0, of="raw"),
    )


KINDS = {"single": LIMIT, "apart": LIMIT, "raw": PEER}
BENCH = Bench(
    what="Two ranks over gloo on this machine: a batch by DDP and by ctx.backward and ctx.step",
    rows=tuple(
        Row(
            name=name + suffix,
            what=what,
            unit=unit,
            sides={_side(str(variant)): KINDS.get(str(variant), OURS) for variant in variants},
            base="raw",
            goals=() if suffix else _goals(name),
        )
        for name, variants in VARIANTS.items()
        for suffix, what, unit in (
            ("", "Wall clock per batch", "ms"),
            (", CPU", "CPU of rank 0 per batch", "ms of CPU"),
        )
    ),
    measure=measure,
    rounds=(9, 3),
)


if __name__ == "__main__":
    rank(int(sys.argv[1]))
