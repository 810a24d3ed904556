"""Trigger that waits in the queue for a gang that several tasks will use."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.background import alongside, in_background
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError, StaleWatchError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.triggers._airflow import EARLIEST_EVENT_S, is_deferred, load_engine, prepare_kill

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.upkeep.held_gangs import GangResult, GangWaiter


class GangEvent(TypedDict, total=False):
    """Event of the end of a wait for a gang: the gang, the failure, or the reason of a time-out."""

    gang: GangResult
    #: A :class:`Failure` as plain JSON.
    failure: JsonObject
    timed_out: str


class GangTrigger(BaseTrigger):
    """Trigger that takes the watch of a request and waits until its gang is held.

    :param allocation_id: the request
    :param deadline: Unix time at which the wait times out; None = never
    """

    def __init__(self, allocation_id: int, deadline: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocation_id = allocation_id
        self.deadline = deadline
        self._waiter: GangWaiter | None = None
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"allocation_id": self.allocation_id, "deadline": self.deadline}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: ``{"gang": ...}``, ``{"failure": ...}`` or ``{"timed_out": why}``."""
        started_at = time.monotonic()
        await load_engine()
        self._waiter = waiter = await self._make()
        try:
            async with alongside(prepare_kill(self)):
                payload = await _wait(waiter)
        except StaleWatchError as error:
            self.log.info("Another process waits for this gang now (%s)", error)
            await asyncio.Event().wait()
            return
        await asyncio.sleep(max(0.0, EARLIEST_EVENT_S - (time.monotonic() - started_at)))
        self._fired = True
        yield TriggerEvent(payload)

    async def on_kill(self) -> None:
        """Withdraw the request or release the gang, unless the wait moved to another triggerer."""
        await asyncio.shield(in_background(self._kill()))

    async def _kill(self) -> None:
        await load_engine()
        if self._fired or await is_deferred(self):
            return
        waiter = self._waiter or await self._make()
        try:
            await waiter.withdraw("the task that asked for it was marked, cleared or ended")
        except StaleWatchError:
            self.log.info("Another process waits for this gang now; nothing to end here")

    async def _make(self) -> GangWaiter:
        from airflow_provider_dtrain.engine.upkeep.held_gangs import GangWaiter

        hook = await in_thread(DtrainHook)
        await in_thread(lambda: hook.store)
        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        watcher = f"triggerer on {socket.gethostname()}"
        return GangWaiter(hook, self.allocation_id, log, watcher=watcher, deadline=self.deadline)


async def _wait(waiter: GangWaiter) -> GangEvent:
    """Return the event of a finished wait."""
    from airflow_provider_dtrain.engine.upkeep.held_gangs import GangTimeout, as_xcom

    try:
        view = await waiter.run()
    except StaleWatchError:
        raise
    except GangTimeout as error:
        await waiter.withdraw("the task that asked for it timed out")
        return {"timed_out": str(error)}
    except DtrainError as error:
        if error.kind == "user":
            await waiter.withdraw(f"the task that asked for it failed: {error}")
        return {"failure": vars(Failure.of(error))}
    assert view is not None
    return {"gang": as_xcom(view)}
