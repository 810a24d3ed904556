"""Grants under contention, compared with bare transactions that lock the pool and write the same rows.

A process always finds free slots. Its cycle: a pass grants its request, and the process puts the gang back. A thread
waits for slots. Its cycle is that of a task: the request is submitted, granted and ended, and the next one is queued
behind all waiting requests. The bare cycles write the same rows in as many transactions, each of which locks the pool
first and decides nothing. Both use the store's own transactions, so on SQLite both queue in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import Queue, get_context
from multiprocessing.synchronize import Barrier

import sqlalchemy as sa

from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import gate
from airflow_provider_dtrain.store.database.tables import allocation_slots, allocations, attempts, experiments, trials
from airflow_provider_dtrain.store.database.transactions import bump, lock_pool
from airflow_provider_dtrain.store.queue.pass_writes import raise_token
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from bench.framework.measuring import Run

GANG = 32
#: Wait for a grant after which the caller counts as starved.
STARVED_S = 30.0
STATE = sa.select(allocations.c.state).where(allocations.c.id == sa.bindparam("gang"))
REQUEST = sa.select(attempts.c.allocation_id).where(attempts.c.id == sa.bindparam("attempt"))
FREE = (
    allocation_slots.update()
    .where(allocation_slots.c.allocation_id == sa.bindparam("gang"))
    .values(released_at=sa.bindparam("now"), proof="untaken")
)

Counted = tuple[int, list[float]]


@dataclass
class Caller:
    """A caller that repeatedly acquires and releases a gang.

    :param store: store of this process
    :param config: id of the configuration
    :param name: unique among all callers
    """

    store: Store
    config: int
    name: str

    def __post_init__(self) -> None:
        self.waits: list[float] = []
        self.cycles = self.skipped = 0

    def warm_up(self) -> None:
        """Run one cycle that does not count: it compiles statements and opens connections."""
        self._cycle()
        self.skipped, self.cycles = len(self.waits), 0

    def run(self, until: float) -> None:
        """Repeat the cycle until a time of the clock time.time()."""
        while time.time() < until:
            self._cycle()

    def _cycle(self) -> None:
        begin = time.perf_counter()
        grant = self.submit()
        # Counted even after the end: a starved caller has the longest wait.
        granted = self.until_granted(grant)
        self.waits.append(time.perf_counter() - begin)
        self.cycles += granted
        self.end(grant)

    @property
    def counted(self) -> Counted:
        """Cycles and waits after the warm-up."""
        return self.cycles, self.waits[self.skipped :]

    def submit(self) -> tuple[int, int]:
        raise NotImplementedError

    def until_granted(self, grant: tuple[int, int]) -> bool:
        raise NotImplementedError

    def end(self, grant: tuple[int, int]) -> None:
        raise NotImplementedError


class Task(Caller):
    """A task, served by the store."""

    def submit(self) -> tuple[int, int]:
        key = TrialKey(dag_id="d", run_id=self.name, task_id=f"t{len(self.waits)}")
        ticket = self.store.trials.submit(
            TrialSubmission(key=key, experiment_name=self.name, config_id=self.config, pool="gpus", slots=GANG)
        )
        return ticket.attempt_id, ticket.allocation_id

    def until_granted(self, grant: tuple[int, int]) -> bool:
        allocation_id, give_up_at = grant[1], time.monotonic() + STARVED_S
        self.store.queue.schedule("gpus")
        while self._state(allocation_id) != "granted":
            if time.monotonic() > give_up_at:
                return False
            # As in the engine: wait for a notification of the store or for the next pass.
            self.store.wakeup.changes().wait("gpus", 20.0, allocation_id=allocation_id)
            self.store.queue.schedule("gpus")
        return True

    def _state(self, allocation_id: int) -> str:
        with self.store.db.reader.connect() as conn:
            return str(conn.scalar(STATE, {"gang": allocation_id}))

    def end(self, grant: tuple[int, int]) -> None:
        self.store.attempts.end(grant[0], 0, state="completed")


class Bare(Caller):
    """Writes the rows of :class:`Task` in transactions that decide nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config
        ticket = self.store.trials.submit(
            TrialSubmission(
                key=TrialKey(dag_id="bare", run_id=self.name, task_id="t"), experiment_name=self.name,
                config_id=config, pool="gpus", slots=GANG,
            )
        )  # fmt: skip
        self.store.attempts.end(ticket.attempt_id, 0, state="killed")
        self.experiment, self.trial = ticket.experiment_id, 0

    def submit(self) -> tuple[int, int]:
        now = self.store.db.now()
        key = {"dag_id": "bare", "run_id": self.name, "task_id": "t", "map_index": -1}
        with gate.transaction(), statements.transaction(self.store.db.engine) as conn:
            lock_pool(conn, "gpus")
            statements.update(conn, experiments, self.experiment, state="running", ended_at=None)
            # max_tries makes the key unique.
            self.trial = statements.insert(
                conn, trials, **key, max_tries=len(self.waits) + 1, number=0, experiment_id=self.experiment,
                config_id=self.config, hparams={}, seed=0, max_restarts=0, state="queued", created_at=now,
                cleared_at=now,
            )  # fmt: skip
            gang = statements.insert(
                conn, allocations, trial_id=self.trial, pool="gpus", slots=GANG, state="released", requested_at=now,
                submitted_at=now, renewed_at=now,
            )  # fmt: skip
            statements.update(conn, allocations, gang, sequence=gang)
            attempt = statements.insert(
                conn, attempts, trial_id=self.trial, number=1, allocation_id=gang, state="completed", created_at=now,
                renewed_at=now, ended_at=now,
            )  # fmt: skip
            bump(conn, "gpus")
        return attempt, gang

    def until_granted(self, grant: tuple[int, int]) -> bool:
        now, gang = self.store.db.now(), grant[1]
        with gate.transaction(), statements.transaction(self.store.db.engine) as conn:
            lock_pool(conn, "gpus")
            token = raise_token(conn, 1)
            statements.update(conn, allocations, gang, token=token, granted_at=now)
            rows = [
                {"allocation_id": gang, "token": token, "host": f"{self.name}-{number // 8}", "slot": number % 8}
                for number in range(GANG)
            ]
            statements.add(conn, allocation_slots, *rows)
            bump(conn, "gpus")
        return True

    def end(self, grant: tuple[int, int]) -> None:
        now = self.store.db.now()
        with gate.transaction(), statements.transaction(self.store.db.engine) as conn:
            lock_pool(conn, "gpus")
            statements.update(conn, attempts, grant[0], state="completed", ended_at=now)
            statements.update(conn, trials, self.trial, state="completed", ended_at=now)
            conn.execute(FREE, {"gang": grant[1], "now": now})
            statements.update(conn, allocations, grant[1], ended_at=now)
            statements.update(conn, experiments, self.experiment, state="completed", ended_at=now)
            bump(conn, "gpus")


class Returning(Task):
    """A task that puts its gang back and keeps its place in the queue, without further submissions."""

    attempt_id = 0

    def submit(self) -> tuple[int, int]:
        if not self.attempt_id:
            self.attempt_id, allocation_id = super().submit()
            return self.attempt_id, allocation_id
        with self.store.db.reader.connect() as conn:
            return self.attempt_id, int(conn.scalars(REQUEST, {"attempt": self.attempt_id}).one())

    def end(self, grant: tuple[int, int]) -> None:
        self.store.queue.put_back(grant[0], 0, "again")


class BareReturning(Bare):
    """Writes the rows of :class:`Returning` in transactions that decide nothing."""

    grant: tuple[int, int] | None = None

    def submit(self) -> tuple[int, int]:
        self.grant = self.grant or super().submit()
        return self.grant

    def end(self, grant: tuple[int, int]) -> None:
        now = self.store.db.now()
        with gate.transaction(), statements.transaction(self.store.db.engine) as conn:
            lock_pool(conn, "gpus")
            conn.execute(FREE, {"gang": grant[1], "now": now})
            statements.update(conn, allocations, grant[1], ended_at=now)
            gang = statements.insert(
                conn, allocations, trial_id=self.trial, pool="gpus", slots=GANG, state="released", requested_at=now,
                submitted_at=now, renewed_at=now, sequence=grant[1],
            )  # fmt: skip
            statements.update(conn, attempts, grant[0], allocation_id=gang, reason="again")
            bump(conn, "gpus")
        self.grant = grant[0], gang


def _process(
    kind: type[Caller], url: str, config: int, name: str, seconds: float, ready: Barrier, results: Queue[Counted]
) -> None:
    store = Store.open(url)
    one = kind(store, config, name)
    one.warm_up()
    ready.wait(4 * STARVED_S)
    one.run(time.time() + seconds)
    results.put(one.counted)
    store.close()


def of_processes(kind: type[Caller], url: str, config: int, number: int, seconds: float) -> Counted:
    """Return cycles and waits of a number of processes."""
    context = get_context("fork")
    results: Queue[Counted] = context.Queue()
    ready = context.Barrier(number)
    work = [(kind, url, config, f"{kind.__name__}{index}", seconds, ready, results) for index in range(number)]
    processes = [context.Process(target=_process, args=arguments) for arguments in work]
    for process in processes:
        process.start()
    found = [results.get(timeout=seconds + 4 * STARVED_S) for _ in processes]
    for process in processes:
        process.join()
    return sum(cycles for cycles, _ in found), [wait for _, waits in found for wait in waits]


def of_threads(kind: type[Caller], url: str, config: int, number: int, seconds: float) -> Counted:
    """Return cycles and waits of a number of threads of this process."""
    store = Store.open(url)
    callers = [kind(store, config, f"{kind.__name__}{index}") for index in range(number)]
    callers[0].warm_up()
    until = time.time() + seconds
    with ThreadPoolExecutor(number) as threads:
        list(threads.map(lambda one: one.run(until), callers))
    store.close()
    return sum(one.cycles for one in callers), [wait for one in callers for wait in one.counted[1]]


#: Case -> how its callers run, their number, and the callers: bare transactions and the store.
CASES: dict[str, tuple[Callable[..., Counted], int, type[Caller], type[Caller]]] = {
    "1 process": (of_processes, 1, BareReturning, Returning),
    "8 processes": (of_processes, 8, BareReturning, Returning),
    "200 threads": (of_threads, 200, Bare, Task),
}


def measure(run: Run, name: str, case: str, fresh: Callable[[], tuple[str, int]], seconds: float) -> None:
    """Add the rates and the waits of one case on one database.

    :param fresh: returns the URL of a new store with hosts, and the id of a configuration
    :param seconds: duration of each measurement
    """
    run_callers, number, *kinds = CASES[case]

    def rate(side: str, kind: type[Caller]) -> float:
        cycles, waits = run_callers(kind, *fresh(), number, seconds)
        run.add(f"wait of {case}, {name}", side, *(1e3 * wait for wait in waits))
        return cycles / seconds

    sides = dict(zip(("bare transactions", "ours"), kinds, strict=True))
    run.turns({side: partial(rate, side, kind) for side, kind in sides.items()}, f"{case}, {name}")
