"""Wake-up of a coroutine that waits for its gang."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import REQUEST_RENEW_S

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView


async def changed(rt: Runtime, view: AttemptView, *, timeout_s: float = REQUEST_RENEW_S) -> None:
    """Wait until something may have changed for a waiting request, then raise as :meth:`Runtime.check` does.

    One of the coroutines of this process that wait in the pool is woken to run the next scheduling pass.

    :param timeout_s: longest wait in seconds; the caller then renews its request
    """
    from airflow_provider_dtrain.store.wakeup.watcher import Waiter

    loop = asyncio.get_running_loop()
    woken = asyncio.Event()

    def wake() -> None:
        # Called by the watcher thread. A loop that was closed meanwhile has no coroutine to wake.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(woken.set)

    changes = rt.store.wakeup.changes()
    waiter = Waiter(view.pool, view.allocation_id, wake, rt.settings.pass_interval_s)
    if rt.deadline is not None:
        timeout_s = max(0.0, min(timeout_s, rt.deadline - time.time()))
    changes.add(waiter)
    waits = [asyncio.ensure_future(woken.wait()), asyncio.ensure_future(rt.wished(timeout_s))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        changes.remove(waiter)
        for wait in waits:
            wait.cancel()
    await rt.check(at_once=woken.is_set())
