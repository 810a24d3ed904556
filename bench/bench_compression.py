"""Step time by the options for the exchange of gradients, on networks from 10 Mbit/s to one without a limit.

Two hosts in network namespaces (requires root), one gloo rank on each. The variants alternate every two steps.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import FOLDER, LIMIT, OURS, Bench, Goal, Row
from testbed.netns import NamespaceHost, NamespaceHosts, missing

BLOCK, WARM_UP = 2, 4
#: Name of a row -> rate of the link to each host, and the share of the rounds that it gets.
NETWORKS = {
    "10 Mbit/s": ("10mbit", 0.4),
    "100 Mbit/s": ("100mbit", 1.0),
    "1 Gbit/s": ("1gbit", 2.0),
    "no limit": ("", 2.0),
}
#: Not with --quick: a step without an option takes 5 s there.
SLOWEST = "10 Mbit/s"
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "fp16": {"gradient_compression": "fp16"},
    "bf16": {"gradient_compression": "bf16"},
    "powersgd": {"gradient_compression": "powersgd"},
    "auto_tune": {"auto_tune_tensor_fusion": True},
}


def rank(rounds: int) -> None:
    import torch

    import airflow_provider_dtrain.train as dtrain
    from airflow_provider_dtrain.train.gradients import compression
    from airflow_provider_dtrain.train.gradients.bucket_tuning import CANDIDATES_MIB, MEASURED, SETTLE
    from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients

    compression.POWERSGD_START = 2  # instead of 1,000, because the exchange after the first steps is measured
    torch.set_num_threads(1)
    inputs = torch.randn(256, 512)

    def loop(options: dict[str, Any]) -> Callable[[], None]:
        gradients = Gradients(ctx.distributed, lambda: ctx.device, options)
        layers = itertools.chain.from_iterable((torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(5))
        model = gradients.wrap_model(torch.nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> None:
            gradients.backward(model(inputs).square().mean())
            gradients.step(optimizer)

        tuning = len(CANDIDATES_MIB) * (SETTLE + MEASURED) if "auto_tune_tensor_fusion" in options else 0
        for _ in range(WARM_UP + tuning):
            step()
        return step

    with dtrain.init() as ctx:
        loops = {name: loop(options) for name, options in VARIANTS.items()}
        times: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(rounds):
            for name, step in loops.items():
                ctx.distributed.barrier()
                begin = time.perf_counter()
                for _ in range(BLOCK):
                    step()
                ctx.distributed.barrier()
                times[name].append((time.perf_counter() - begin) / BLOCK)
        if ctx.distributed.get_rank() == 0:
            print("RESULT", json.dumps(times), flush=True)


def pair(hosts: NamespaceHosts, rounds: int) -> dict[str, list[float]]:
    common = {
        "OMP_NUM_THREADS": "1", "MASTER_ADDR": hosts.host(0).address, "MASTER_PORT": "29500", "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": str(FOLDER.parent),
    }  # fmt: skip

    def run(number: int, host: NamespaceHost) -> str:
        variables = [f"{name}={value}" for name, value in {**common, "RANK": str(number)}.items()]
        done = host.exec(
            ["env", *variables, sys.executable, "-m", "bench.bench_compression", str(rounds)], timeout_s=900
        )
        if done.returncode:
            raise RuntimeError(f"rank {number}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode()

    with ThreadPoolExecutor(2) as pool:
        output, _ = pool.map(run, range(2), hosts)
    found: dict[str, list[float]]
    (found,) = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
    return found


def measure(run: Run) -> None:
    with NamespaceHosts(count=2) as hosts:
        for name, (rate, share) in NETWORKS.items():
            if run.is_quick and name == SLOWEST:
                continue
            for host in hosts:
                host.throttle(rate)
            for variant, seconds in pair(hosts, max(2, round(run.rounds * share))).items():
                run.add(name, variant, *(1e3 * value for value in seconds))


_slow = functools.partial(Goal, at_most=0.6, of="none")
GOALS = {
    **{name: tuple(_slow(side=side) for side in ("fp16", "bf16", "powersgd")) for name in ("10 Mbit/s", "100 Mbit/s")},
    **{name: (Goal(side="auto_tune", at_most=1.05, of="none"),) for name in ("1 Gbit/s", "no limit")},
}
BENCH = Bench(
    what="1.3 M parameters in five layers, 2 ranks over gloo",
    rows=tuple(
        Row(
            name=name,
            what=f"A step at {name}" if rate else "A step without a limit",
            unit="ms",
            sides={variant: OURS if options else LIMIT for variant, options in VARIANTS.items()},
            base="none",
            goals=GOALS[name],
        )
        for name, (rate, _) in NETWORKS.items()
    ),
    measure=measure,
    rounds=(7, 2),
    missing=lambda: missing() if os.geteuid() == 0 else "network namespaces require root",
)


if __name__ == "__main__":
    rank(int(sys.argv[1]))
