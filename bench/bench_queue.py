"""Time of one pass over the queue, by the number of hosts and of waiting requests.

Run: ``python bench/bench_queue.py`` (``--quick`` skips the largest sizes). For each number of hosts and requests it
prints the time of a pass that grants nothing, of a pass after one gang has ended, and of a stateless pass as the store
runs it. Then it prints how these times grow with the number of requests, and the grants per second while a queue is
drained. All times are CPU time. It exits with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.cycle import step
from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState

SIZES = (1, 2, 4, 8, 16, 64)
OPTIONS = PoolOptions(preemption="slices")
#: At 1,000 hosts and 10,000 requests.
NOTHING_MS, RELEASE_MS, GRANTS_PER_S = 5.0, 50.0, 2000.0


@dataclass(frozen=True)
class Row:
    hosts: int
    requests: int
    nothing_ms: float
    release_ms: float
    facade_ms: float


def full_pool(hosts: int) -> list[RunningGang]:
    """Return gangs of four slots that fill the pool and are not preemptible yet."""
    return [
        RunningGang(
            request_id=f"run-{host}-{half}", placement=Placement({f"h{host:05}": tuple(range(half * 4, half * 4 + 4))}),
            owner=f"trial {host}", sequence=-1, group=f"g{host % 20}", held_s=600.0, ran_s=600.0, is_preemptible=True,
        )
        for host in range(hosts)
        for half in (0, 1)
    ]  # fmt: skip


def requests_of(number: int) -> list[GangRequest]:
    return [
        GangRequest(f"r{n}", SIZES[n % 6], sequence=n, group=f"g{n % 50}", held_s=(n % 3) * 5 * 3600.0)
        for n in range(number)
    ]


def pool(hosts: int, requests: int) -> tuple[list[Host], list[RunningGang], list[GangRequest]]:
    machines = [Host(f"h{number:05}", 8, frozenset(range(8))) for number in range(hosts)]
    return machines, full_pool(hosts), requests_of(requests)


def median_ms(call: Callable[[int], object], repeats: int) -> float:
    times = []
    for number in range(repeats):
        begin = time.process_time()
        call(number)
        times.append((time.process_time() - begin) * 1e3)
    return statistics.median(times)


def measure(hosts: int, requests: int) -> Row:
    machines, running, queue = pool(hosts, requests)
    begin = time.process_time()
    run_pass(machines, queue, OPTIONS, running)
    facade_ms = (time.process_time() - begin) * 1e3
    state = PoolState(machines, OPTIONS, running)
    for request in queue:
        state.submit(request)
    step(state, 0.0)
    nothing = median_ms(lambda n: step(state, 0.001 * n), 31)

    def release(number: int) -> None:
        state.end(running[number].request_id)
        step(state, 0.1 + 0.001 * number)

    return Row(hosts, requests, nothing, median_ms(release, min(31, hosts)), facade_ms)


def drain(hosts: int, requests: int) -> float:
    """Return grants per second while every gang ends in turn, until no request waits."""
    machines = [Host(f"h{number:05}", 8) for number in range(hosts)]
    begin, now, granted = time.process_time(), 0.0, 0
    state = PoolState(machines, PoolOptions())
    for request in requests_of(requests):
        state.submit(request)
    while state.waiting:
        now += 1.0
        grants = step(state, now).grants
        granted += len(grants)
        for request_id, _ in grants:
            state.end(request_id)
    return granted / (time.process_time() - begin)


def exponent(rows: list[Row], of: Callable[[Row], float]) -> float:
    """Return e of the best fit of time = c * requests ** e."""
    points = [(math.log(row.requests), math.log(max(of(row), 1e-4))) for row in rows]
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 hosts and requests")
    scales = (10, 100, 1000) if parser.parse_args().quick else (10, 100, 1000, 10_000)
    print(f"{'hosts':>7}{'requests':>10}{'nothing ms':>12}{'release ms':>12}{'run_pass ms':>13}")
    table = []
    for hosts in scales:
        for requests in scales:
            row = measure(hosts, requests)
            table.append(row)
            print(f"{hosts:>7}{requests:>10}{row.nothing_ms:>12.3f}{row.release_ms:>12.3f}{row.facade_ms:>13.1f}")
    for hosts in scales:
        rows = [row for row in table if row.hosts == hosts]
        parts = [f"{exponent(rows, of):.2f}" for of in (_nothing, _release, _facade)]
        print(
            f"{hosts} hosts: time grows with requests to the power of {', '.join(parts)} (nothing, release, run_pass)"
        )
    rate = drain(1000, 10 * scales[-1])
    print(f"{10 * scales[-1]:,} requests drained on 1,000 hosts: {rate:,.0f} grants/s; goal {GRANTS_PER_S:,.0f}")
    goal = next((row for row in table if (row.hosts, row.requests) == (1000, 10_000)), table[-1])
    is_met = goal.nothing_ms < NOTHING_MS and goal.release_ms < RELEASE_MS and rate > GRANTS_PER_S
    print(
        f"goals at {goal.hosts} hosts, {goal.requests} requests: {NOTHING_MS} ms, {RELEASE_MS} ms: "
        + ("met" if is_met else "missed")
    )
    return int(not is_met)


def _nothing(row: Row) -> float:
    return row.nothing_ms


def _release(row: Row) -> float:
    return row.release_ms


def _facade(row: Row) -> float:
    return row.facade_ms


if __name__ == "__main__":
    sys.exit(main())
