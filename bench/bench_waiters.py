"""Load on PostgreSQL by 200 gangs that wait in one process: individual polling against notifications.

Usage: ``python -m bench.bench_waiters [--waiters 200] [--seconds 30]``. Every waiter performs the engine's round:
renew its request, run or skip the scheduling pass, read its attempt. Statements are counted at the driver. Afterwards
the slots are freed, and the time until the first waiter has its gang is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import event

from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from airflow_provider_dtrain.store.wakeup import watcher as changes_module
from airflow_provider_dtrain.store.wakeup.watcher import Waiter
from testbed.stores import Server, host, server_programs

SLOTS, GANG = 8, 8
#: As in the engine: longest time between two rounds.
RENEW_S, PASS_INTERVAL_S = 20.0, 1.0


class Bench:
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


def measure(server: Server, waiters: int, seconds: float, how: str) -> None:
    url = server.new_database()
    migrate(url)
    store = Store.open(url)
    keep_taken_up(store)
    bench = Bench(store, waiters)
    changes_module.can_listen = lambda _engine: how == "told"
    rate, delay = asyncio.run(bench.run(polling if how == "polling" else told(store), seconds))
    print(f"  {how:24} {rate:14.1f} {delay * 1e3:18.0f}")
    bench.threads.shutdown(cancel_futures=True)
    store.close()


def keep_taken_up(store: Store) -> None:
    """Keep the grant of the gang that holds the slots, although it is never taken up."""
    from airflow_provider_dtrain.store.queue import requests

    requests.UNTAKEN_AFTER *= 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiters", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    programs = server_programs()
    if programs is None:
        raise SystemExit("PostgreSQL's server programs (initdb, pg_ctl) are not installed.")
    server = Server(programs)
    try:
        server.start(fsync=True)
        print(f"{options.waiters} waiters of one process, {options.seconds:.0f} s")
        print(f"  {'':24} {'statements/s':>14} {'free to grant, ms':>18}")
        for how in ("polling", "looking for all", "told"):
            measure(server, options.waiters, options.seconds, how)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
