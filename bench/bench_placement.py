"""Time to place one request on 1,000 hosts with 8 slots, and of a pass over 10,000 requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions
from airflow_provider_dtrain.core.scheduling.placement import place
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row

HOSTS = 1000
SLOTS = (1, 8, 64, 510, 9002)


def cluster(held: Callable[[int], int], sizes: tuple[int, ...] = (8,)) -> list[Host]:
    return [
        Host(f"gpu-{number:04}", sizes[number % len(sizes)], frozenset(range(held(number)))) for number in range(HOSTS)
    ]


def ms(call: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def measure(run: Run) -> None:
    pools = {
        "all free": cluster(lambda _: 0),
        "partly held": cluster(lambda number: number % 9),
        "all held": cluster(lambda _: 8),
        "8, 8, 4 and 2": cluster(lambda _: 0, (8, 8, 4, 2)),
    }
    for pool, hosts in pools.items():
        unequal = pool.startswith("8")
        for number in range(run.rounds):
            for slots in SLOTS:
                request = GangRequest(f"r{number}", slots)
                answer = place(request, hosts, allow_heterogeneous=unequal)
                side = "granted" if isinstance(answer, Placement) else "waits"
                took = ms(
                    lambda request=request, hosts=hosts, unequal=unequal: place(
                        request, hosts, allow_heterogeneous=unequal
                    )
                )
                run.add(pool, side, took)
    queue = [GangRequest(str(n), (1, 2, 4, 8, 16, 64)[n % 6], sequence=n) for n in range(10_000)]
    for pool in ("all held", "all free"):
        for _ in range(5):
            run.add("pass", pool, ms(lambda pool=pool: run_pass(pools[pool], queue, PoolOptions())))


BENCH = Bench(
    what="One request on 1,000 hosts of 8 slots",
    rows=(
        *(
            Row(
                name=pool,
                what="Requests of 1 to 9,002 slots",
                unit="ms",
                sides={"granted": OURS, "waits": OURS},
                goals=(Goal(side="granted", at_most=1),),
            )
            for pool in ("all free", "partly held", "all held", "8, 8, 4 and 2")
        ),
        Row(
            name="pass",
            what="A stateless pass over 10,000 requests",
            unit="ms",
            sides={"all held": OURS, "all free": OURS},
        ),
    ),
    measure=measure,
    rounds=(200, 20),
)
