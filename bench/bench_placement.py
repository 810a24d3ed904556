"""Time to place one request on 1,000 hosts with 8 slots. The goal is below 1 ms.

Run: ``python bench/bench_placement.py``. It prints a table, and exits with 1 when a granted request misses the goal.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions
from airflow_provider_dtrain.core.scheduling.placement import place

HOSTS = 1000
GOAL_MS = 1.0
REPEATS = 200


def cluster(held: Callable[[int], int], sizes: tuple[int, ...] = (8,)) -> list[Host]:
    return [
        Host(f"gpu-{number:04}", sizes[number % len(sizes)], frozenset(range(held(number)))) for number in range(HOSTS)
    ]


def measure(call: Callable[[int], object], repeats: int = REPEATS) -> tuple[float, float, object]:
    """Return the shortest and the median time in milliseconds, and the last answer."""
    times, answer = [], None
    for number in range(repeats):
        begin = time.perf_counter()
        answer = call(number)
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times), statistics.median(times), answer


def one_request(pool: str, hosts: list[Host], slots: int, *, unequal: bool) -> bool:
    """Print one row, and return whether the goal was met."""
    requests = [GangRequest(f"r{number}", slots) for number in range(REPEATS)]
    best, median, answer = measure(lambda n: place(requests[n], hosts, allow_heterogeneous=unequal))
    says = "granted" if isinstance(answer, Placement) else "never" if answer.never else "waits"
    print(f"{pool:<15}{slots:>6}{best:>10.3f}{median:>11.3f}  {says}")
    return median < GOAL_MS or says != "granted"


def one_pass(pool: str, hosts: list[Host], waiting: int = 10_000) -> None:
    queue = [GangRequest(str(n), (1, 2, 4, 8, 16, 64)[n % 6], sequence=n) for n in range(waiting)]
    best, median, decision = measure(lambda _: run_pass(hosts, queue, PoolOptions()), repeats=5)
    print(f"pass over {waiting:,} requests, {pool}: {best:.0f} / {median:.0f} ms, {len(decision.grants)} granted")


def main() -> int:
    pools = {
        "all free": cluster(lambda _: 0),
        "partly held": cluster(lambda number: number % 9),
        "all held": cluster(lambda _: 8),
        "8, 8, 4 and 2": cluster(lambda _: 0, (8, 8, 4, 2)),
    }
    print(f"one request on {HOSTS} hosts, shortest and median of {REPEATS}; goal: median < {GOAL_MS} ms when granted")
    print(f"{'pool':<15}{'slots':>6}{'best ms':>10}{'median ms':>11}  answer")
    met = [
        one_request(pool, hosts, slots, unequal=pool.startswith("8"))
        for pool, hosts in pools.items()
        for slots in (0, 1, 4, 8, 16, 64, 510, 9002)
    ]
    for pool in ("all held", "all free"):
        one_pass(pool, pools[pool])
    print(f"goal met in {sum(met)} of {len(met)} rows")
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
