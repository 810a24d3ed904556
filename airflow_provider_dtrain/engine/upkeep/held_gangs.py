"""Held gangs, which several tasks use: the wait for one, its use, and its end on the hosts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.core.lifecycle.timing import FOLLOWER_GRACE_S, FOLLOWER_SILENT_S
from airflow_provider_dtrain.engine.session.gauges import measuring
from airflow_provider_dtrain.engine.session.store_retry import patiently
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, Waiting
from airflow_provider_dtrain.engine.slots.source import gang_request
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.errors import GangEndedError, StaleWatchError, StoreSetBackError, UnplaceableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.engine.slots.slot_port import SlotRequest
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.gangs import GangSubmission, GangView
    from airflow_provider_dtrain.store.records.trials import AttemptView, TrialKey

P = ParamSpec("P")
T = TypeVar("T")


class GangTimeout(Exception):
    """The gang was not granted in time."""


@dataclass(frozen=True)
class HeldGang:
    """Reference to a held gang, parsed from the XCom of the task that requested it."""

    allocation_id: int
    token: int

    @classmethod
    def parse(cls, value: Any) -> HeldGang:
        """Return the gang that an XCom names.

        :param value: ``{"allocation_id", "token", "slots"}``
        :raises UserError: the value is something else
        """
        from airflow_provider_dtrain.errors import UserError

        try:
            return cls(int(value["allocation_id"]), int(value["token"]))
        except (TypeError, KeyError, ValueError):
            raise UserError(
                "allocation must be the XCom of a GangSensor, with allocation_id, token and slots, "
                f"got {value!r}. Set allocation=sensor.output."
            ) from None


class GangResult(TypedDict):
    """XCom of a held gang."""

    allocation_id: int
    token: int | None
    #: Host -> indices of its slots.
    slots: dict[str, list[int]]


def as_xcom(view: GangView) -> GangResult:
    """Return the data that later tasks need to use a gang, as plain JSON."""
    slots = {host: list(indices) for host, indices in sorted(view.placement.items())}
    return {"allocation_id": view.allocation_id, "token": view.token, "slots": slots}


class GangWaiter:
    """Waiter in the queue for one gang, under a watch of its own.

    :param watcher: readable name of the waiting process
    :param deadline: Unix time at which the wait times out; None = never
    """

    def __init__(
        self, hook: DtrainHook, allocation_id: int, log: TaskLog, *, watcher: str, deadline: float | None = None
    ) -> None:
        self.hook = hook
        self.store = hook.store
        self.allocation_id = allocation_id
        self.log = log
        self.watcher = watcher
        self.deadline = deadline
        self.watch: int | None = None
        self._logged = ""

    async def run(self, *, patient: bool = True) -> GangView | None:
        """Return the gang once it is held.

        :param patient: False: hand the request over and return None after the first answer that grants nothing
        :raises UnplaceableError: no set of the pool's hosts can serve it now or later
        :raises GangEndedError: it was withdrawn
        :raises StaleWatchError: another process waits for it now
        :raises GangTimeout: the deadline has passed
        """
        recovery = BackgroundRecovery(self.hook)
        try:
            with measuring(self.store):
                while (view := await self._poll_again()) is None and patient:
                    recovery.tick()
                    await self._changed()
        finally:
            await recovery.close()
        if view is None and self.watch is not None:
            with contextlib.suppress(StaleWatchError):
                await self._db(self.store.gangs.hand_over, self.allocation_id, self.watch)
        return view

    async def _poll_again(self) -> GangView | None:
        """Check the request under the present watch, or under a new one.

        A new watch is taken at first, and when the store has lost the last one.
        """
        if self.watch is not None:
            try:
                return await self._poll()
            except StoreSetBackError as error:
                self.log.warning(
                    "%s Possible cause: the store was restored from a backup, or a lagging replica took over.", error
                )
        self.watch = await self._db(self.store.gangs.watch, self.allocation_id, watcher=self.watcher)
        return await self._poll()

    async def _changed(self) -> None:
        """Wait until the request may have another answer, has to be renewed, or times out."""
        left_s = None if self.deadline is None else max(0.1, self.deadline - time.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await (await self._slots()).changed()

    async def _slots(self) -> SlotRequest:
        assert self.watch is not None
        view = await self._db(self.store.gangs.get, self.allocation_id)
        return gang_request(self.hook, view, self.watch, self.log)

    async def withdraw(self, because: str) -> None:
        """Withdraw the request, or release the gang that was granted.

        :raises StaleWatchError: another process waits for it now
        """
        await self._db(self.store.gangs.end, self.allocation_id, because, watch=self.watch)

    async def _poll(self) -> GangView | None:
        match await (await self._slots()).request():
            case Granted(slots=granted):
                view = await self._db(self.store.gangs.get, self.allocation_id)
                places = ", ".join(f"{host} {list(slots)}" for host, slots in sorted(granted.items()))
                self.log.info("Holding %d slot(s) of pool '%s': %s", view.slots, view.pool, places)
                return view
            case Never(reason=reason):
                raise UnplaceableError(reason)
            case Waiting(reason=reason) if reason and reason != self._logged:
                self.log.info("Waiting: %s", reason)
                self._logged = reason
        if self.deadline is not None and time.time() > self.deadline:
            view = await self._db(self.store.gangs.get, self.allocation_id)
            raise GangTimeout(f"No gang of {view.slots} slots was granted in pool '{view.pool}': {view.reason}")
        return None

    async def _db(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a store method, called in a thread. Retries while the store is unavailable."""
        return await patiently(self.log, method, *args, **kwargs)


def ask_for_gang(hook: DtrainHook, submission: GangSubmission) -> GangView:
    """Store the request for a gang, and return the gang. Repeatable by its key. Blocks.

    :raises UnplaceableError: no set of the pool's hosts can ever serve it
    """
    hook.ensure_local()
    return hook.store.gangs.submit(submission)


async def end_held_gang(hook: DtrainHook, allocation_id: int, because: str, log: TaskLog, *, watcher: str) -> GangView:
    """End a held gang on all its hosts, and return its state. Repeatable.

    Slots of hosts that do not answer stay taken, and recovery retries.

    :param because: reason, as text
    :raises GangEndedError: there is no such gang
    """
    store = await in_thread(lambda: hook.store)
    view = await in_thread(store.gangs.end, allocation_id, because)
    if view.attempt_id is None or view.state == AllocationState.RELEASED:
        return view
    attempt = await _left_alone(hook, view.attempt_id)
    if attempt is not None:
        await _end_user(hook, attempt, log, watcher)
    return await in_thread(store.gangs.end, allocation_id, because)


async def end_older_gangs(hook: DtrainHook, key: TrialKey, log: TaskLog, *, watcher: str) -> None:
    """End every gang that an earlier clear of this task left behind."""
    store = await in_thread(lambda: hook.store)
    for older in await in_thread(store.gangs.older, key):
        log.info("Ending the gang %d of a cleared task first", older.allocation_id)
        await end_held_gang(hook, older.allocation_id, "the task that asked for it was cleared", log, watcher=watcher)


async def _left_alone(hook: DtrainHook, attempt_id: int) -> AttemptView | None:
    """Wait for the follower to end the attempt, and return the attempt if something is left to do.

    Return None when the follower ended it and every host confirmed.
    """
    give_up_at = time.monotonic() + FOLLOWER_GRACE_S
    while True:
        attempt = await in_thread(hook.store.attempts.get, attempt_id)
        silent_s = time.time() - attempt.renewed_at.timestamp() if attempt.renewed_at else FOLLOWER_SILENT_S
        if attempt.ended_at is not None:
            return attempt if attempt.held_hosts else None
        if silent_s >= FOLLOWER_SILENT_S or time.monotonic() > give_up_at:
            return attempt
        await asyncio.sleep(1.0)


async def _end_user(hook: DtrainHook, attempt: AttemptView, log: TaskLog, watcher: str) -> None:
    from airflow_provider_dtrain.engine.attempt import teardown
    from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
    from airflow_provider_dtrain.engine.session.runtime import Runtime

    watch = await in_thread(hook.store.attempts.watch, attempt.attempt_id, watcher=watcher)
    runtime = Runtime(hook, hook.store, attempt.attempt_id, watch, log, watcher=watcher)
    if attempt.ended_at is None:
        await AttemptRunner(runtime).kill(GangEndedError("The held gang that the trial used was ended."))
    else:
        await teardown.release(runtime, attempt)
