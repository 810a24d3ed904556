"""Slots of ended gangs whose hosts did not answer at the time: freed once they do."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine import finishing
from airflow_provider_dtrain.engine.runtime import Runtime
from airflow_provider_dtrain.engine.tasklog import TaskLog
from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records import AttemptView

log = logging.getLogger(__name__)

#: Between two looks of one waiting process.
EVERY_S = 30.0
WATCHER = "recovery"


async def recover_ended(hook: DtrainHook, *, host: str | None = None) -> list[str]:
    """Fence ended gangs that still hold slots; return the hosts where some became free.

    :param host: look only at gangs that hold slots there; None = at all
    """
    store = await in_thread(lambda: hook.store)
    freed: list[str] = []
    for view in await in_thread(store.unreleased):
        if host is None or host in view.held_hosts:
            freed += await _recover(hook, view)
    return freed


async def _recover(hook: DtrainHook, view: AttemptView) -> list[str]:
    store = hook.store
    try:
        watch = await in_thread(store.watch, view.attempt_id, watcher=WATCHER)
        runtime = Runtime(hook, store, view.attempt_id, watch, TaskLog(log, 0), watcher=WATCHER)
        return await finishing.release(runtime, view)
    except DtrainError as error:
        log.info("Slots of %s were not freed: %s", view.run, error)
        return []


class Recovery:
    """Looks in the background, at most once per ``EVERY_S``, while its process waits for slots."""

    def __init__(self, hook: DtrainHook) -> None:
        self._hook = hook
        self._next_at = 0.0
        self._running: asyncio.Future[list[str]] | None = None

    def tick(self) -> None:
        """Begin a look when one is due and none runs."""
        if time.monotonic() < self._next_at or (self._running is not None and not self._running.done()):
            return
        self._next_at = time.monotonic() + EVERY_S
        self._running = asyncio.ensure_future(recover_ended(self._hook))

    async def close(self) -> None:
        """End a look that runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
