"""States of the store, their transitions, and the cause of a gang's failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, Self

from airflow_provider_dtrain.errors import IllegalTransitionError, Kind

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
    PREEMPTED = "preempted", "it wrote its checkpoint and released its gang, for a more urgent request or a pause"


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


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """Exit of one rank."""

    rank: int
    host: str
    #: Negative for a signal; None when it is not known.
    exit_code: int | None
    #: Unix seconds by the clock of the host.
    at: float
    #: Seconds by which that clock was ahead of the control side's.
    offset_s: float = 0.0
    #: ``message`` and ``traceback`` as the rank left them, or None.
    error: Mapping[str, Any] | None = None
    #: The supervisor had sent it a signal before it ended.
    sent_signal: bool = False
    #: Last lines of its log.
    log_tail: str = ""
    #: It had finished its first step (its ``first_step`` event came).
    has_stepped: bool = False

    @property
    def corrected_at(self) -> float:
        """Unix seconds by the clock of the control side."""
        return self.at - self.offset_s

    @property
    def message(self) -> str:
        """Failure message of the rank, or the end of its log when it left no record."""
        return str(self.error.get("message") or "") if self.error else self.log_tail

    @property
    def text(self) -> str:
        """Failure message with the traceback, or the end of the log when the rank left no record."""
        return f"{self.message}\n{self.error.get('traceback') or ''}" if self.error else self.log_tail


# Errors in the other ranks after one has died, as gloo, NCCL and c10d of PyTorch 2.13 raise them.
_AFTERMATH = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection was likely closed|Broken pipe"
    r"|Timed out waiting \d+ms for (?:recv|send)|Application timeout caused pair closure"
    r"|Watchdog caught collective operation timeout|collective operation timeout|Wait timeout"
    r"|NCCL communicator was aborted|ncclRemoteError|ncclSystemError|remote process exited"
    r"|[Ss]ocket [Tt]imeout|recvValue failed|sendBytes failed|failed to recv, got 0 bytes"
    r"|client socket has timed out|Timed out after \d+ seconds waiting for clients"
    # Of the training library: rank 0 has the cause.
    r"|LeaderFailedError: "
)
#: A rank that waited for rank 0, or for the first rank of its host.
_WAITED = re.compile(r"LeaderFailedError: (?P<local>Local )?[Rr]ank 0 ")
#: Messages that a supervisor writes for a rank without a record of its own.
_WITHOUT_RECORD = ("killed by ", "exit code ")
_RENDEZVOUS = re.compile(
    r"TCPStore|c10d|DistNetworkError|DistStoreError|init_process_group|rendezvous|(?:server|client) socket"
    r"|gloo/transport",
    re.IGNORECASE,
)
_NO_RENDEZVOUS = re.compile(
    r"EADDRINUSE|address already in use|ECONNREFUSED|connection refused|client socket has timed out",
    re.IGNORECASE,
)
# ECC errors are left to the log policy of that name, which can be switched off.
_BROKEN_DEVICE = re.compile(
    r"uncorrectable NVLink error|GPU is lost|fallen off the bus"
    r"|CUDA-capable device\(s\) is/are busy or unavailable",
    re.IGNORECASE,
)


def first_failure(exits: Iterable[RankExit]) -> RankExit | None:
    """Return the exit that caused the failure, or None when every rank succeeded.

    This is the first failed exit by the control side's clock. Ranks that only noticed a missing peer come after
    all other ranks, and ranks that the supervisor sent a signal come last. A rank that waited for a leader proves that
    the leader failed before the signal, so the leader's own record is the cause.
    """
    failed = [leaving for leaving in exits if leaving.exit_code != 0]
    found = min(failed, key=lambda leaving: (_remoteness(leaving), leaving.corrected_at, leaving.rank), default=None)
    leader = _leader_of(found, failed) if found is not None else None
    return replace(leader, sent_signal=False) if leader is not None else found


def _leader_of(waited: RankExit, failed: Iterable[RankExit]) -> RankExit | None:
    """Return the exit of the leader that a rank waited for in vain, if the leader left a record of its error."""
    found = _WAITED.match(waited.message)
    if found is None:
        return None
    is_local = found["local"] is not None
    group = [one for one in failed if one.host == waited.host or not is_local]
    leader = min(group, key=lambda leaving: leaving.rank)
    if leader is waited or (leader.rank != 0 and not is_local):
        return None
    return leader if leader.error and not leader.message.startswith(_WITHOUT_RECORD) else None


def classify(leaving: RankExit) -> Kind:
    """Return the kind of a failure: ``infra`` for a broken device or a failed rendezvous, else ``user``.

    ``platform`` when the rank ended after a signal from the supervisor: its exit says nothing about a fault.
    """
    if _BROKEN_DEVICE.search(leaving.text):
        return "infra"
    if leaving.sent_signal:
        return "platform"
    if not leaving.has_stepped and _NO_RENDEZVOUS.search(leaving.message) and _RENDEZVOUS.search(leaving.text):
        return "infra"
    return "user"


def is_aftermath(leaving: RankExit) -> bool:
    """Return whether the rank failed only because another one was gone."""
    return _AFTERMATH.search(leaving.message) is not None


def _remoteness(leaving: RankExit) -> int:
    if leaving.sent_signal:
        return 2
    return 1 if is_aftermath(leaving) else 0
