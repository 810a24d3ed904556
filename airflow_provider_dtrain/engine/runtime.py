"""What the coroutine that carries one attempt needs: store, hosts, log, and the wish to stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow_provider_dtrain.engine.patience import patiently
from airflow_provider_dtrain.engine.renewal import Follower, renewer
from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.engine.trial_logs import TrialLogs
from airflow_provider_dtrain.errors import (
    DtrainError,
    GangEndedError,
    HostUnreachableError,
)
from airflow_provider_dtrain.store.queue_records import Wishes

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.resources import HostState
    from airflow_provider_dtrain.engine.tasklog import TaskLog
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.remote import HostLink
    from airflow_provider_dtrain.store.records import AttemptView, HostRecord
    from airflow_provider_dtrain.store.repository import Store

P = ParamSpec("P")
T = TypeVar("T")

#: Between two looks at what people and other gangs want.
WISH_CHECK_S = 2.0
#: Between two renewals of an attempt while no supervisor beats for it.
RENEW_S = 15.0
CONNECT_TIMEOUT_S = 30.0
#: For so long after its watch was current nobody takes a follower for dead, so it may act without asking the store.
PROVED_S = 60.0
#: How far the clocks of a host and of the store may count a held lease differently.
HOLD_MARGIN_S = 60.0


class Killed(Exception):
    """A person stopped this trial."""


class Stopped(Exception):
    """A person wants the trial to end with what it has; its ranks do not run."""


class TimedOut(Exception):
    """The task's ``execution_timeout`` has passed."""


class HandedOver(Exception):
    """Somebody wants the next process to follow from here."""


class Runtime:
    """One attempt, followed by one process under one watch.

    :param watch: this follower's mark; every write carries it
    :param watcher: who that is, in words
    """

    def __init__(
        self, hook: DtrainHook, store: Store, attempt_id: int, watch: int, log: TaskLog, *, watcher: str
    ) -> None:
        self.hook, self.store, self.settings = hook, store, hook.settings
        self.attempt_id, self.watch, self.log, self.watcher = attempt_id, watch, log, watcher
        #: Rank 0's lines in the task log.
        self.logs = TrialLogs(self)
        #: Unix time when the trial must have ended; None = never
        self.deadline: float | None = None
        self.connect_timeout_s = CONNECT_TIMEOUT_S
        #: What others want, as of the last look.
        self.wishes = Wishes()
        #: time.monotonic() when this process took the attempt's grant up; None = it did not.
        self.taken_up_at: float | None = None
        #: The attempt as it was when this process began to follow its run; None while it follows none.
        self.followed: AttemptView | None = None
        #: time.monotonic() when the watch was last known to be current.
        self.proved_at = time.monotonic()
        #: Called on a kill, in the loop's thread: sends what can be sent without waiting.
        self.on_kill: Callable[[], None] | None = None
        self._killed, self._handing_over = asyncio.Event(), asyncio.Event()
        self._wishes_read_at = time.monotonic() - WISH_CHECK_S
        self._records: dict[str, HostRecord] = {}

    # -- the store -----------------------------------------------------------------------------
    async def db(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a method of the store returns, called in a thread; waits for a store that is away.

        :raises StoreUnavailableError: it stayed away for ``patience.STORE_PATIENCE_S``
        """
        return await patiently(self.log, method, *args, **kwargs)

    @property
    def gone_after_s(self) -> float:
        """Seconds of silence after which a host that does not answer must have ended its run by itself."""
        return (self.settings.orphan_timeout_s + self.settings.kill_grace_s) * 1.05

    async def is_held(self) -> bool:
        """Return whether a hold may keep a run alive on a host that does not answer, however long it was silent."""
        return await self.db(self.store.leases_left_s, self.settings.kill_grace_s + HOLD_MARGIN_S) > 0

    async def follow_attempt(self, attempt_id: int) -> None:
        """Go on with another attempt of the trial, under a watch of its own."""
        if attempt_id != self.attempt_id:
            await self.retake(attempt_id)

    async def retake(self, attempt_id: int) -> None:
        """Follow an attempt of the trial from now on, whoever followed it before."""
        self.watch = await self.db(self.store.watch, attempt_id, watcher=self.watcher)
        self.attempt_id, self.taken_up_at, self.proved_at = attempt_id, None, time.monotonic()
        self.followed = None
        self.wishes, self._wishes_read_at = Wishes(), time.monotonic() - WISH_CHECK_S

    async def prove_watch(self) -> None:
        """Return when this process is known to be the one that may stop and fence.

        :raises StaleWatchError: another process follows the attempt
        :raises StoreSetBackError: the store has lost the watch, the attempt or the grant of its run
        """
        await self.db(self.store.check_watch, self.attempt_id, self.watch, followed=self.followed)
        self.proved_at = time.monotonic()

    async def view(self) -> AttemptView:
        """Return the attempt as the store has it now."""
        return await self.db(self.store.attempt, self.attempt_id)

    # -- hosts ---------------------------------------------------------------------------------
    async def record(self, host: str) -> HostRecord:
        """Return a host's registration, read once per follower."""
        if host not in self._records:
            self._records[host] = await self.db(self.store.get_host, host)
        return self._records[host]

    async def link(self, host: str) -> HostLink:
        """Return the open channel to a host; connects when there is none.

        :raises HostError: no connection, another machine, or a broken protocol
        """
        record = await self.record(host)
        address = await self.hook.aaddress(record)
        link = await in_thread(self.hook.link, record, address, self.connect_timeout_s)
        link.on_beat = lambda frame, link=link: renewer().beat(link, frame)
        return link

    async def call(self, host: str, command: str, /, *, timeout_s: float = 30.0, **arguments: Any) -> dict[str, Any]:
        """Return a host's answer to a command.

        :raises HostError: no answer in time, or the supervisor refused
        """
        link = await self.link(host)
        return await answer(link, command, timeout_s=timeout_s, **arguments)

    async def note_host(self, host: str, state: HostState, reason: str = "") -> bool:
        """Show a host as reachable or not; return whether that was changed. What a person decided stays."""
        try:
            known = await self.db(self.store.get_host, host)
            old = ("unreachable", "lost") if state == "ready" else ("ready", "unreachable")
            if known.state not in old or known.state == state:
                return False
            if state == "lost" and known.state == "ready":
                await self.db(self.store.set_host_state, host, "unreachable", reason)
            await self.db(self.store.set_host_state, host, state, reason)
        except DtrainError as error:
            self.log.debug("Host '%s' is not shown as %s: %s", host, state, error)
            return False
        return True

    # -- leases --------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Show in the store that somebody cares for the attempt, while no supervisor beats for it."""

        async def renew() -> None:
            while True:
                with contextlib.suppress(DtrainError):
                    await in_thread(self.store.renew, {self.attempt_id: self.watch})
                await asyncio.sleep(RENEW_S)

        task = asyncio.ensure_future(renew())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @contextlib.contextmanager
    def lease(self, run: str) -> Any:
        """Keep the run's lease alive while the block runs."""
        follower = Follower(self.attempt_id, self.watch, self.store, self.settings.orphan_timeout_s)
        renewer().follow(run, follower)
        try:
            yield
        finally:
            renewer().leave(run)

    # -- wishes --------------------------------------------------------------------------------
    def kill(self) -> None:
        """Ask the coroutine to end the gang; call it from the loop's thread.

        Hosts with an open channel are told at once, whether or not the store answers: Airflow may end this process
        within seconds. Not after a long silence, though: another process may follow the gang by then.
        """
        self._killed.set()
        if self.on_kill is not None and time.monotonic() - self.proved_at <= PROVED_S:
            self.on_kill()

    def hand_over(self) -> None:
        """Ask the coroutine to stop following; call it from the loop's thread."""
        self._handing_over.set()

    async def check(self, *, at_once: bool = False, runs: bool = False) -> None:
        """Raise when somebody wants this to end.

        :param at_once: look for wishes however short ago the last look was
        :param runs: ranks run, so whoever follows them lets them write a checkpoint when a person stops the trial
        :raises Killed: a person killed the trial
        :raises Stopped: a person stopped it, and nothing runs
        :raises TimedOut: the deadline has passed
        :raises HandedOver: another process takes over
        :raises GangEndedError: the held gang that it uses is no more
        """
        is_due = at_once or time.monotonic() - self._wishes_read_at >= WISH_CHECK_S
        if is_due and not self._killed.is_set():
            self._wishes_read_at = time.monotonic()
            self.wishes = await self.db(self.store.wishes, self.attempt_id)
            if self.wishes.kill_by is not None:
                self._killed.set()
        if self._killed.is_set():
            raise Killed
        if self.wishes.stop_by is not None and not runs:
            raise Stopped
        if self.wishes.gang_ended is not None:
            raise GangEndedError(f"The held gang of this trial has ended: {self.wishes.gang_ended}.")
        if self.deadline is not None and time.time() > self.deadline:
            raise TimedOut
        if self._handing_over.is_set():
            raise HandedOver

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until somebody wants this to end; raises as :meth:`check` does."""
        await self.wished(seconds)
        await self.check()

    async def wished(self, timeout_s: float) -> None:
        """Return when somebody wants this to end, or after ``timeout_s``."""
        waits = [asyncio.ensure_future(self._killed.wait()), asyncio.ensure_future(self._handing_over.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def answer(link: HostLink, command: str, /, *, timeout_s: float = 30.0, **arguments: Any) -> dict[str, Any]:
    """Return the answer of an open channel to a command.

    :raises HostError: no answer within ``timeout_s``, or the supervisor refused
    """
    future = link.call(command, timeout_s=timeout_s, **arguments)
    try:
        async with asyncio.timeout(timeout_s + 1.0):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise HostUnreachableError(
            link.host, f"Host '{link.host}' did not answer '{command}' within {timeout_s:.0f} s."
        ) from None


async def take_over(hook: DtrainHook, trial_id: int, log: TaskLog, *, watcher: str) -> Runtime:
    """Return the runtime of the one follower that may act for the trial's latest attempt from now on.

    :param watcher: who follows, e.g. ``triggerer on host-a``
    """

    def take() -> tuple[Store, int, int]:
        store = hook.store
        attempt_id = store.trial(trial_id).attempt_id
        return store, attempt_id, store.watch(attempt_id, watcher=watcher)

    store, attempt_id, watch = await in_thread(take)
    return Runtime(hook, store, attempt_id, watch, log, watcher=watcher)
