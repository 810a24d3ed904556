"""What a grant costs in the store: 4 hosts x 8 slots out of 64 hosts x 8.

Usage: ``python -m bench.bench_grant [--rounds 200] [--seconds 5]``. PostgreSQL is measured when a server can be
started (programs found as the contract tests find them), with fsync on as in production.

Three tables per database: each step alone; grants per second of 8 processes that contend; and of 50 waiters in
one process, as in a triggerer. There a cycle is a grant, its return, and the next request: ``schedule`` and
``put_back``, two durable transactions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Queue, get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from airflow_provider_dtrain.store.fast import Statement, look
from airflow_provider_dtrain.store.records import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.repository import Store, migrate
from airflow_provider_dtrain.store.tables import allocations, attempts
from tests.contract.store_world import Server, host, server_programs

HOSTS, SLOTS, GANG = 64, 8, 32
Waits = list[float]
REQUEST = Statement(
    sa.select(allocations.c.id, allocations.c.state)
    .join(attempts, attempts.c.allocation_id == allocations.c.id)
    .where(attempts.c.id == sa.bindparam("attempt"))
)
STEPS = ("submit", "pass (grant)", "pass (unchanged)", "take_up", "commit_events", "renew", "release x4", "end")


def measure(store: Store, rounds: int) -> dict[str, list[float]]:
    for number in range(HOSTS):
        store.add_host(host(f"h{number:02d}", SLOTS))
    config = store.put_config({}, origins={}).config_id
    took: dict[str, list[float]] = {step: [] for step in STEPS}
    store.schedule("gpus")
    held: list[tuple[int, int]] = []
    for number in range(rounds):
        # Up to 15 of 16 gangs stand, so that a grant looks for its hosts among many that are taken.
        if len(held) == 15:
            finish(store, took, *held.pop(0))
        held.append(one_grant(store, took, config, number))
    return took


def one_grant(store: Store, took: dict[str, list[float]], config: int, number: int) -> tuple[int, int]:
    key = TrialKey(dag_id="d", run_id="r", task_id="t", map_index=number)
    submission = TrialSubmission(
        key=key, experiment_name=f"e{number // 50}", config_id=config, pool="gpus", slots=GANG, number=number
    )
    ticket = timed(took["submit"], lambda: store.submit_trial(submission))
    watch = store.watch(ticket.attempt_id, watcher="bench")
    result = timed(took["pass (grant)"], lambda: store.schedule("gpus"))
    assert result.granted == (ticket.allocation_id,)
    timed(took["pass (unchanged)"], lambda: store.schedule("gpus"))
    assert timed(took["take_up"], lambda: store.take_up(ticket.attempt_id, watch))
    events = [{"seq": n, "at": 1.0, "kind": "report", "step": n, "metrics": {"loss": 0.5}} for n in range(10)]
    name = "rank0.events"
    timed(took["commit_events"], lambda: store.commit_events(ticket.attempt_id, watch, "h00", name, 0, 999, events))
    timed(took["renew"], lambda: store.renew({ticket.attempt_id: watch}))
    return ticket.attempt_id, watch


def finish(store: Store, took: dict[str, list[float]], attempt: int, watch: int) -> None:
    hosts = store.attempt(attempt).held_hosts
    timed(took["release x4"], lambda: store.release(attempt, watch, hosts, proof="clear"))
    timed(took["end"], lambda: store.end_attempt(attempt, watch, state="completed"))


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


class Contender:
    """One task that gets a gang, gives it back, and asks again."""

    def __init__(self, store: Store, config: int, name: str) -> None:
        self.store, self.waits = store, list[float]()
        key = TrialKey(dag_id="d", run_id="contended", task_id=name)
        submission = TrialSubmission(key=key, experiment_name="c", config_id=config, pool="gpus", slots=GANG)
        self.attempt = store.submit_trial(submission).attempt_id
        self.watch = store.watch(self.attempt, watcher=name)

    def request(self) -> tuple[int, str]:
        """Return the id and state of its present request."""
        [found] = look(self.store._reader, REQUEST, {"attempt": self.attempt})
        return int(found.id), str(found.state)

    def run(self, until: float) -> None:
        asked = time.perf_counter()
        allocation_id, state = self.request()
        while time.time() < until:
            if state == "waiting":
                self.store.schedule("gpus")
                state = self.request()[1]
            if state == "waiting":
                self.store.changes().wait("gpus", 0.2, allocation_id=allocation_id, every_s=0.02)
                state = self.request()[1]
            if state == "granted":
                self.waits.append(time.perf_counter() - asked)
                self.store.put_back(self.attempt, self.watch, "again")
                asked = time.perf_counter()
                allocation_id, state = self.request()


def contender(url: str, config: int, name: str, seconds: float, ready: Barrier, results: Queue[Waits]) -> None:
    store = Store.open(url)
    one = Contender(store, config, name)
    ready.wait(120)
    one.run(time.time() + seconds)
    results.put(one.waits)
    store.close()


def contended(url: str, config: int, number: int, seconds: float) -> Waits:
    """Return how long each grant was waited for, of so many processes."""
    context = get_context("spawn")
    results: Queue[Waits] = context.Queue()
    ready = context.Barrier(number)
    work = [(url, config, f"p{index}", seconds, ready, results) for index in range(number)]
    processes = [context.Process(target=contender, args=arguments) for arguments in work]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return [wait for waits in found for wait in waits]


def waiting(url: str, config: int, number: int, seconds: float) -> Waits:
    """Return the same for so many threads of this process, most of which wait at any time."""
    store = Store.open(url)
    tasks = [Contender(store, config, f"w{index}") for index in range(number)]
    until = time.time() + seconds
    with ThreadPoolExecutor(number) as threads:
        list(threads.map(lambda task: task.run(until), tasks))
    store.close()
    return [wait for task in tasks for wait in task.waits]


def show_contended(name: str, url: str, config: int, seconds: float) -> None:
    print(f"\n{name}, {seconds:g} s\n  {'':22} {'grants/s':>10} {'p50 ms':>10} {'p99 ms':>10}")
    for words, measured, number in (("8 processes", contended, 8), ("50 waiting threads", waiting, 50)):
        waits = measured(url, config, number, seconds)
        p50, p99 = (statistics.quantiles(waits, n=100)[place] * 1e3 for place in (49, 98))
        print(f"  {words:22} {len(waits) / seconds:10.0f} {p50:10.2f} {p99:10.2f}")


def without_pool(url: str, rounds: int) -> None:
    """Show what a connection per transaction would cost on SQLite."""
    store = Store.open(url)
    pooled, single = store._engine, sa.create_engine(url, poolclass=NullPool)
    for name, engine in (("kept connection", pooled), ("a connection each time", single)):
        values: list[float] = []
        for _ in range(rounds):
            timed(values, lambda engine=engine: read(engine))
        print(f"  {name:24} {statistics.median(values) * 1e3:10.3f} ms per read")
    store.close()


def read(engine: sa.Engine) -> object:
    with engine.connect() as connection:
        return connection.scalar(sa.text("SELECT version FROM pools"))


def fresh(url: str) -> str:
    """Return the URL of a store of its own with all hosts and one configuration."""
    migrate(url)
    store = Store.open(url)
    for number in range(HOSTS):
        store.add_host(host(f"h{number:02d}", SLOTS))
    store.put_config({}, origins={})
    store.close()
    return url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    rounds, seconds = arguments.rounds, arguments.seconds
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        url = f"sqlite:///{Path(folder)}/s.db"
        store = Store.open(url)
        show("SQLite (WAL, synchronous=FULL)", measure(store, rounds))
        config = store.put_config({}, origins={}).config_id
        store.close()
        show_contended("SQLite", fresh(f"sqlite:///{Path(folder)}/c.db"), config, seconds)
        without_pool(url, rounds)
    programs = server_programs()
    if programs is None:
        print("\nPostgreSQL: no server programs here")
        return
    server = Server(programs)
    try:
        server.start(fsync=True)
        url = server.new_database()
        migrate(url)
        store = Store.open(url)
        show("PostgreSQL (127.0.0.1, fsync on)", measure(store, rounds))
        store.close()
        show_contended("PostgreSQL", fresh(server.new_database()), config, seconds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
