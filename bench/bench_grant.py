"""Cost of a grant in the store: 4 hosts x 8 slots out of 64 hosts x 8, alone and under contention.

PostgreSQL is measured if its server programs are installed, with fsync on as in production. Contention: 1 process, 8
processes with enough slots for all, and 200 threads of one process that wait for the slots of 16 gangs, as in a
triggerer, each beside bare transactions (see ``grant_contention``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from bench import grant_contention
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row
from bench.grant_contention import CASES, GANG
from testbed.stores import Server, host, server_programs

HOSTS, SLOTS = 64, 8
STEPS = ("submit", "pass (grant)", "pass (unchanged)", "take_up", "commit_events", "renew", "release x4", "end")


def steps(store: Store, rounds: int) -> dict[str, list[float]]:
    config = store.configs.put({}, origins={}).config_id
    took: dict[str, list[float]] = {step: [] for step in STEPS}
    store.queue.schedule("gpus")
    held: list[tuple[int, int]] = []
    for number in range(rounds):
        # Up to 15 of 16 gangs are held, so that a grant searches among many occupied hosts.
        if len(held) == 15:
            finish(store, took, *held.pop(0))
        held.append(one_grant(store, took, config, number))
    return took


def one_grant(store: Store, took: dict[str, list[float]], config: int, number: int) -> tuple[int, int]:
    key = TrialKey(dag_id="d", run_id="r", task_id="t", map_index=number)
    submission = TrialSubmission(
        key=key, experiment_name=f"e{number // 50}", config_id=config, pool="gpus", slots=GANG, number=number
    )
    ticket = timed(took["submit"], lambda: store.trials.submit(submission))
    watch = store.attempts.watch(ticket.attempt_id, watcher="bench")
    result = timed(took["pass (grant)"], lambda: store.queue.schedule("gpus"))
    assert result.granted == (ticket.allocation_id,)
    timed(took["pass (unchanged)"], lambda: store.queue.schedule("gpus"))
    assert timed(took["take_up"], lambda: store.queue.take_up(ticket.attempt_id, watch))
    events = [{"seq": n, "at": 1.0, "kind": "report", "step": n, "metrics": {"loss": 0.5}} for n in range(10)]
    name = "rank0.events"
    timed(took["commit_events"], lambda: store.events.commit(ticket.attempt_id, watch, "h00", name, 0, 999, events))
    timed(took["renew"], lambda: store.attempts.renew({ticket.attempt_id: watch}))
    return ticket.attempt_id, watch


def finish(store: Store, took: dict[str, list[float]], attempt: int, watch: int) -> None:
    hosts = store.attempts.get(attempt).held_hosts
    timed(took["release x4"], lambda: store.queue.release(attempt, watch, hosts, proof="clear"))
    timed(took["end"], lambda: store.attempts.end(attempt, watch, state="completed"))


def timed(into: list[float], action: Callable[[], object]) -> object:
    begin = time.perf_counter()
    result = action()
    into.append(time.perf_counter() - begin)
    return result


def fresh(url: str) -> tuple[str, int]:
    """Create a store with all hosts, and return its URL and the id of its only configuration."""
    migrate(url)
    store = Store.open(url)
    for number in range(HOSTS):
        store.hosts.add(host(f"h{number:02d}", SLOTS))
    config = store.configs.put({}, origins={}).config_id
    store.close()
    return url, config


def measure(run: Run) -> None:
    numbers = count()
    with ExitStack() as stack:
        urls: dict[str, Callable[[], str]] = {SQLITE: lambda: f"sqlite:///{run.folder}/{next(numbers)}.db"}
        programs = server_programs()
        if programs is None:
            run.note("PostgreSQL is not measured, because its server programs (initdb, pg_ctl) are not installed.")
        else:
            server = Server(programs)
            stack.callback(server.stop)
            server.start(fsync=True)
            urls[POSTGRESQL] = server.new_database
        for name, new_url in urls.items():
            store = Store.open(fresh(new_url())[0])
            for step, values in steps(store, run.size(200, 20)).items():
                run.add(f"steps, {name}", step, *(1e3 * value for value in values))
            store.close()
            for case in CASES:
                grant_contention.measure(run, name, case, lambda new_url=new_url: fresh(new_url()), run.size(5.0, 1.0))


SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"
RATES = {"ours": OURS, "bare transactions": LIMIT}
BENCH = Bench(
    what="A durable grant of 32 slots",
    rows=tuple(
        row
        for name in (SQLITE, POSTGRESQL)
        for row in (
            Row(name=f"steps, {name}", what="Each step alone", unit="ms", sides=dict.fromkeys(STEPS, OURS)),
            *(
                Row(
                    name=f"{case}, {name}",
                    what="Grants per second",
                    unit="grants/s",
                    sides=RATES,
                    base="bare transactions",
                    goals=(Goal(side="ours", at_least=1 / 3, of="bare transactions"),),
                )
                for case in CASES
            ),
            *(
                Row(
                    name=f"wait of {case}, {name}",
                    what="From the request to the grant",
                    unit="ms",
                    sides=RATES,
                    base="bare transactions",
                )
                for case in CASES
            ),
        )
    ),
    measure=measure,
    rounds=(3, 1),
)
