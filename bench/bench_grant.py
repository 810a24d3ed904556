"""Cost of a grant in the store: 4 hosts x 8 slots out of 64 hosts x 8.

Usage: ``python -m bench.bench_grant [--rounds 200] [--seconds 5]``. PostgreSQL is measured if its server
programs are installed (the contract tests search for them in the same way), with fsync on as in production.

Two tables per database. The first has each step alone. The second has grants per second of 1 process, of 8 contending
processes with enough slots for all, and of 200 threads of one process that wait for the slots of 16 gangs, as in a
triggerer, each compared with the rate of bare transactions (see ``grant_contention``).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from bench import grant_contention
from bench.grant_contention import GANG
from testbed.stores import Server, host, server_programs

HOSTS, SLOTS = 64, 8
STEPS = ("submit", "pass (grant)", "pass (unchanged)", "take_up", "commit_events", "renew", "release x4", "end")


def measure(store: Store, rounds: int) -> dict[str, list[float]]:
    for number in range(HOSTS):
        store.hosts.add(host(f"h{number:02d}", SLOTS))
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


def show(name: str, took: dict[str, list[float]]) -> None:
    print(f"\n{name}\n  {'':18} {'p50 ms':>10} {'p99 ms':>10} {'n':>6}")
    for step, values in took.items():
        p99 = statistics.quantiles(values, n=100)[98]
        print(f"  {step:18} {statistics.median(values) * 1e3:10.2f} {p99 * 1e3:10.2f} {len(values):6}")


def without_pool(url: str, rounds: int) -> None:
    """Print the cost of one connection per transaction on SQLite."""
    store = Store.open(url)
    pooled, single = store.db.engine, sa.create_engine(url, poolclass=NullPool)
    for name, engine in (("kept connection", pooled), ("a connection each time", single)):
        values: list[float] = []
        for _ in range(rounds):
            timed(values, lambda engine=engine: read(engine))
        print(f"  {name:24} {statistics.median(values) * 1e3:10.3f} ms per read")
    store.close()


def read(engine: sa.Engine) -> object:
    with engine.connect() as connection:
        return connection.scalar(sa.text("SELECT version FROM pools"))


def fresh(url: str) -> tuple[str, int]:
    """Create a store with all hosts, and return its URL and the id of its only configuration."""
    migrate(url)
    store = Store.open(url)
    for number in range(HOSTS):
        store.hosts.add(host(f"h{number:02d}", SLOTS))
    config = store.configs.put({}, origins={}).config_id
    store.close()
    return url, config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--contention", action="store_true", help="print only the tables under contention")
    arguments = parser.parse_args()
    rounds, seconds, alone = arguments.rounds, arguments.seconds, not arguments.contention
    numbers = count()
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        if alone:
            show_steps("SQLite (WAL, synchronous=FULL)", f"sqlite:///{Path(folder)}/s.db", rounds)
            without_pool(f"sqlite:///{Path(folder)}/s.db", rounds)
        grant_contention.show("SQLite", lambda: fresh(f"sqlite:///{Path(folder)}/c{next(numbers)}.db"), seconds)
    programs = server_programs()
    if programs is None:
        print("\nPostgreSQL: skipped, server programs (initdb, pg_ctl) are not installed")
        return
    server = Server(programs)
    try:
        server.start(fsync=True)
        if alone:
            show_steps("PostgreSQL (127.0.0.1, fsync on)", server.new_database(), rounds)
        grant_contention.show("PostgreSQL", lambda: fresh(server.new_database()), seconds)
    finally:
        server.stop()


def show_steps(name: str, url: str, rounds: int) -> None:
    migrate(url)
    store = Store.open(url)
    show(name, measure(store, rounds))
    store.close()


if __name__ == "__main__":
    main()
