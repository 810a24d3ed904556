"""Background recovery: slots of ended gangs, attempts whose follower died, unreachable hosts.

No daemon runs it. Every process that follows a trial runs one round when it begins, and further rounds while it waits
for slots. The command ``hosts probe`` recovers its hosts, and ``hosts enable`` a host that was unreachable. Other
commands recover only the gangs that they name. See docs/decisions/0013.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.launch.requirements import start_problem
from airflow_provider_dtrain.core.lifecycle.states import AttemptState, HostState
from airflow_provider_dtrain.core.lifecycle.timing import (
    CLAIM_S,
    CONNECT_S,
    RECOVERY_BUSY_EVERY_S,
    RECOVERY_EVERY_S,
    RECOVERY_MOST_S,
)
from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.reconciliation import reconcile_host
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import Housekeeping, TaskLog
from airflow_provider_dtrain.engine.session.background import alongside
from airflow_provider_dtrain.engine.session.runtime import RECOVERY, RECOVERY_DONE, Runtime
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.slots.source import slots_of
from airflow_provider_dtrain.engine.upkeep.external_jobs import tend_jobs
from airflow_provider_dtrain.errors import DtrainError, HostError, HostLostError, HostSilentError
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store

log = logging.getLogger(__name__)

#: Seconds after which a state that was not seen again has changed.
FORGET_S = 2 * RECOVERY_MOST_S
#: Attempts and hosts that are recovered at the same time.
MOST_PROBES = 8

#: States of a run that has no processes and never will have any again.
_OVER, _ABSENT = ("ended", "lost"), ("gone",)


async def recover(hook: DtrainHook, *, host: str | None = None) -> list[str]:
    """Run one recovery round, and return the hosts where slots became free.

    :param host: only gangs that hold slots there, and no probes; None = everything
    """
    return await RecoveryPass(hook).run(host)


class RecoveryPass:
    """Recovery rounds of one process.

    It remembers for how long each silent attempt has been unchanged.
    """

    def __init__(self, hook: DtrainHook) -> None:
        self.hook = hook
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        #: True when the last round left something to do.
        self.is_busy = False
        #: (attempt, watch, renewal) -> time.monotonic() when it was first and last seen so
        self._seen: dict[tuple[int, int, Any], tuple[float, float]] = {}
        self._limit = asyncio.Semaphore(MOST_PROBES)
        #: Unexpected errors that were logged.
        self._reported: set[str] = set()

    async def run(self, host: str | None = None) -> list[str]:
        """Run one round, and return the hosts where slots became free."""
        store = await in_thread(lambda: self.hook.store)
        views = await in_thread(store.recovery.recoverable)
        wanted = [view for view in views if host is None or host in view.held_hosts]
        self._note(views)
        probes = [] if host is not None else await in_thread(store.recovery.hosts_to_probe)
        found = await asyncio.gather(
            *(self._bounded(self._recover(store, view)) for view in wanted),
            *(self._bounded(self._probe(store, name)) for name in probes),
            *(self._bounded(self._reconcile(store, name)) for name in await self._doubtful(store, host)),
            *([] if host is not None else [self._bounded(self._tend_jobs())]),
        )
        self.is_busy = len(wanted) > 0 or len(probes) > 0
        return sorted({name for names in found for name in names})

    def _note(self, views: Sequence[AttemptView]) -> None:
        """Record since when each of these attempts has been unchanged.

        An attempt that another process recovers now is seen again later.
        """
        now = time.monotonic()
        for view in views:
            first, _ = self._seen.get(_sighting(view), (now, now))
            self._seen[_sighting(view)] = first, now
        self._seen = {key: times for key, times in self._seen.items() if now - times[1] < FORGET_S}

    async def _doubtful(self, store: Store, host: str | None) -> list[str]:
        """Return the hosts whose own status must be requested."""
        return [host] if host is not None else await in_thread(store.hosts.with_blocked_slots)

    async def _bounded(self, work: Any) -> list[str]:
        async with self._limit:
            try:
                async with asyncio.timeout(RECOVERY_MOST_S):
                    return list(await work)
            except (DtrainError, TimeoutError) as error:
                log.debug("Recovery is retried later: %s", error or "it timed out")
                return []
            except Exception as error:
                # An unexpected error of one attempt or host must not block the slots of all the rest.
                self.report(error)
                return []

    def report(self, error: Exception) -> None:
        """Log an unexpected error once: this log is that of another trial's task."""
        message = f"{type(error).__name__}: {error}"
        if message not in self._reported:
            self._reported.add(message)
            log.warning("Background recovery of another trial or a host failed, and is retried: %s", message)
        log.debug("Recovery failed", exc_info=error)

    async def _tend_jobs(self) -> list[str]:
        await tend_jobs(self.hook)
        return []

    async def _reconcile(self, store: Store, host: str) -> list[str]:
        await reconcile_host(runtime_of(self.hook, store), host)
        return []

    async def _probe(self, store: Store, host: str) -> list[str]:
        """Mark a host as ready again when it answers."""
        rt = runtime_of(self.hook, store)
        link = await rt.link(host)
        facts = await rt.call(host, "probe")
        hello = link.hello
        await rt.db(
            store.hosts.update_facts,
            host,
            facts,
            machine_id=hello.machine_id,
            boot_id=hello.boot_id,
            pid_ns=str(hello.pid_ns),
        )
        await reconcile_host(rt, host)
        if problem := start_problem(facts):
            await rt.note_host(host, HostState.UNREACHABLE, plain(problem, 500))
        else:
            await rt.note_host(host, HostState.READY)
        return []

    # -- one attempt ---------------------------------------------------------------------------
    async def _recover(self, store: Store, view: AttemptView) -> list[str]:
        if not await in_thread(store.recovery.claim, view.allocation_id, self.name, CLAIM_S):
            return []
        async with self._claiming(store, view.allocation_id):
            # The attempt may have ended before the claim.
            view = await in_thread(store.attempts.get, view.attempt_id)
            if view.ended_at is not None:
                freed = await teardown.release(await self._take(store, view), view)
            else:
                freed = await self._recover_attempt(store, view)
        for host in freed:
            # The host answered, so its slots are usable again at once.
            await runtime_of(self.hook, store).note_host(host, HostState.READY)
        return freed

    @contextlib.asynccontextmanager
    async def _claiming(self, store: Store, allocation_id: int) -> AsyncIterator[None]:
        async def renew() -> None:
            while True:
                await asyncio.sleep(CLAIM_S / 3)
                with contextlib.suppress(DtrainError):
                    await in_thread(store.recovery.claim, allocation_id, self.name, CLAIM_S)

        try:
            async with alongside(renew()):
                yield
        finally:
            with contextlib.suppress(DtrainError):
                await asyncio.shield(in_thread(store.recovery.end, allocation_id, self.name))

    async def _take(self, store: Store, view: AttemptView) -> Runtime:
        watch = await in_thread(store.attempts.watch, view.attempt_id, watcher=RECOVERY)
        return runtime_of(self.hook, store, view.attempt_id, watch, trial_id=view.trial_id)

    async def _recover_attempt(self, store: Store, view: AttemptView) -> list[str]:
        """Recover a silent attempt, unless it still has live ranks.

        Live ranks keep running, and their host ends them after ``orphan_timeout``.
        """
        if view.plan is None:
            return await self._put_back(store, view)
        hosts = await asyncio.gather(*(self._state_of(store, view, host) for host in view.placement))
        states = dict(zip(view.placement, hosts, strict=True))
        if any(state == "alive" for state in states.values()):
            return []
        is_silent = any(isinstance(state, HostError) for state in states.values())
        if is_silent and await runtime_of(self.hook, store).is_held():
            return []
        lost = self._lost(view, states)
        if lost is None:
            return []
        if view.state == AttemptState.STARTING and "started" not in states.values():
            return await self._put_back(store, view)
        return await self._salvage(store, view, lost)

    async def _state_of(self, store: Store, view: AttemptView, host: str) -> str | HostError:
        """Return the state of the attempt's run on a host, or the error when the host does not answer.

        The states are ``alive``, ``started`` (and over), ``over`` (before a rank started) and ``absent``.
        """
        try:
            status = await runtime_of(self.hook, store).call(host, "status", runs=[view.run] if view.run else [])
        except HostError as error:
            return error
        run = (status.get("runs") or {}).get(view.run)
        if not isinstance(run, Mapping) or run.get("state") in _ABSENT or _is_namesake(view, host, run):
            return "absent"
        if run.get("state") not in _OVER:
            return "alive"
        has_ranks = any(isinstance(rank, Mapping) and rank.get("pid") for rank in run.get("ranks") or ())
        return "started" if has_ranks else "over"

    def _lost(self, view: AttemptView, states: Mapping[str, str | HostError]) -> dict[str, HostError] | None:
        """Return the hosts that will send nothing further, or None while one may still have live ranks."""
        lost: dict[str, HostError] = {}
        limit_s = runtime_of(self.hook, self.hook.store).lost_after_s
        for host, state in states.items():
            if state == "absent":
                lost[host] = HostLostError(host, f"Host '{host}' no longer has any trace of run {view.run}.")
            elif isinstance(state, HostError):
                now = time.monotonic()
                silent_s = now - self._seen.get(_sighting(view), (now, now))[0]
                if not self.hook.settings.orphan_timeout_s or silent_s <= limit_s:
                    return None
                lost[host] = HostSilentError(host, f"Host '{host}' did not answer for {limit_s:.0f} s: {state}")
        return lost

    async def _put_back(self, store: Store, view: AttemptView) -> list[str]:
        """Return an attempt to the queue when its follower died before a rank was started."""
        rt = await self._take(store, view)
        # Until this process took the watch, the follower could still write a plan and send it to hosts.
        view = await rt.view()
        clear = await teardown.release(rt, view)
        if not await slots_of(rt, view).uncleared():
            await rt.db(store.queue.put_back, rt.attempt_id, rt.watch, "its follower died before it was started")
        await self._give_back(rt)
        return clear

    async def _salvage(self, store: Store, view: AttemptView, lost: Mapping[str, HostError]) -> list[str]:
        """Commit the data that the hosts still have of an attempt, and end it by the usual rules."""
        rt = await self._take(store, view)
        for host, error in lost.items():
            if isinstance(error, HostSilentError):
                await rt.note_host(host, HostState.LOST, str(error))
        runner = AttemptRunner(rt)
        try:
            outcome = await ended(runner, lost)
        finally:
            await self._give_back(rt)
        if outcome is not None:
            rt.log.info("Recovery ended the trial, which no longer had a follower: %s", outcome.state)
        left = (await in_thread(store.attempts.get, view.attempt_id)).held_hosts
        return [host for host in view.held_hosts if host not in left]

    async def _give_back(self, rt: Runtime) -> None:
        """Let a returning follower take the attempt back."""
        view = await rt.view()
        if view.watch == rt.watch and view.ended_at is None:
            await rt.db(rt.store.attempts.watch, rt.attempt_id, watcher=RECOVERY_DONE)


def _is_namesake(view: AttemptView, host: str, run: Mapping[str, Any]) -> bool:
    """Return whether a run on a host has the attempt's name but is another launch."""
    mine = teardown.launch_of(view, host)
    there = run.get("launch")
    return mine is not None and there is not None and mine != there


def _sighting(view: AttemptView) -> tuple[int, int, Any]:
    return view.attempt_id, view.watch, view.renewed_at


def runtime_of(
    hook: DtrainHook, store: Store, attempt_id: int = 0, watch: int = 0, *, trial_id: int | None = None
) -> Runtime:
    """Return a runtime that acts in place of an attempt's follower.

    :param watch: watch that was taken under the name of recovery
    :param trial_id: trial that the lines for developers name; None = no trial
    """
    housekeeping = Housekeeping(log, {"trial_id": trial_id})
    rt = Runtime(hook, store, attempt_id, watch, TaskLog(housekeeping, None), watcher=RECOVERY)
    rt.connect_timeout_s = CONNECT_S
    return rt


# -- while a process waits -------------------------------------------------------------------------
class _Shared:
    """Recovery rounds that all waiting coroutines of an event loop share."""

    def __init__(self, hook: DtrainHook) -> None:
        self.round = RecoveryPass(hook)
        self.users = 0
        self.wanted_once = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        while self.users > 0 or self.wanted_once:
            self.wanted_once = False
            try:
                await self.round.run()
            except DtrainError as error:
                log.debug("Recovery is retried later: %s", error)
            except Exception as error:
                self.round.report(error)
            if self.users > 0:
                await asyncio.sleep(RECOVERY_BUSY_EVERY_S if self.round.is_busy else RECOVERY_EVERY_S)


_shared_rounds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = weakref.WeakKeyDictionary()


class BackgroundRecovery:
    """Background recovery from the first :meth:`tick` to :meth:`close`, shared within an event loop."""

    def __init__(self, hook: DtrainHook) -> None:
        of_loop = _shared_rounds.setdefault(asyncio.get_running_loop(), {})
        self._shared = of_loop.setdefault(hook.settings.sql_alchemy_conn, _Shared(hook))
        self._is_user = False

    def once(self) -> None:
        """Run one round in the background."""
        self._shared.wanted_once = True
        self._shared.start()

    def tick(self) -> None:
        """Run rounds in the background from now on."""
        if not self._is_user:
            self._is_user = True
            self._shared.users += 1
        self._shared.start()

    async def close(self) -> None:
        """Stop the rounds, unless other coroutines still wait."""
        if self._is_user:
            self._is_user = False
            self._shared.users -= 1


async def ended(runner: AttemptRunner, lost: Mapping[str, HostError]) -> Outcome | None:
    """End an attempt with its hosts' data, or without the data when they cannot be read.

    :param lost: hosts that do not answer, each with its error
    """
    try:
        return await runner.salvage(lost)
    except DtrainError:
        raise
    except Exception as error:
        # The trial that ends has the error in its failure.
        runner.rt.log.debug("It is ended without its hosts' data, which cannot be read: %s", error)
        return await runner.end_unread(error)
