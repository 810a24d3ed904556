"""Two ranks over gloo on one machine: savings by gradient aggregation, and efficiency of weak scaling.

    python bench/bench_ddp.py [rounds]

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
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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
    sys.path.insert(0, str(ROOT))
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


def measure(rounds: int) -> dict[str, tuple[dict[str, list[float]], dict[str, list[float]]]]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rounds), "--rank"],
            env={**common, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE, text=True,
        ) for number in range(2)
    ]  # fmt: skip
    output = [process.communicate()[0] for process in ranks][0]
    lines = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
    return dict(lines)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    if "--rank" in sys.argv:
        rank(rounds)
        return 0
    print(f"{'model':<8} {'variant':<24} {'ms/batch':>9} {'best':>8} {'cpu':>8} {'efficiency':>11} {'of raw':>7}")
    for name, (times, cpu) in measure(rounds).items():
        medians = {variant: statistics.median(values) for variant, values in times.items()}
        for variant, median in medians.items():
            label = f"ours, aggregation {variant}" if variant.isdigit() else variant
            # Medians of ratios within a round: other load on the machine affects both sides of a ratio.
            efficiency = ratio(times, "single", variant) if "single" in times else None
            of_raw = ratio(times, "raw", variant) if "raw" in times and variant.isdigit() else None
            cells = [f"{value:.0%}" if value else "" for value in (efficiency, of_raw)]
            print(f"{name:<8} {label:<24} {median * 1e3:>9.2f} {min(times[variant]) * 1e3:>8.2f} "
                  f"{statistics.median(cpu[variant]) * 1e3:>8.2f} {cells[0]:>11} {cells[1]:>7}")  # fmt: skip
        if name in GOALS:
            verdict(f"{name}: efficiency with aggregation 8", ratio(times, "single", "8"), GOALS[name], above=True)
            verdict(f"{name}: throughput without aggregation, of raw DDP", ratio(times, "raw", "1"), 1.0, above=True)
        else:
            verdict(f"{name}: time per sample, aggregation 4 to 1", ratio(times, "4", "1"), 0.55, above=False)
    return 0


def ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def verdict(words: str, value: float, goal: float, *, above: bool) -> None:
    met = value >= goal if above else value <= goal
    print(f"    {words}: {value:.2f}, goal {'>=' if above else '<='} {goal:.2f}: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    raise SystemExit(main())
