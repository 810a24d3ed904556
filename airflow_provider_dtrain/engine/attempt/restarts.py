"""Restarts: a next attempt on the same gang or on a new one, or the end of the trial."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.untrusted_json import is_count
from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.failure_analysis import (
    KEEP_GANG_S,
    back_off_s,
    platform_back_off_s,
    shortened,
)
from airflow_provider_dtrain.engine.attempt.outcome import Failure, Outcome, State
from airflow_provider_dtrain.engine.attempt.sampling import MOST_DRAWS, redrawn
from airflow_provider_dtrain.engine.copies.outputs import beginning
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    HostRefusedError,
    HostSilentError,
    HostUnreachableError,
    InvalidHPError,
    LogPolicyError,
    MaxRuntimeError,
    SlotBusyError,
    TrainingRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from airflow_provider_dtrain.engine.attempt.graceful_stop import GiveWay
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Failures of kind ``user`` that another attempt would repeat.
FINAL = (InvalidHPError, LogPolicyError, TrainingRefusedError, MaxRuntimeError)
#: Seconds between two attempts to fence a host that does not answer.
FENCE_AGAIN_S = 10.0
#: Error codes of a host that has seen later grants, or the end of this run: the store was restored from a backup, or an
#: earlier follower had given the attempt up. A new grant solves both.
BEHIND = ("stale_token", "tombstone", "other_launch")
#: Launches of a trial that a host may refuse, one after the other, before the trial avoids it: new grants do not help.
MOST_REFUSALS = 3
#: The host did not answer, or its slots are in use elsewhere. The store records this, and recovery checks when it is
#: over, so a trial that needs the host can wait for it.
AWAY = (HostUnreachableError, HostSilentError, SlotBusyError)
#: Consecutive platform failures after which the task fails, and Airflow retries it.
PLATFORM_FAILURES = 8
#: Errors of a host that refuses a launch.
REFUSALS = ("HostRefusedError", "SlotBusyError")


def restart_of(view: AttemptView) -> bool | None:
    """Return whether an ended trial's next attempt counts as a restart, or None when it has none.

    A trial that failed in the user's code has restarts left only when its follower died before it could start one. A
    trial that Airflow killed continues: Airflow reruns a task that it lost, but not a task that a user marked.
    """
    if view.trial_state == "killed" and (view.failure or {}).get("error") == "TaskEndedError":
        return False
    if view.trial_state != "errored" or view.failure is None:
        return None
    if view.failure.get("kind") != "user":
        return False
    has_left = view.failure.get("error") == "RankFailedError" and view.restarts < view.max_restarts
    return True if has_left else None


class Restarting:
    """Part of the attempt runner that decides about the next attempt."""

    rt: Runtime
    #: The follower has died: the attempt is ended by the rules, and no new attempt starts.
    salvaging = False
    #: Seconds that the latest attempt that released its gang took to write its checkpoint and end; None = none did.
    stop_took_s: float | None = None

    async def _attempt_failed(self, view: AttemptView, error: DtrainError) -> Outcome | None:
        """Start again from the latest checkpoint, or end the trial."""
        if isinstance(error, HostError):
            return await self._host_failed(view, error)
        if error.kind == "platform":
            return await self._platform_failed(view, error)
        if isinstance(error, InvalidHPError) and await self._draw_again(view, error):
            return None
        if isinstance(error, FINAL) or view.restarts >= view.max_restarts:
            return await self._finish(view, "errored", error)
        if self.salvaging:
            return await self._finish(view, "errored", error, is_final=False)
        attempts = await self.rt.db(self.rt.store.trial_attempts, view.trial_id)
        self.rt.log.error("%s", shortened(str(error), {one.number: one.failure for one in attempts}))
        if set(await teardown.fence(self.rt, view)) != set(view.held_hosts):
            if view.is_held_gang:
                return await self._finish(view, "errored", error)
            # The gang is broken up: slots of silent hosts stay taken, and the trial waits for another gang.
            await self._until_gone(view)
        await self._next_attempt(error, counted=True)
        source, pause_s = (await self._job(await self.rt.view())).checkpoint_source, back_off_s(view.restarts)
        where = f"step {source.step}" if source is not None else await beginning(self.rt, view)
        self.rt.log.warning("Restart %d of %d in %.0f s from %s", view.restarts + 1, view.max_restarts, pause_s, where)
        await self._back_off(pause_s)
        return None

    async def _draw_again(self, view: AttemptView, error: InvalidHPError) -> bool:
        """Start an attempt with other hyperparameters, and return False when there are none.

        The attempt does not count as a restart.
        """
        found = await self.rt.db(redrawn, self.rt.store, view, MOST_DRAWS)
        if found is None:
            return False
        number, hparams = found
        self.rt.log.warning("%s", error)
        clear = set(await teardown.fence(self.rt, view)) == set(view.held_hosts)
        if view.is_held_gang and not clear:
            return False
        if self.salvaging or not clear:
            await self._until_gone(view)
        # In this order: a process that takes over in between sees them rejected again, and samples the same ones.
        await self._next_attempt(error, counted=False)
        await self.rt.db(self.rt.store.set_hparams, self.rt.attempt_id, self.rt.watch, hparams, number)
        self.rt.log.warning("New hyperparameters, sample %d of at most %d: %s", number, MOST_DRAWS, hparams)
        return True

    async def _platform_failed(self, view: AttemptView, error: DtrainError) -> Outcome | None:
        """Start again after a failure that neither the code nor a host caused.

        A long pause releases the gang.
        """
        attempts = await self.rt.db(self.rt.store.trial_attempts, view.trial_id)
        before = 0
        for one in reversed([one for one in attempts if one.number < view.number]):
            if (one.failure or {}).get("kind") != "platform":
                break
            before += 1
        if self.salvaging or before + 1 >= PLATFORM_FAILURES:
            return await self._finish(view, "errored", error)
        pause_s = platform_back_off_s(before)
        self.rt.log.warning("%s The next attempt starts in %.0f s and does not count as a restart.", error, pause_s)
        clear = set(await teardown.fence(self.rt, view)) == set(view.held_hosts)
        if view.is_held_gang and not clear:
            return await self._finish(view, "errored", error)
        if not clear or (pause_s > KEEP_GANG_S and not view.is_held_gang):
            await self._until_gone(view)
            await self._back_off(pause_s)
            await self._next_attempt(error, counted=False)
            return None
        await self._next_attempt(error, counted=False)
        await self._back_off(pause_s)
        return None

    async def _host_failed(
        self, view: AttemptView, error: HostError, also: Mapping[str, HostError] | None = None
    ) -> Outcome | None:
        """Wait for other hosts after a host failed, or end the attempt when no other hosts can ever serve it.

        :param also: further hosts that failed the attempt, and their errors
        """
        failed: dict[str, HostError] = {error.host: error, **(also or {})}
        self.rt.log.warning("%s", error)
        if isinstance(error, HostUnreachableError):
            await self.rt.note_host(error.host, "unreachable", str(error))
        behind = await self._is_behind(error)
        refusals = await self._refusals(view, error.host) + 1 if behind else 0
        if refusals >= MOST_REFUSALS:
            behind, error = False, _refused_again(error, refusals)
        if not view.is_held_gang:
            # A silent host has already been given its orphan timeout, so nothing can still be running there.
            await self._until_gone(view, gone={host for host in failed if isinstance(failed[host], HostSilentError)})
        if self.salvaging or view.is_held_gang:
            return await self._finish(await self.rt.view(), "errored", error)
        ticket = await self.rt.db(
            self.rt.store.move_on, self.rt.attempt_id, self.rt.watch, failure=failure_dict(error),
            exclude_host=None if behind else error.host, also=tuple(also or ()), away=isinstance(error, AWAY),
        )  # fmt: skip
        if ticket is None:
            return await self._finish(await self.rt.view(), "errored", error)
        names = ", ".join(f"'{name}'" for name in failed)
        if behind:
            self.rt.log.warning(
                "Host %s has seen a later grant or the end of this run; the trial waits for another grant", names
            )
        else:
            how = ("s", names, "are") if also else ("", names, "is")
            self.rt.log.warning(
                "Host%s %s %s left out of this trial from now on, unless no other hosts can serve it", *how
            )
        await self.rt.follow_attempt(ticket.attempt_id)
        return None

    async def _gave_way(self, view: AttemptView, give_way: GiveWay, error: DtrainError | None) -> Outcome | None:
        """Release the gang and wait for another one, to resume from the latest checkpoint.

        :param error: why the ranks ended, when not by themselves; not a failure of the trial
        """
        assert give_way.words is not None
        if self.rt.wishes.stop_by is not None:
            return await self._stopped(view)
        self.stop_took_s = give_way.took_s or 0.0
        if error is not None and not give_way.by_signal:
            self.rt.log.warning("While it was asked to stop: %s", shortened(str(error), {}))
        await self._until_gone(view)
        ticket = await self.rt.db(
            self.rt.store.yield_gang, self.rt.attempt_id, self.rt.watch, reason=give_way.words, paused=give_way.paused
        )
        self.rt.log.warning(
            "The gang held its slots for %.0f s and released them %.0f s after the request (%s). The trial %s.",
            (datetime.now(UTC) - (view.granted_at or view.created_at)).total_seconds(), self.stop_took_s,
            give_way.words, "is paused" if give_way.paused else "keeps its place in the queue",
        )  # fmt: skip
        if not self.salvaging:
            await self.rt.follow_attempt(ticket.attempt_id)
        return None

    async def _look_at(self, error: HostError) -> list[str]:
        """Reconcile tokens and slots with a host, and return its runs that the store has forgotten."""
        from airflow_provider_dtrain.engine.upkeep.recovery import look_at_host

        try:
            if isinstance(error, SlotBusyError) and isinstance(slot := error.details.get("slot"), int):
                await self.rt.db(self.rt.store.mark_slot, error.host, slot, "busy_elsewhere", str(error))
            return await look_at_host(self.rt, error.host)
        except DtrainError as problem:
            self.rt.log.warning("Host '%s' could not be checked: %s", error.host, problem)
            return []

    async def _is_behind(self, error: HostError) -> bool:
        """Return whether a new grant solves what a host has refused, after a look at the host."""
        if isinstance(error, SlotBusyError):
            return error.details.get("run") in await self._look_at(error)
        if not isinstance(error, HostRefusedError) or error.code not in BEHIND:
            return False
        await self._look_at(error)
        return await self._can_pass(error)

    async def _refusals(self, view: AttemptView, host: str) -> int:
        """Return how often a host has refused the trial, as the store has recorded it in earlier attempts.

        A failure of the user's code or a preemption ends the count, because the attempt's launch was accepted.
        """
        attempts = await self.rt.db(self.rt.store.trial_attempts, view.trial_id)
        failures = [one.failure or {} for one in reversed(attempts) if one.number < view.number]
        latest = itertools.takewhile(lambda failure: failure.get("kind") in ("infra", "platform"), failures)
        return sum(one.get("host") == host and one.get("error") in REFUSALS for one in latest)

    async def _can_pass(self, error: HostError) -> bool:
        """Return False when a host has recorded a token for a slot that no later grant will have."""
        from airflow_provider_dtrain.engine.upkeep.recovery import accept_token

        details = error.details if isinstance(error, HostRefusedError) else {}
        if "recorded" not in details:
            return True
        recorded = details["recorded"]
        return is_count(recorded) and await accept_token(self.rt, error.host, recorded)

    async def _until_gone(self, view: AttemptView, *, gone: AbstractSet[str] = frozenset()) -> None:
        """Wait until no process of the attempt can still be running.

        A host that does not answer is given the time after which its supervisor ends the run by itself.

        :param gone: hosts where nothing can run, although they have not confirmed it
        """
        give_up_at = time.monotonic() + self.rt.gone_after_s
        async with self.rt.renewing():
            while True:
                clear = await teardown.release(self.rt, view)
                missing = set(view.held_hosts) - set(clear) - gone
                never = not self.rt.settings.orphan_timeout_s or await self.rt.is_held()
                if not missing or view.plan is None or (time.monotonic() > give_up_at and not never):
                    return
                self.rt.log.warning("Waiting for %s to confirm that %s is gone", ", ".join(sorted(missing)), view.label)
                await self.rt.pause(FENCE_AGAIN_S)
                view = await self.rt.view()

    async def _back_off(self, pause_s: float) -> None:
        async with self.rt.renewing():
            await self.rt.pause(pause_s)

    async def _next_attempt(self, error: DtrainError, *, counted: bool) -> None:
        ticket = await self.rt.db(
            self.rt.store.next_attempt, self.rt.attempt_id, self.rt.watch, failure=failure_dict(error), counted=counted
        )
        await self.rt.follow_attempt(ticket.attempt_id)

    if TYPE_CHECKING:

        async def _finish(
            self, view: AttemptView, state: State, error: DtrainError | None, *, is_final: bool = True
        ) -> Outcome: ...

        async def _stopped(self, view: AttemptView) -> Outcome: ...

        async def _job(self, view: AttemptView) -> Job: ...


def _refused_again(error: HostError, times: int) -> HostError:
    """Return the error of a host that has refused too many launches of a trial."""
    if not isinstance(error, HostRefusedError):
        return error
    words = (
        f"Host '{error.host}' refused {times} launches of this trial in a row, and new grants did not help. "
        f"The latest answer: {error} Check the host with: airflow dtrain hosts probe {error.host}"
    )
    return HostRefusedError(error.host, words, code=error.code, details=error.details)


def failure_dict(error: DtrainError) -> Mapping[str, Any]:
    """Return a failure as the store keeps it."""
    return asdict(Failure.of(error))
