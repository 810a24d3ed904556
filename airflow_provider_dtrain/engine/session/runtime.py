"""Context of the coroutine that runs one attempt: store, hosts, log, and control requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import (
    ATTEMPT_RENEW_S,
    COMMAND_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    CONTROL_CHECK_S,
    HOLD_MARGIN_S,
    PROVED_S,
)
from airflow_provider_dtrain.engine.logs.trial_logs import TrialLogs
from airflow_provider_dtrain.engine.session.background import alongside
from airflow_provider_dtrain.engine.session.lease_renewer import Follower, renewer
from airflow_provider_dtrain.engine.session.store_retry import patiently
from airflow_provider_dtrain.engine.session.threads import in_connect_thread, in_thread
from airflow_provider_dtrain.errors import (
    DtrainError,
    GangEndedError,
    HostUnreachableError,
    UserError,
)
from airflow_provider_dtrain.hooks.secrets import redactor
from airflow_provider_dtrain.store.records.queue import PendingControlRequests

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView, HostRecord
    from airflow_provider_dtrain.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")

#: A watcher of this name ends the attempt or gives it back. It reports nothing to Airflow.
RECOVERY = "recovery"
RECOVERY_DONE = "recovery: done"
#: Seconds after which a connection with secrets that could not be fetched is asked for again.
SECRETS_AGAIN_S = 30.0
#: Commands that a host runs in threads, with the most of them that this process has on one host at a time. A channel
#: runs 64 commands and refuses further ones, which would end the launch of a trial that starts together with many.
TURNS: Mapping[str, int] = {"preflight": 16, "net_connect": 16, "fence": 16, "match": 8}


class Killed(Exception):
    """The trial was killed."""


class Stopped(Exception):
    """A user stopped the trial while its ranks do not run. It ends with its present results."""


class TimedOut(Exception):
    """The task's ``execution_timeout`` has passed."""


class HandedOver(Exception):
    """The process hands the trial over to its next follower."""


class Runtime:
    """One attempt, followed by one process under one watch.

    :param watch: number of this follower; every write carries it
    :param watcher: readable name of this follower, e.g. ``triggerer on host-a``
    """

    def __init__(
        self, hook: DtrainHook, store: Store, attempt_id: int, watch: int, log: TaskLog, *, watcher: str
    ) -> None:
        self.hook = hook
        self.store = store
        self.settings = hook.settings
        self.attempt_id = attempt_id
        self.watch = watch
        self.log = log
        self.watcher = watcher
        #: Rank 0's lines in the task log.
        self.logs = TrialLogs(self)
        #: Unix time when the trial must have ended; None = never
        self.deadline: float | None = None
        self.connect_timeout_s = CONNECT_TIMEOUT_S
        #: Control requests, as of the last read.
        self.control_requests = PendingControlRequests()
        #: time.monotonic() when this process accepted the attempt's grant; None = it did not.
        self.taken_up_at: float | None = None
        #: The attempt as it was when this process began to follow its run; None while it follows none.
        self.followed: AttemptView | None = None
        #: time.monotonic() when the watch was last known to be current.
        self.proved_at = time.monotonic()
        #: Called on a kill, in the event loop's thread. It sends the messages that need no waiting.
        self.on_kill: Callable[[], None] | None = None
        #: Called whenever the trial still waits for slots. It must return at once and raise nothing.
        self.on_waiting: Callable[[], None] | None = None
        #: Called with the sentence that names a slow rank. It must return at once and raise nothing.
        self.on_straggler: Callable[[str], None] | None = None
        #: Host -> time.monotonic() of the last warning that it does not confirm the end of its processes.
        self.silence_logged_at: dict[str, float] = {}
        #: Carrier of the task instance's span; None = the current span is the parent of the trial's span.
        self.trace_parent: Mapping[str, str] | None = None
        self._killed = asyncio.Event()
        self._handing_over = asyncio.Event()
        self._control_read_at = time.monotonic() - CONTROL_CHECK_S
        self._records: dict[str, HostRecord] = {}
        self._redactor: Redactor | None = None
        self._redactor_at = 0.0

    # -- the store -----------------------------------------------------------------------------
    async def db(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a store method, called in a thread.

        It retries while the store is unavailable.

        :raises StoreUnavailableError: the store stayed unavailable for ``timing.STORE_PATIENCE_S``
        """
        return await patiently(self.log, method, *args, **kwargs)

    @property
    def lost_after_s(self) -> float:
        """Seconds of silence after which an unreachable host must have ended its run by itself."""
        return (self.settings.orphan_timeout_s + self.settings.kill_grace_s) * 1.05

    async def is_held(self) -> bool:
        """Return whether a hold may keep a run alive on an unreachable host, however long it was silent."""
        return await self.db(self.store.maintenance.leases_left_s, self.settings.kill_grace_s + HOLD_MARGIN_S) > 0

    async def follow_attempt(self, attempt_id: int) -> None:
        """Continue with another attempt of the trial, under a watch of its own."""
        if attempt_id != self.attempt_id:
            await self.retake(attempt_id)

    async def retake(self, attempt_id: int) -> None:
        """Take over an attempt of the trial from any earlier follower."""
        self.watch = await self.db(self.store.attempts.watch, attempt_id, watcher=self.watcher)
        self.attempt_id = attempt_id
        self.taken_up_at = None
        self.proved_at = time.monotonic()
        self.followed = None
        self.control_requests = PendingControlRequests()
        self._control_read_at = time.monotonic() - CONTROL_CHECK_S

    async def prove_watch(self) -> None:
        """Verify that this process is the follower that may stop and fence.

        :raises StaleWatchError: another process follows the attempt
        :raises StoreSetBackError: the store has lost the watch, the attempt or the grant of its run
        """
        await self.db(self.store.attempts.check_watch, self.attempt_id, self.watch, followed=self.followed)
        self.proved_at = time.monotonic()

    async def view(self) -> AttemptView:
        """Return the attempt as the store has it now."""
        return await self.db(self.store.attempts.get, self.attempt_id)

    async def redactor(self) -> Redactor:
        """Return the mask for the trial's secrets, which are read once, or again after a while if they are not known.

        Everything that ranks wrote passes it before it is stored.
        """
        known = self._redactor
        if known is not None and not (known.withheld and time.monotonic() - self._redactor_at > SECRETS_AGAIN_S):
            return known
        view = await self.view()
        found = self._redactor = self.log.redactor = await redactor(
            await self.db(self.store.configs.get, view.config_id)
        )
        self._redactor_at = time.monotonic()
        if found.withheld:
            self.log.warning("The text of ranks is %s", found.withheld)
        return found

    # -- hosts ---------------------------------------------------------------------------------
    async def record(self, host: str) -> HostRecord:
        """Return a host's registration, read once per follower."""
        if host not in self._records:
            self._records[host] = await self.db(self.store.hosts.get, host)
        return self._records[host]

    async def link(self, host: str, *, to_launch: bool = False) -> HostLink:
        """Return the open channel to a host, and connect when there is none.

        :param to_launch: raise the user's error for a missing interpreter or SSH connection. Otherwise the host counts
            as unreachable: this must neither end a running trial nor keep slots of other hosts.
        :raises HostError: no connection, another machine, or a broken protocol
        :raises UserError: only with ``to_launch``
        """
        record = await self.record(host)
        try:
            link = self.hook.open_link(record)
            if link is None:
                address = await self.hook.aaddress(record)
                link = await in_connect_thread(self.hook.link, record, address, self.connect_timeout_s)
        except UserError as error:
            if to_launch:
                raise
            raise HostUnreachableError(host, str(error)) from error
        link.on_beat = lambda frame, link=link: renewer().beat(link, frame)
        return link

    async def call(
        self, host: str, command: str, /, *, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any
    ) -> JsonObject:
        """Return a host's answer to a command.

        :raises HostError: no answer in time, or the supervisor refused
        """
        link = await self.link(host)
        return await answer(link, command, timeout_s=timeout_s, **arguments)

    async def note_host(self, host: str, state: HostState, reason: str = "") -> bool:
        """Mark a host as reachable or not, and return whether its state changed.

        A state that a user set stays.
        """
        try:
            known = await self.db(self.store.hosts.get, host)
            old = ("unreachable", "lost") if state == "ready" else ("ready", "unreachable")
            if known.state not in old or known.state == state:
                return False
            if state == "lost" and known.state == "ready":
                await self.db(self.store.hosts.set_state, host, HostState.UNREACHABLE, reason)
            await self.db(self.store.hosts.set_state, host, state, reason)
        except DtrainError as error:
            self.log.debug("Host '%s' could not be marked as %s: %s", host, state, error)
            return False
        return True

    # -- leases --------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Renew the attempt in the store while no supervisor sends heartbeats for it."""

        async def renew() -> None:
            while True:
                with contextlib.suppress(DtrainError):
                    await in_thread(self.store.attempts.renew, {self.attempt_id: self.watch})
                await asyncio.sleep(ATTEMPT_RENEW_S)

        async with alongside(renew()):
            yield

    @contextlib.contextmanager
    def lease(self, run: str) -> Any:
        """Keep the run's lease alive while the block runs."""
        follower = Follower(self.attempt_id, self.watch, self.store, self.settings.orphan_timeout_s)
        renewer().follow(run, follower)
        try:
            yield
        finally:
            renewer().leave(run)

    # -- control requests ----------------------------------------------------------------------
    def kill(self) -> None:
        """Ask the coroutine to end the gang. Call it from the event loop's thread.

        Hosts with an open channel are notified at once, whether or not the store answers, because Airflow may end this
        process within seconds. They are not notified when the watch was last verified more than :data:`PROVED_S` ago,
        because another process may follow the gang by then.
        """
        self._killed.set()
        if self.on_kill is not None and time.monotonic() - self.proved_at <= PROVED_S:
            self.on_kill()

    def hand_over(self) -> None:
        """Ask the coroutine to stop following. Call it from the event loop's thread."""
        self._handing_over.set()

    async def check(self, *, at_once: bool = False, runs: bool = False) -> None:
        """Raise when a control request, the deadline or a handover ends the coroutine's work.

        :param at_once: read the control requests even when the last read was less than :data:`CONTROL_CHECK_S` ago
        :param runs: ranks run, so their follower lets them write a checkpoint when a user stops the trial
        :raises Killed: the trial was killed
        :raises Stopped: a user stopped it, and no rank runs
        :raises TimedOut: the deadline has passed
        :raises HandedOver: another process takes over
        :raises GangEndedError: the held gang that it uses has ended
        """
        is_due = at_once or time.monotonic() - self._control_read_at >= CONTROL_CHECK_S
        if is_due and not self._killed.is_set():
            self._control_read_at = time.monotonic()
            self.control_requests = await self.db(self.store.control.pending, self.attempt_id)
            if self.control_requests.kill_by is not None:
                self._killed.set()
        if self._killed.is_set():
            raise Killed
        if self.control_requests.stop_by is not None and not runs:
            raise Stopped
        if self.control_requests.gang_ended is not None:
            raise GangEndedError(f"The held gang of this trial has ended: {self.control_requests.gang_ended}.")
        if self.deadline is not None and time.time() > self.deadline:
            raise TimedOut
        if self._handing_over.is_set():
            raise HandedOver

    async def pause(self, seconds: float) -> None:
        """Wait for the time, a kill or a handover, then raise as :meth:`check` does."""
        await self.interrupted(seconds)
        await self.check()

    async def interrupted(self, timeout_s: float) -> None:
        """Return when a kill or a handover was requested, or after ``timeout_s``."""
        waits = [asyncio.ensure_future(self._killed.wait()), asyncio.ensure_future(self._handing_over.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def answer(
    link: HostLink, command: str, /, *, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any
) -> JsonObject:
    """Return the answer of an open channel to a command.

    :raises HostError: no answer within ``timeout_s``, or the supervisor refused
    """
    async with turn(link.host, command) if command in TURNS else contextlib.nullcontext():
        return await _answer(link, command, timeout_s, arguments)


async def _answer(link: HostLink, command: str, timeout_s: float, arguments: Mapping[str, Any]) -> JsonObject:
    future = link.call(command, timeout_s=timeout_s, **arguments)
    try:
        async with asyncio.timeout(timeout_s + 1.0):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise HostUnreachableError(
            link.host, f"Host '{link.host}' did not answer '{command}' within {timeout_s:.0f} s."
        ) from None


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], asyncio.Semaphore]]
_turns = weakref.WeakKeyDictionary()


def turn(of: str, what: str) -> asyncio.Semaphore:
    """Return the turns of an activity, which all coroutines of an event loop share.

    :param of: a host or a search
    :param what: one of :data:`TURNS`, or another activity, which one coroutine carries out at a time
    """
    of_loop = _turns.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault((of, what), asyncio.Semaphore(TURNS.get(what, 1)))


async def take_over(hook: DtrainHook, trial_id: int, log: TaskLog, *, watcher: str) -> Runtime:
    """Take over a trial's latest attempt, and return the runtime of its new follower.

    From now on, only this follower may act for the attempt.

    :param watcher: readable name of the follower, e.g. ``triggerer on host-a``
    """

    def take() -> tuple[Store, int, int]:
        store = hook.store
        attempt_id = store.trials.get(trial_id).attempt_id
        return store, attempt_id, store.attempts.watch(attempt_id, watcher=watcher)

    store, attempt_id, watch = await in_thread(take)
    return Runtime(hook, store, attempt_id, watch, log, watcher=watcher)
