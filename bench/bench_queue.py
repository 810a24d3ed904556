"""Time of one pass over the queue, by the number of hosts and of waiting requests. All times are CPU times.

A pass that grants nothing, a pass after one gang has ended, and a stateless pass as the store runs it. An exponent of 1
means that the time grows with the number of requests, 0 that it does not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from airflow_provider_dtrain.core.scheduling.cycle import step
from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState
from bench.framework.measuring import Run
from bench.framework.rows import OURS as BY_US
from bench.framework.rows import Bench, Goal
from bench.framework.rows import Row as TableRow

SIZES = (1, 2, 4, 8, 16, 64)
OPTIONS = PoolOptions(preemption="slices")
NOTHING, RELEASE, STATELESS = "grants nothing", "after a release", "stateless"


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


def times_of(hosts: int, requests: int) -> dict[str, float]:
    """Return the CPU milliseconds of each kind of pass."""
    machines, running, queue = pool(hosts, requests)
    begin = time.process_time()
    run_pass(machines, queue, OPTIONS, running)
    stateless = (time.process_time() - begin) * 1e3
    state = PoolState(machines, OPTIONS, running)
    for request in queue:
        state.submit(request)
    step(state, 0.0)
    nothing = median_ms(lambda n: step(state, 0.001 * n), 31)

    def release(number: int) -> None:
        state.end(running[number].request_id)
        step(state, 0.1 + 0.001 * number)

    return {NOTHING: nothing, RELEASE: median_ms(release, min(31, hosts)), STATELESS: stateless}


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


def exponent(times: dict[int, float]) -> float:
    """Return e of the best fit of time = c * requests ** e."""
    points = [(math.log(requests), math.log(max(took, 1e-4))) for requests, took in times.items()]
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def measure(run: Run) -> None:
    scales = run.size((10, 100, 1000, 10_000), (10, 100, 1000))
    for _ in range(run.rounds):
        for hosts in scales:
            table = {requests: times_of(hosts, requests) for requests in scales}
            for kind in KINDS:
                run.add(f"growth, {hosts:,} hosts", kind, exponent({n: found[kind] for n, found in table.items()}))
            if hosts == 1000:
                for kind, took in table[scales[-1]].items():
                    run.add("pass", kind, took)
        run.add("drain", "ours", drain(1000, run.size(100_000, 5000)))
    run.note(f"The pass has {scales[-1]:,} requests on 1,000 hosts.")


KINDS = {NOTHING: BY_US, RELEASE: BY_US, STATELESS: BY_US}
BENCH = Bench(
    what="Passes over a queue",
    rows=(
        TableRow(
            name="pass",
            what="One pass on 1,000 hosts",
            unit="ms of CPU",
            sides=KINDS,
            goals=(Goal(side=NOTHING, at_most=5), Goal(side=RELEASE, at_most=50)),
        ),
        *(
            TableRow(name=f"growth, {hosts:,} hosts", what="Growth with requests", unit="exponent", sides=KINDS)
            for hosts in (10, 100, 1000, 10_000)
        ),
        TableRow(
            name="drain",
            what="Grants while a queue is drained on 1,000 hosts",
            unit="grants/s of CPU",
            sides={"ours": BY_US},
            goals=(Goal(side="ours", at_least=2000),),
        ),
    ),
    measure=measure,
    rounds=(3, 1),
)
