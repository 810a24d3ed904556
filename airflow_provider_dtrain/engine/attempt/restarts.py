"""Restarts: execution of the restart policy for an attempt that failed or gave way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.lifecycle.after_failure import (
    BEHIND,
    Action,
    DrawAgain,
    Facts,
    Fence,
    Finish,
    GiveBack,
    MoveOn,
    Request,
    Restart,
    Stop,
    after_failure,
    losses_in_a_row,
    platform_failures_in_a_row,
    refusals_in_a_row,
)
from airflow_provider_dtrain.core.lifecycle.shard_blame import fruitless_in_a_row, shard_failures
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import FENCE_AGAIN_S
from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.core.untrusted_json import is_count
from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.bad_shards import bad_shard
from airflow_provider_dtrain.engine.attempt.failure_analysis import shortened
from airflow_provider_dtrain.engine.attempt.job import job_of
from airflow_provider_dtrain.engine.attempt.outcome import Outcome, failure_dict
from airflow_provider_dtrain.engine.attempt.reconciliation import accept_token, reconcile_host
from airflow_provider_dtrain.engine.attempt.sampling import MOST_DRAWS, redrawn
from airflow_provider_dtrain.engine.attempt.trial_end import finish, stopped
from airflow_provider_dtrain.engine.copies.outputs import beginning
from airflow_provider_dtrain.engine.slots.source import slots_of
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    HostRefusedError,
    HostSilentError,
    HostUnreachableError,
    InvalidHPError,
    ResultsLostError,
    ShardFailedError,
    SlotBusyError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from airflow_provider_dtrain.engine.attempt.graceful_stop import GiveWay
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An attempt that failed or gave way, with everything that an action needs."""

    view: AttemptView
    #: None: its ranks ended because they were asked to.
    error: DtrainError | None
    #: Further hosts that failed it, and their errors.
    also: Mapping[str, HostError] = field(default_factory=dict)
    #: The request to release the gang that its ranks followed.
    give_way: GiveWay | None = None
    #: Number and hyperparameters of the next sample, for a trial whose own were rejected.
    draw: tuple[int, Hyperparameters] | None = None
    #: Failures of the trial's attempts: number -> failure.
    failures: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)

    @property
    def earlier(self) -> Sequence[Mapping[str, Any] | None]:
        """Failures of earlier attempts, latest first."""
        return [self.failures[number] for number in sorted(self.failures, reverse=True) if number < self.view.number]

    @property
    def hosts(self) -> Mapping[str, HostError]:
        """Hosts that failed the attempt, and their errors."""
        return {self.error.host: self.error, **self.also} if isinstance(self.error, HostError) else {}


class Restarts:
    """Executor of the restart policy for one trial.

    :param rt: follower of the trial
    """

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        #: The follower has died: the attempt is ended by the rules, and no new attempt starts.
        self.salvaging = False
        #: Seconds that the latest attempt that released its gang took to write its checkpoint and end; None = none did.
        self.stop_took_s: float | None = None

    async def attempt_failed(
        self,
        view: AttemptView,
        error: DtrainError | None,
        *,
        also: Mapping[str, HostError] | None = None,
        give_way: GiveWay | None = None,
    ) -> Outcome | None:
        """Return the trial's outcome after a failed or preempted attempt, or None when the trial continues.

        :param also: further hosts that failed the attempt, and their errors
        :param give_way: the request to release the gang that the ranks followed
        """
        error = await slots_of(self.rt, view).explained(error)
        failed = await self._collected(Failed(view=view, error=error, also=also or {}, give_way=give_way))
        facts = await self._facts(failed)
        if facts.is_refused_too_often and isinstance(error, HostRefusedError):
            failed = replace(failed, error=_refused_again(error, facts.refusals + 1))
        if facts.has_bad_shard and isinstance(error, ShardFailedError):
            failed = replace(failed, error=bad_shard(error, facts))
        action = after_failure(facts)
        if isinstance(action, Fence):
            self._announce(failed, action.then)
            is_clear = set(await teardown.fence(self.rt, view)) == set(view.held_hosts)
            # Slots that their source has taken cannot be used again, although nothing is left on them.
            is_clear = is_clear and not await slots_of(self.rt, view).clear_hosts() & set(view.placement)
            action = after_failure(replace(facts, is_clear=is_clear))
        return await self._execute(failed, action)

    async def _collected(self, failed: Failed) -> Failed:
        view = failed.view
        attempts = await self.rt.db(self.rt.store.attempts.of_trial, view.trial_id)
        draw = None
        if isinstance(failed.error, InvalidHPError):
            draw = await self.rt.db(redrawn, self.rt.store, view, MOST_DRAWS)
        return replace(failed, draw=draw, failures={one.number: one.failure for one in attempts})

    async def _facts(self, failed: Failed) -> Facts:
        """Return the facts for the restart policy. A host that failed the attempt is asked for its state."""
        view = failed.view
        error = failed.error
        is_behind = False
        host = getattr(error, "host", "")
        if isinstance(error, HostError) and failed.give_way is None:
            self.rt.log.warning("%s", error)
            if isinstance(error, HostUnreachableError):
                await self.rt.note_host(error.host, HostState.UNREACHABLE, str(error))
            is_behind = await self._is_behind(error)
        return Facts(
            error=type(error).__name__ if error is not None else None,
            kind=error.kind if error is not None else None,
            restarts=view.restarts,
            max_restarts=view.max_restarts,
            is_held_gang=view.is_held_gang,
            is_salvaged=self.salvaging,
            has_draw=failed.draw is not None,
            platform_failures=platform_failures_in_a_row(failed.earlier),
            is_behind=is_behind,
            refusals=refusals_in_a_row(failed.earlier, host),
            losses=losses_in_a_row(failed.earlier) if isinstance(error, ResultsLostError) else 0,
            **await self._shard_facts(failed),
            request=self._request(failed.give_way),
        )

    async def _shard_facts(self, failed: Failed) -> dict[str, Any]:
        if not isinstance(failed.error, ShardFailedError):
            return {}
        shard = failed.error.shard
        section = (await job_of(self.rt, failed.view)).config.inference
        return {
            "shard_failures": shard_failures(failed.earlier).get(shard["index"], 0),
            "skips_bad_shards": section is not None and section.on_bad_shard == "skip",
            "fruitless": fruitless_in_a_row(failed.earlier),
            "finished": shard["finished"],
        }

    def _request(self, give_way: GiveWay | None) -> Request | None:
        if give_way is None:
            return None
        if self.rt.control_requests.stop_by is not None:
            return "stopped"
        return "paused" if give_way.paused else "preempted"

    def _announce(self, failed: Failed, action: Restart | DrawAgain) -> None:
        if isinstance(action, DrawAgain):
            self.rt.log.warning("%s", failed.error)
        elif action.counted:
            self.rt.log.error("%s", shortened(str(failed.error), failed.failures))
        else:
            self.rt.log.warning(
                "%s The next attempt starts in %.0f s and does not count as a restart.", failed.error, action.pause_s
            )

    async def _execute(self, failed: Failed, action: Action) -> Outcome | None:
        match action:
            case Restart():
                await self._restart(failed, action)
            case DrawAgain():
                await self._draw_again(failed, action)
            case GiveBack():
                await self._give_back(failed, action)
            case MoveOn():
                return await self._move_on(failed, action)
            case Stop():
                return await stopped(self.rt, failed.view)
            case Finish():
                return await self._end(failed, action)
            case Fence():
                raise AssertionError("The hosts have answered the fence already.")
        return None

    async def _end(self, failed: Failed, action: Finish) -> Outcome:
        if action.waits_for_end:
            await self._until_ended(failed.view, ended=_silent(failed))
        return await finish(self.rt, await self.rt.view(), "errored", failed.error, is_final=not action.resumes)

    async def _restart(self, failed: Failed, action: Restart) -> None:
        view = failed.view
        if not action.keeps_gang:
            await self._until_ended(view)
        if action.pauses_first:
            await self._back_off(action.pause_s)
        await self._next_attempt(failed.error, counted=action.counted)
        if action.counted:
            source = (await job_of(self.rt, await self.rt.view())).checkpoint_source
            where = f"step {source.step}" if source is not None else await beginning(self.rt, view)
            self.rt.log.warning(
                "Restart %d of %d in %.0f s from %s", view.restarts + 1, view.max_restarts, action.pause_s, where
            )
        if not action.pauses_first:
            await self._back_off(action.pause_s)

    async def _draw_again(self, failed: Failed, action: DrawAgain) -> None:
        assert failed.draw is not None
        number, hparams = failed.draw
        if not action.keeps_gang:
            await self._until_ended(failed.view)
        # In this order: a process that takes over in between sees them rejected again, and samples the same ones.
        await self._next_attempt(failed.error, counted=False)
        await self.rt.db(self.rt.store.searches.set_hparams, self.rt.attempt_id, self.rt.watch, hparams, number)
        self.rt.log.warning("New hyperparameters, sample %d of at most %d: %s", number, MOST_DRAWS, hparams)

    async def _move_on(self, failed: Failed, action: MoveOn) -> Outcome | None:
        """Wait for another gang, or end the attempt when no other hosts can ever serve it."""
        error = failed.error
        assert isinstance(error, HostError)
        await self._until_ended(failed.view, ended=_silent(failed))
        ticket = await self.rt.db(
            self.rt.store.attempts.move_on,
            self.rt.attempt_id,
            self.rt.watch,
            failure=await failure_dict(self.rt, error),
            exclude_host=error.host if action.excludes else None,
            also=tuple(failed.also),
            away=action.is_away,
        )
        if ticket is None:
            return await finish(self.rt, await self.rt.view(), "errored", error)
        names = ", ".join(f"'{name}'" for name in failed.hosts)
        if not action.excludes:
            self.rt.log.warning(
                "Host %s has seen a later grant or the end of this run; the trial waits for another grant", names
            )
        else:
            how = ("s", names, "are") if failed.also else ("", names, "is")
            self.rt.log.warning(
                "Host%s %s %s left out of this trial from now on, unless no other hosts can serve it", *how
            )
        await self.rt.follow_attempt(ticket.attempt_id)
        return None

    async def _give_back(self, failed: Failed, action: GiveBack) -> None:
        """Release the gang and wait for another one, to resume from the latest checkpoint."""
        view = failed.view
        give_way = failed.give_way
        error = failed.error
        assert give_way is not None
        assert give_way.reason is not None
        self.stop_took_s = give_way.took_s or 0.0
        if error is not None and not give_way.by_signal:
            self.rt.log.warning("While it was asked to stop: %s", shortened(str(error), {}))
        await self._until_ended(view)
        ticket = await self.rt.db(
            self.rt.store.attempts.yield_gang,
            self.rt.attempt_id,
            self.rt.watch,
            reason=give_way.reason,
            failure=await failure_dict(self.rt, error) if isinstance(error, ShardFailedError) else None,
            paused=action.is_paused,
            left_at=give_way.gang.end.left_at,
        )
        self.rt.log.warning(
            "The gang held its slots for %.0f s and released them %.0f s after the request (%s). The trial %s.",
            (datetime.now(UTC) - (view.granted_at or view.created_at)).total_seconds(),
            self.stop_took_s,
            give_way.reason,
            "is paused" if action.is_paused else "keeps its place in the queue",
        )
        if action.follows:
            await self.rt.follow_attempt(ticket.attempt_id)

    async def _check_host(self, error: HostError) -> list[str]:
        """Reconcile tokens and slots with a host, and return its runs that the store has forgotten."""
        try:
            if isinstance(error, SlotBusyError) and isinstance(slot := error.details.get("slot"), int):
                await self.rt.db(self.rt.store.hosts.mark_slot, error.host, slot, "busy_elsewhere", str(error))
            return await reconcile_host(self.rt, error.host)
        except DtrainError as problem:
            self.rt.log.warning("Host '%s' could not be checked: %s", error.host, problem)
            return []

    async def _is_behind(self, error: HostError) -> bool:
        """Return whether a new grant solves what a host has refused, after a look at the host."""
        if isinstance(error, SlotBusyError):
            return error.details.get("run") in await self._check_host(error)
        if not isinstance(error, HostRefusedError) or error.code not in BEHIND:
            return False
        await self._check_host(error)
        return await self._can_pass(error)

    async def _can_pass(self, error: HostError) -> bool:
        """Return False when a host has recorded a token for a slot that no later grant will have."""
        details = error.details if isinstance(error, HostRefusedError) else {}
        if "recorded" not in details:
            return True
        recorded = details["recorded"]
        return is_count(recorded) and await accept_token(self.rt, error.host, recorded)

    async def _until_ended(self, view: AttemptView, *, ended: AbstractSet[str] = frozenset()) -> None:
        """Wait until no process of the attempt can still be running.

        A host that does not answer is given the time after which its supervisor ends the run by itself.

        :param gone: hosts where nothing can run, although they have not confirmed it
        """
        give_up_at = time.monotonic() + self.rt.lost_after_s
        async with self.rt.renewing():
            while True:
                await teardown.release(self.rt, view)
                missing = await slots_of(self.rt, view).uncleared() - ended
                never = not self.rt.settings.orphan_timeout_s or await self.rt.is_held()
                if not missing or view.plan is None or (time.monotonic() > give_up_at and not never):
                    return
                self.rt.log.warning("Waiting for %s to confirm that %s is gone", ", ".join(sorted(missing)), view.label)
                await self.rt.pause(FENCE_AGAIN_S)
                view = await self.rt.view()

    async def _back_off(self, pause_s: float) -> None:
        async with self.rt.renewing():
            await self.rt.pause(pause_s)

    async def _next_attempt(self, error: DtrainError | None, *, counted: bool) -> None:
        assert error is not None
        ticket = await self.rt.db(
            self.rt.store.attempts.next,
            self.rt.attempt_id,
            self.rt.watch,
            failure=await failure_dict(self.rt, error),
            counted=counted,
        )
        await self.rt.follow_attempt(ticket.attempt_id)


def _silent(failed: Failed) -> AbstractSet[str]:
    """Return hosts where nothing can run: a silent host was given its orphan timeout, or its ranks have ended."""
    return {host for host, error in failed.hosts.items() if isinstance(error, HostSilentError | ResultsLostError)}


def _refused_again(error: HostRefusedError, times: int) -> HostError:
    message = (
        f"Host '{error.host}' refused {times} launches of this trial in a row, and new grants did not help. "
        f"The latest answer: {as_sentence(error)} Check the host with: airflow dtrain hosts probe {error.host}"
    )
    return HostRefusedError(error.host, message, code=error.code, details=error.details)
