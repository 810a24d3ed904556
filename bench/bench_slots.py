"""Samples per second by the number of slots, the batch size, the size of the model and the network between the ranks.

Two hosts in network namespaces (requires root), 1 Gbit/s each, one thread per rank. Every round starts all
variants one after another.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.framework.measuring import Run
from bench.framework.rows import FOLDER, LIMIT, OURS, Bench, Row
from testbed.netns import NamespaceHost, NamespaceHosts, missing

RATE, WARM_UP, STEPS = "1gbit", 4, 12


@dataclass(frozen=True)
class Variant:
    """One training.

    :param hosts: host of each rank, by its number
    :param batch: samples of each rank per step
    :param width: of the five layers of the model, in units
    """

    hosts: tuple[int, ...]
    batch: int
    width: int = 512
    aggregation: int = 1


ONE, SAME_HOST, TWO_HOSTS = (0,), (0, 0), (0, 1)
ROWS: dict[str, tuple[str, dict[str, Variant]]] = {
    "batch": (
        "Samples per second, 1.3 M parameters, two hosts",
        {
            "one slot, batch 256": Variant(ONE, 256),
            "two slots, batch 256": Variant(TWO_HOSTS, 128),
            "two slots, batch 512": Variant(TWO_HOSTS, 256),
            "two slots, 4 x 512": Variant(TWO_HOSTS, 256, aggregation=4),
        },
    ),
    **{
        f"{text} parameters": (
            f"Samples per second, {text} parameters, batch 128 per slot",
            {
                "one slot": Variant(ONE, 128, width),
                "two hosts": Variant(TWO_HOSTS, 128, width),
                "one host": Variant(SAME_HOST, 128, width),
            },
        )
        for text, width in (("0.08 M", 128), ("1.3 M", 512), ("5.2 M", 1024))
    },
}


def rank(batch: int, width: int, aggregation: int) -> None:
    import torch

    import airflow_provider_dtrain.train as dtrain

    torch.set_num_threads(1)
    inputs = torch.randn(batch, width)
    with dtrain.init(config={"optimizations": {"aggregation_frequency": aggregation}}) as ctx:
        layers = [part for _ in range(5) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        model = torch.nn.Sequential(*layers)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))

        def steps(count: int) -> None:
            for _ in range(count):
                ctx.backward(model(inputs).square().mean())
                ctx.step(optimizer)

        steps(WARM_UP)
        ctx.distributed.barrier()
        begin = time.perf_counter()
        steps(STEPS)
        ctx.distributed.barrier()
        if ctx.distributed.get_rank() == 0:
            seconds = time.perf_counter() - begin
            print("RATE", batch * STEPS * ctx.distributed.get_size() / seconds, flush=True)


def rate(hosts: NamespaceHosts, variant: Variant) -> float:
    """Return samples per second of all ranks together."""
    size = len(variant.hosts)
    common = {
        "OMP_NUM_THREADS": "1", "MASTER_ADDR": hosts.host(0).address, "MASTER_PORT": "29500", "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": str(FOLDER.parent),
    }  # fmt: skip
    arguments = json.dumps([variant.batch, variant.width, variant.aggregation])

    def run(number: int, host: NamespaceHost) -> str:
        variables = [f"{name}={value}" for name, value in {**common, "RANK": str(number)}.items()]
        argv = ["env", *variables, sys.executable, "-m", "bench.bench_slots", arguments]
        done = host.exec(argv, timeout_s=300)
        if done.returncode:
            raise RuntimeError(f"rank {number}: {done.stderr.decode()[-2000:]}")
        return done.stdout.decode()

    with ThreadPoolExecutor(size) as pool:
        output = next(iter(list(pool.map(run, range(size), [hosts.host(index) for index in variant.hosts]))))
    (found,) = [float(line.split()[1]) for line in output.splitlines() if line.startswith("RATE ")]
    return found


def measure(run: Run) -> None:
    with NamespaceHosts(count=2) as hosts:
        for host in hosts:
            host.throttle(RATE)
        for row, (_, variants) in ROWS.items():
            run.turns({name: functools.partial(rate, hosts, variant) for name, variant in variants.items()}, row)


BENCH = Bench(
    what=f"five equal layers, gloo, {RATE} between two hosts",
    rows=tuple(
        Row(
            name=name,
            what=what,
            unit="1/s",
            sides={side: LIMIT if number == 0 else OURS for number, side in enumerate(variants)},
            base=next(iter(variants)),
        )
        for name, (what, variants) in ROWS.items()
    ),
    measure=measure,
    rounds=(5, 1),
    missing=lambda: missing() if os.geteuid() == 0 else "network namespaces require root",
)


if __name__ == "__main__":
    rank(*json.loads(sys.argv[1]))
