"""States of the store, and their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Self

from airflow_provider_dtrain.errors import IllegalTransitionError

StatefulKind = Literal["host", "allocation", "trial", "attempt"]


class Explained(StrEnum):
    """String that the store and JSON have, with its meaning."""

    _value_: str
    #: The meaning as one sentence, without a period.
    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Return the member with this string and its meaning."""
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member


class State(Explained):
    """State of one kind of row. The tables in docs/architecture.md have the same meanings."""


class HostState(State):
    """State of a host."""

    READY = "ready", "its slots may be granted"
    DRAINING = "draining", "it gets no new gangs, and gangs still run there"
    DRAINED = "drained", "it gets no new gangs, and none runs there"
    DISABLED = "disabled", "a user switched it off, and only a user enables it"
    UNREACHABLE = "unreachable", "it does not answer; its slots stay taken"
    LOST = "lost", "it has not answered for so long that its runs must have ended"


class AllocationState(State):
    """State of an allocation."""

    WAITING = "waiting", "a request in the queue"
    GRANTED = "granted", "slots are reserved for it, and no follower has taken it up yet"
    STARTING = "starting", "a follower prepares and starts the ranks"
    RUNNING = "running", "its ranks run; a held gang is also running between two tasks"
    STOPPING = "stopping", "its ranks end"
    EXPIRED = "expired", "its attempt has ended, and not every host has confirmed it yet"
    RELEASED = "released", "it holds no slots; this is final"


class ExperimentState(State):
    """State of an experiment. Its row is running while it is queued, which its trials decide."""

    QUEUED = "queued", "it has trials, and all of them wait for slots"
    RUNNING = "running", "it has not ended"
    COMPLETED = "completed", "at least one trial completed or was stopped, unless a user killed it"
    ERRORED = "errored", "no trial has a result, and none was killed"
    KILLED = "killed", "a user killed it, or no trial has a result, and at least one was killed"


class TrialState(State):
    """State of a trial."""

    QUEUED = "queued", "it waits for slots, for the first time or again"
    RUNNING = "running", "an attempt has slots"
    PAUSED = "paused", "a user paused it; it holds no slots and keeps its place"
    COMPLETED = "completed", "its program ended with exit code 0 on all ranks"
    STOPPED = "stopped", "the searcher or a user ended it with its result so far"
    ERRORED = "errored", "it failed for good; an Airflow retry queues it again from the latest checkpoint"
    KILLED = "killed", "a user or Airflow ended it without a result; a cleared task queues it again"


class AttemptState(State):
    """State of an attempt."""

    WAITING = "waiting", "its gang is requested"
    STARTING = "starting", "its gang is granted, and its follower prepares the hosts"
    RUNNING = "running", "every rank is started"
    STOPPING = "stopping", "its ranks are asked or forced to end"
    COMPLETED = "completed", "every rank succeeded"
    FAILED = "failed", "a rank, or the launch, did not succeed"
    LOST = "lost", "a host failed"
    PREEMPTED = (
        "preempted",
        "it wrote its checkpoint and released its gang: for a more urgent one, a pause, an evacuation, "
        "or at the end of its job",
    )


_HOST = {
    # A probe or a user may repeat the current state with a new reason.
    "ready": "ready draining drained disabled unreachable",
    "draining": "draining drained ready disabled unreachable",
    "drained": "drained ready disabled unreachable",
    # A disabled host is not probed, so only a user enables it again.
    "disabled": "disabled ready",
    "unreachable": "unreachable lost ready draining drained disabled",
    "lost": "lost ready draining drained disabled unreachable",
}
_ALLOCATION = {
    "waiting": "granted released",
    # Not taken up in time: it waits again and keeps its place.
    "granted": "starting waiting stopping released",
    # A failed preflight releases the slots: at once, or after the hosts have answered.
    "starting": "running waiting stopping released expired",
    # A restart keeps the gang and starts again.
    "running": "starting stopping released expired",
    "stopping": "starting released expired",
    # A follower that returns in time resumes. Otherwise the hosts must answer before it is released.
    "expired": "starting running stopping released",
    "released": "",
}
_TRIAL = {
    "queued": "running paused completed stopped errored killed",
    # A preempted trial, or one that lost a host, waits again.
    "running": "queued paused completed stopped errored killed",
    "paused": "queued running completed stopped errored killed",
    "completed": "",
    "stopped": "",
    # An Airflow retry resumes from the latest checkpoint.
    "errored": "queued",
    # Airflow ended its task and runs the same one again.
    "killed": "queued",
}
_ATTEMPT = {
    # The searcher, a kill or a shape that no longer fits may end it before it starts.
    "waiting": "starting stopping completed failed",
    # A short program may have ended before its start was recorded.
    "starting": "running waiting stopping completed failed lost",
    "running": "stopping completed failed lost preempted",
    "stopping": "completed failed lost preempted",
    "completed": "",
    "failed": "",
    "lost": "",
    # It wrote its checkpoint and released its gang, for a more urgent one or because a user paused it.
    "preempted": "",
}

#: kind -> state -> states that may follow. The only such table.
TRANSITIONS: Mapping[str, Mapping[str, frozenset[str]]] = {
    kind: {state: frozenset(following.split()) for state, following in table.items()}
    for kind, table in {"host": _HOST, "allocation": _ALLOCATION, "trial": _TRIAL, "attempt": _ATTEMPT}.items()
}


def _values(*states: State) -> tuple[str, ...]:
    return tuple(state.value for state in states)


# Named sets are tuples of plain strings, because some are parameters of SQL statements and choices of commands.
#: A trial that may still run, now or after a user activates it.
TRIAL_LIVE = _values(TrialState.QUEUED, TrialState.RUNNING, TrialState.PAUSED)
#: A trial without further ranks, unless Airflow retries its task.
TRIAL_ENDED = _values(TrialState.COMPLETED, TrialState.STOPPED, TrialState.ERRORED, TrialState.KILLED)
#: A trial whose metric is a result. A trial that the searcher or a user stopped has one, too.
TRIAL_SUCCEEDED = _values(TrialState.COMPLETED, TrialState.STOPPED)
#: An experiment that has not ended. It is queued while all of its trials are.
EXPERIMENT_LIVE = _values(ExperimentState.QUEUED, ExperimentState.RUNNING)
#: An attempt or an allocation whose ranks may run on hosts, so a follower has to renew its lease.
ACTIVE = _values(AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)
#: An attempt whose ranks were started.
STARTED = _values(AttemptState.RUNNING, AttemptState.STOPPING)
#: An allocation that is in the queue or has a follower. An expired one has neither.
ALLOCATION_LIVE = (*_values(AllocationState.WAITING, AllocationState.GRANTED), *ACTIVE)
#: States in which an allocation holds its slots. An expired one holds them until its hosts have answered.
HOLDING: frozenset[str] = frozenset({*_values(AllocationState.GRANTED, AllocationState.EXPIRED), *ACTIVE})


def allowed(kind: StatefulKind, old: str) -> frozenset[str]:
    """Return the states that may follow ``old``. A final state has none.

    :raises IllegalTransitionError: no such state
    """
    table = TRANSITIONS[kind]
    if old not in table:
        raise IllegalTransitionError(f"'{old}' is not a state of {_article(kind)}. Its states are {', '.join(table)}.")
    return table[old]


def check(kind: StatefulKind, old: str, new: str) -> None:
    """Raise unless ``new`` may follow ``old``.

    :raises IllegalTransitionError: it may not, or there is no such state
    """
    following = allowed(kind, old)
    allowed(kind, new)
    if new not in following:
        rest = f"only {', '.join(sorted(following))} may follow" if following else "that state is final"
        raise IllegalTransitionError(f"{_article(kind).capitalize()} that is {old} cannot become {new}: {rest}.")


def is_final(kind: StatefulKind, state: str) -> bool:
    """Return whether no state may follow this one."""
    return not allowed(kind, state)


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] == "a" else f"a {kind}"
