"""Slots of held gangs: the request of the task that acquires one, and the turn of a trial that uses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from airflow_provider_dtrain.core.lifecycle.timing import REQUEST_RENEW_S
from airflow_provider_dtrain.engine.session.store_retry import patiently
from airflow_provider_dtrain.engine.session.wakeup import wakeups
from airflow_provider_dtrain.engine.slots.queue_slots import QueueSlots
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, Waiting
from airflow_provider_dtrain.errors import UnplaceableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

P = ParamSpec("P")
T = TypeVar("T")


class GangSlots:
    """Request for a held gang in the queue of its pool, as the task that acquires the gang makes it.

    Any waiter runs the scheduling pass, so no daemon is needed.

    :param watch: number of this waiter; every write carries it
    """

    def __init__(self, hook: DtrainHook, allocation_id: int, watch: int, log: TaskLog) -> None:
        self.hook = hook
        self.store = hook.store
        self.allocation_id = allocation_id
        self.watch = watch
        self.log = log

    async def request(self) -> Granted | Waiting | Never:
        """Renew the request, run a scheduling pass, and take a grant up."""
        try:
            view = await self._db(self.store.gangs.renew, self.allocation_id, self.watch)
        except UnplaceableError as error:
            return Never(reason=str(error))
        await self._db(self.store.queue.schedule, view.pool)
        held = await self._db(self.store.gangs.take_up, self.allocation_id, self.watch)
        if held is not None:
            return Granted(slots=held.placement)
        view = await self._db(self.store.gangs.get, self.allocation_id)
        if view.unplaceable:
            return Never(reason=view.reason)
        return Waiting(reason=f"{view.reason} Pool '{view.pool}'." if view.reason else "")

    async def changed(self) -> None:
        """Wait for the next change of the pool's queue, or until the request has to be renewed."""
        view = await self._db(self.store.gangs.get, self.allocation_id)
        every_s = self.hook.settings.pass_interval_s
        with wakeups(self.store, view.pool, self.allocation_id, every_s) as woken, contextlib.suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), REQUEST_RENEW_S)

    async def _db(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await patiently(self.log, method, *args, **kwargs)


class GangTurn(QueueSlots):
    """Turn of a trial on the held gang that it uses. Its slots are released like those of any attempt."""

    async def request(self) -> Granted | Waiting | Never:
        """Start to use the gang, unless another task uses it."""
        rt = self.rt
        run = await rt.db(rt.store.gangs.use, rt.attempt_id, rt.watch)
        view = await rt.view()
        return Waiting(reason=view.reason) if run is None else Granted(slots=view.placement)

    async def changed(self) -> None:
        """Wait for one pass interval, because the end of the other task's use wakes no waiter."""
        await self.rt.pause(self.rt.settings.pass_interval_s)
