"""Load on PostgreSQL by 200 gangs that wait in one process: individual polling against notifications.

Every waiter performs the engine's round: renew its request, run or skip the scheduling pass, read its attempt.
Statements are counted at the driver. Afterwards the slots are freed, and the time until the first waiter has its gang
is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sqlalchemy import event

from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from airflow_provider_dtrain.store.wakeup import watcher as changes_module
from airflow_provider_dtrain.store.wakeup.watcher import Waiter
from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Row
from testbed.stores import Server, host, server_programs

SLOTS, GANG = 8, 8
#: As in the engine: longest time between two rounds.
RENEW_S, PASS_INTERVAL_S = 20.0, 1.0


class Waiters:
    """Waiters of one process on one store."""

    def __init__(self, store: Store, waiters: int) -> None:
        self.store, self.statements = store, itertools.count()
        self.threads = ThreadPoolExecutor(32)
        self.granted_at: float | None = None
        self.stop = asyncio.Event()
        store.hosts.add(host("h", SLOTS))
        self.blocker = self._submit(0)
        store.queue.schedule("gpus")
        self.mine = [self._submit(number) for number in range(1, waiters + 1)]
        self.watches = {one.attempt_id: store.attempts.watch(one.attempt_id, watcher="bench") for one in self.mine}
        event.listen(store.db.engine, "before_cursor_execute", lambda *_: next(self.statements))

    def _submit(self, number: int):
        config = self.store.configs.put({}, origins={}).config_id
        key = TrialKey(dag_id="d", run_id="r", task_id="t", map_index=number)
        return self.store.trials.submit(
            TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=GANG, number=number)
        )

    def count(self) -> int:
        """Return the number of statements so far. Each call also increments the counter."""
        return next(self.statements)

    def round(self, ticket) -> str:
        self.store.queue.renew(ticket.attempt_id, self.watches[ticket.attempt_id])
        self.store.queue.schedule("gpus")
        return self.store.attempts.get(ticket.attempt_id).allocation_state

    async def carry(self, ticket, sleep: Callable) -> None:
        loop = asyncio.get_running_loop()
        while not self.stop.is_set():
            if await loop.run_in_executor(self.threads, self.round, ticket) == "granted":
                self.granted_at = self.granted_at or time.perf_counter()
                return
            await sleep(ticket)

    async def run(self, sleep: Callable, seconds: float) -> tuple[float, float]:
        tasks = [asyncio.ensure_future(self.carry(ticket, sleep)) for ticket in self.mine]
        await asyncio.sleep(max(5.0, seconds / 4))
        first, begin = self.count(), time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (self.count() - first) / (time.perf_counter() - begin)
        freed_at = await asyncio.get_running_loop().run_in_executor(self.threads, self.free)
        while self.granted_at is None:  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)
        self.stop.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return rate, self.granted_at - freed_at

    def free(self) -> float:
        watch = self.store.attempts.watch(self.blocker.attempt_id, watcher="bench")
        self.store.attempts.end(self.blocker.attempt_id, watch, state="killed")
        return time.perf_counter()


async def polling(_: object) -> None:
    await asyncio.sleep(PASS_INTERVAL_S)


def told(store: Store) -> Callable:
    async def sleep(ticket) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        waiter = Waiter("gpus", ticket.allocation_id, lambda: loop.call_soon_threadsafe(woken.set), PASS_INTERVAL_S)
        store.wakeup.changes().add(waiter)
        try:
            await asyncio.wait_for(woken.wait(), RENEW_S)
        except TimeoutError:
            pass
        finally:
            store.wakeup.changes().remove(waiter)

    return sleep


def figures(server: Server, waiters: int, seconds: float, how: str) -> dict[str, float]:
    url = server.new_database()
    migrate(url)
    store = Store.open(url)
    keep_taken_up(store)
    bench = Waiters(store, waiters)
    changes_module.can_listen = lambda _engine: how == TOLD
    rate, delay = asyncio.run(bench.run(polling if how == POLLING else told(store), seconds))
    bench.threads.shutdown(cancel_futures=True)
    store.close()
    return {"statements": rate, "grant": 1e3 * delay}


def keep_taken_up(store: Store) -> None:
    """Keep the grant of the gang that holds the slots, although it is never taken up."""
    from airflow_provider_dtrain.store.queue import requests

    requests.UNTAKEN_AFTER *= 1000


POLLING, TOGETHER, TOLD = "each polls", "one looks for all", "notified"


def measure(run: Run) -> None:
    server = Server(server_programs())
    try:
        server.start(fsync=True)
        waiters, seconds = run.size(200, 100), run.size(30.0, 3.0)
        run.turns({how: partial(figures, server, waiters, seconds, how) for how in SIDES})
    finally:
        server.stop()


SIDES = {POLLING: PEER, TOGETHER: OURS, TOLD: OURS}
BENCH = Bench(
    what="200 gangs that wait in one process, on PostgreSQL",
    rows=(
        Row(name="statements", what="While they wait", unit="statements/s", sides=SIDES, base=POLLING),
        Row(name="grant", what="From free slots to the first gang that knows it", unit="ms", sides=SIDES, base=POLLING),
    ),
    measure=measure,
    rounds=(1, 1),
    missing=lambda: None if server_programs() else "the server programs of PostgreSQL (initdb, pg_ctl) are missing",
)
