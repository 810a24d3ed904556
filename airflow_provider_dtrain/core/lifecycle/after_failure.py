"""Restart policy: the action that follows the failure or the preemption of an attempt. Pure functions.

:func:`after_failure` is the only place that decides this. The engine collects the facts and executes the action.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from airflow_provider_dtrain.core.lifecycle.shard_blame import MOST_FRUITLESS, MOST_SHARD_FAILURES
from airflow_provider_dtrain.errors import (
    BadShardError,
    CollectError,
    DtrainError,
    HostRefusedError,
    HostSilentError,
    HostUnreachableError,
    InvalidHPError,
    Kind,
    LogPolicyError,
    MaxRuntimeError,
    RankFailedError,
    ResultsLostError,
    ShardFailedError,
    SlotBusyError,
    SlotsTakenError,
    TaskEndedError,
    TrainingRefusedError,
)


def _names(*errors: type[DtrainError]) -> frozenset[str]:
    return frozenset(error.__name__ for error in errors)


#: Failures of kind ``user`` that another attempt would repeat.
FINAL = _names(InvalidHPError, LogPolicyError, TrainingRefusedError, MaxRuntimeError, BadShardError, CollectError)
#: Error codes of a host that has seen later grants, or the end of this run: the store was restored from a backup, or an
#: earlier follower had given the attempt up. A new grant solves both.
BEHIND = frozenset({"stale_token", "tombstone", "other_launch"})
#: The host did not answer, or its slots are in use elsewhere. The store records this, and recovery checks when it is
#: over, so a trial that needs the host can wait for it. A host that has lost results can compute them again.
AWAY = _names(HostUnreachableError, HostSilentError, SlotBusyError, ResultsLostError)
#: No host is at fault: an external scheduler took the slots.
TAKEN = _names(SlotsTakenError)
#: Errors of a host that refuses a launch.
REFUSALS = _names(HostRefusedError, SlotBusyError)
#: Launches of a trial that a host may refuse, one after the other, before the trial avoids it: new grants do not help.
MOST_REFUSALS = 3
#: Attempts in a row whose results may be lost before a trial that needs the host ends.
MOST_LOSSES = 3
#: Consecutive platform failures after which the task fails, and Airflow retries it.
PLATFORM_FAILURES = 8
#: First and longest pause between two attempts of a trial, in seconds.
BACK_OFF_FIRST_S, BACK_OFF_MOST_S = 1.0, 60.0
#: The same after failures of the platform. The first pause gives the failed service time to come back.
PLATFORM_FIRST_S, PLATFORM_MOST_S = 5.0, 600.0
#: Seconds above which a pause releases the gang, because other trials can use the slots meanwhile.
KEEP_GANG_S = 60.0

#: Why the ranks released their gang on request: a more urgent request, a user's pause, or a user's stop.
Request = Literal["preempted", "paused", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that decides what follows an attempt."""

    #: Class name and kind of the failure; None: the ranks ended because they were asked to.
    error: str | None
    kind: Kind | None
    #: Restarts counted so far, and how many the configuration allows.
    restarts: int = 0
    max_restarts: int = 0
    #: Several tasks use the gang in turn, so the trial cannot wait for another one.
    is_held_gang: bool = False
    #: The follower has died: recovery ends the attempt by the rules, and no new attempt starts.
    is_salvaged: bool = False
    #: Every host has confirmed that no process of the attempt is left; None: no fence was sent yet.
    is_clear: bool | None = None
    #: The searcher has further hyperparameters for a trial whose own were rejected.
    has_draw: bool = False
    #: Platform failures of the trial in a row, before this one.
    platform_failures: int = 0
    #: A new grant solves what the host has refused.
    is_behind: bool = False
    #: Launches that this host has refused in a row, before this one.
    refusals: int = 0
    #: Attempts in a row, before this one, whose results were lost on their way.
    losses: int = 0
    #: Earlier failures that were attributed to the shard of this failure.
    shard_failures: int = 0
    #: Shards that failed too often are set aside by the ranks.
    skips_bad_shards: bool = False
    #: Attempts in a row, before this one, that failed in shards and finished none.
    fruitless: int = 0
    #: Shards that this attempt finished.
    finished: int = 0
    #: The ranks left training on request.
    request: Request | None = None

    @property
    def is_refused_too_often(self) -> bool:
        """True when new grants have not helped against the refusals of the host."""
        return self.is_behind and self.refusals + 1 >= MOST_REFUSALS

    @property
    def has_bad_shard(self) -> bool:
        """True when the shard of this failure has failed so often that the run ends.

        Ranks that set such a shard aside do not process it again. If it fails once more, they did not.
        """
        if self.error != ShardFailedError.__name__:
            return False
        is_too_often = self.shard_failures + 1 >= MOST_SHARD_FAILURES + int(self.skips_bad_shards)
        return is_too_often or self.is_fruitless

    @property
    def is_fruitless(self) -> bool:
        """True when so many attempts finished no shard that the processor is at fault."""
        return not self.finished and self.fruitless + 1 >= MOST_FRUITLESS


@dataclass(frozen=True, kw_only=True)
class Finish:
    """End the trial as errored."""

    #: The trial resumes from its latest checkpoint when Airflow retries its task.
    resumes: bool = False
    #: Wait first until no process of the attempt can still be running.
    waits_for_end: bool = False


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End the trial as stopped by a user. It keeps its results."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Start the next attempt from the latest checkpoint."""

    #: The attempt counts against ``max_restarts``.
    counted: bool
    pause_s: float
    #: The next attempt uses the same slots. Otherwise the trial waits for another gang.
    keeps_gang: bool
    #: The trial enters the queue after the pause, because a gang that it gets earlier would be idle.
    pauses_first: bool = False


@dataclass(frozen=True, kw_only=True)
class DrawAgain:
    """Start an attempt with other hyperparameters. It does not count as a restart."""

    keeps_gang: bool


@dataclass(frozen=True, kw_only=True)
class MoveOn:
    """Wait for another gang after a host failed. The trial ends when the store knows that none can ever come."""

    #: The trial avoids the host.
    excludes: bool
    #: The host may come back, so a trial that needs it waits for it.
    is_away: bool


@dataclass(frozen=True, kw_only=True)
class GiveBack:
    """Release the gang, and resume from the latest checkpoint on another one."""

    #: The trial waits until a user activates it. Otherwise it keeps its place in the queue.
    is_paused: bool
    #: This follower waits for the next gang.
    follows: bool


@dataclass(frozen=True, kw_only=True)
class Fence:
    """End every process of the attempt, then decide again by the hosts' answers."""

    #: Action that follows when every host confirms it.
    then: Restart | DrawAgain


Action = Finish | Stop | Restart | DrawAgain | MoveOn | GiveBack | Fence


def after_failure(facts: Facts) -> Action:
    """Return the action that follows a failed or preempted attempt.

    A request to release the gang comes first, except for a failure that another attempt would repeat.
    """
    if facts.request is not None and facts.error not in FINAL and not facts.has_bad_shard:
        return _after_request(facts, facts.request)
    if facts.kind == "infra":
        return _after_host_failure(facts)
    return _after_platform_failure(facts) if facts.kind == "platform" else _after_user_failure(facts)


def _after_request(facts: Facts, request: Request) -> Action:
    if request == "stopped":
        return Stop()
    return GiveBack(is_paused=request == "paused", follows=not facts.is_salvaged)


def _after_host_failure(facts: Facts) -> Action:
    if facts.is_salvaged or facts.is_held_gang:
        return Finish(waits_for_end=not facts.is_held_gang)
    excludes = facts.error not in TAKEN and (not facts.is_behind or facts.is_refused_too_often)
    return MoveOn(excludes=excludes, is_away=facts.error in AWAY and facts.losses + 1 < MOST_LOSSES)


def _after_platform_failure(facts: Facts) -> Action:
    if facts.is_salvaged or facts.platform_failures + 1 >= PLATFORM_FAILURES or _has_lost_held_gang(facts):
        return Finish()
    pause_s = platform_back_off_s(facts.platform_failures)
    keeps_gang = facts.is_clear is not False and (facts.is_held_gang or pause_s <= KEEP_GANG_S)
    restart = Restart(counted=False, pause_s=pause_s, keeps_gang=keeps_gang, pauses_first=not keeps_gang)
    return Fence(then=restart) if facts.is_clear is None else restart


def _after_user_failure(facts: Facts) -> Action:
    if facts.error == InvalidHPError.__name__ and facts.has_draw and not _has_lost_held_gang(facts):
        again = DrawAgain(keeps_gang=facts.is_clear is not False and not facts.is_salvaged)
        return Fence(then=again) if facts.is_clear is None else again
    is_counted = facts.error != ShardFailedError.__name__
    has_restarts = not is_counted or _has_restarts(facts.restarts, facts.max_restarts)
    if facts.error in FINAL or facts.has_bad_shard or not has_restarts:
        return Finish()
    if facts.is_salvaged:
        return Finish(resumes=True)
    if _has_lost_held_gang(facts):
        return Finish()
    # Without a confirmation of every host the gang is broken up: slots of silent hosts stay taken.
    keeps_gang = facts.is_clear is not False
    pause_s = back_off_s(facts.restarts if is_counted else max(facts.shard_failures, facts.fruitless))
    restart = Restart(counted=is_counted, pause_s=pause_s, keeps_gang=keeps_gang)
    return Fence(then=restart) if facts.is_clear is None else restart


def _has_lost_held_gang(facts: Facts) -> bool:
    return facts.is_held_gang and facts.is_clear is False


def _has_restarts(restarts: int, max_restarts: int) -> bool:
    return restarts < max_restarts


class EndedTrial(Protocol):
    """Fields of an ended trial that decide about a next attempt."""

    @property
    def trial_state(self) -> str:
        """State of the trial."""

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """Failure of its latest attempt as stored."""

    @property
    def restarts(self) -> int:
        """Restarts counted so far."""

    @property
    def max_restarts(self) -> int:
        """Restarts that its configuration allows."""


def restart_of(trial: EndedTrial) -> bool | None:
    """Return whether an ended trial's next attempt counts as a restart, or None when it has none.

    A trial that failed in the user's code has restarts left only when its follower died before it could start one. A
    trial that Airflow killed continues: Airflow reruns a task that it lost, but not a task that a user marked.
    """
    failure = trial.failure or {}
    if trial.trial_state == "killed" and failure.get("error") == TaskEndedError.__name__:
        return False
    if trial.trial_state != "errored" or trial.failure is None:
        return None
    # A failure of a shard is not counted. It ends a trial only if the follower died before the next attempt.
    if failure.get("kind") != "user" or failure.get("error") == ShardFailedError.__name__:
        return False
    may_restart = failure.get("error") == RankFailedError.__name__
    return True if may_restart and _has_restarts(trial.restarts, trial.max_restarts) else None


def platform_failures_in_a_row(failures: Iterable[Mapping[str, Any] | None]) -> int:
    """Return how many of the latest attempts the platform failed.

    :param failures: failures of earlier attempts, latest first
    """
    return len(list(itertools.takewhile(lambda failure: (failure or {}).get("kind") == "platform", failures)))


def refusals_in_a_row(failures: Sequence[Mapping[str, Any] | None], host: str) -> int:
    """Return how many launches a host has refused since the latest attempt whose launch it accepted.

    A failure of the user's code or a preemption ends the count, because the attempt's launch was accepted.

    :param failures: failures of earlier attempts, latest first
    """
    known = [failure or {} for failure in failures]
    latest = itertools.takewhile(lambda failure: failure.get("kind") in ("infra", "platform"), known)
    return sum(one.get("host") == host and one.get("error") in REFUSALS for one in latest)


def losses_in_a_row(failures: Iterable[Mapping[str, Any] | None]) -> int:
    """Return how many of the latest attempts have lost results after their ranks had succeeded.

    :param failures: failures of earlier attempts, latest first
    """
    name = ResultsLostError.__name__
    return len(list(itertools.takewhile(lambda failure: (failure or {}).get("error") == name, failures)))


def back_off_s(restarts: int) -> float:
    """Return the pause before the next attempt: 1, 2, 4 ... at most 60 seconds.

    :param restarts: restarts counted so far
    """
    return min(BACK_OFF_FIRST_S * 2.0 ** min(restarts, 10), BACK_OFF_MOST_S)


def platform_back_off_s(failures: int) -> float:
    """Return the pause after a failure of the platform: 5, 10, 20 ... at most 600 seconds.

    :param failures: consecutive failures before this one
    """
    return min(PLATFORM_FIRST_S * 2.0 ** min(failures, 10), PLATFORM_MOST_S)
