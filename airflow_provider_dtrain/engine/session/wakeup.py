"""Wake-up of a coroutine that waits for its gang."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import REQUEST_RENEW_S

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store


@contextlib.contextmanager
def wakeups(store: Store, pool: str, allocation_id: int | None, every_s: float) -> Iterator[asyncio.Event]:
    """Yield an event that is set when something may have changed for a waiting request.

    One of the coroutines of this process that wait in the pool is woken to run the next scheduling pass.

    :param every_s: poll period in seconds while the store sends no notifications
    """
    from airflow_provider_dtrain.store.wakeup.watcher import Waiter

    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        # Called by the watcher thread. A loop that was closed meanwhile has no coroutine to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(woken.set)

    changes = store.wakeup.changes()
    waiter = Waiter(pool, allocation_id, wake, every_s)
    changes.add(waiter)
    try:
        yield woken
    finally:
        changes.remove(waiter)


async def changed(rt: Runtime, view: AttemptView, *, timeout_s: float = REQUEST_RENEW_S) -> None:
    """Wait until something may have changed for a waiting request, then raise as :meth:`Runtime.check` does.

    :param timeout_s: longest wait in seconds; the caller then renews its request
    """
    if rt.deadline is not None:
        timeout_s = max(0.0, min(timeout_s, rt.deadline - time.time()))
    with wakeups(rt.store, view.pool, view.allocation_id, rt.settings.pass_interval_s) as woken:
        waits = [asyncio.ensure_future(woken.wait()), asyncio.ensure_future(rt.interrupted(timeout_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
    await rt.check(at_once=woken.is_set())
