"""A day of hosts: the work that held their slots, their states, and what checks and followers found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_dtrain.core.lifecycle.states import HostState, TrialState


class WorkKind(StrEnum):
    """Holder of slots."""

    TRIAL = "trial"
    #: A held gang, whose trials have entries of their own.
    GANG = "gang"
    #: ``hosts check``
    CHECK = "check"
    #: Work of a DAG that the reader may not read. It has no names.
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """Slots of a host that a trial, a held gang or a check held."""

    kind: WorkKind
    slots: list[int]
    #: The grant, which may be before the day; of a trial on a held gang its own begin.
    since: datetime
    #: Begin of its ranks; None: they never ran, or it has none of its own.
    started_at: datetime | None = None
    #: Release of the last one of the slots; None: some are still held.
    until: datetime | None
    trial_id: int | None = None
    #: From 0 in its experiment.
    trial_number: int | None = None
    #: State of the trial now.
    trial_state: TrialState | None = None
    experiment_id: int | None = None
    #: Name of the experiment; of a held gang: its task, in words.
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class HostStateSpan:
    """Time in which a host was in one state."""

    state: HostState
    reason: str
    #: It may be before the day.
    since: datetime
    #: None: it still is.
    until: datetime | None


class HostNoteKind(StrEnum):
    """Fact about a host."""

    CHECK = "check"
    SLOW_RANK = "slow_rank"


@dataclass(frozen=True, kw_only=True)
class HostNote:
    """Result of a check of a host, or a slow rank that a follower named on it."""

    kind: HostNoteKind
    at: datetime
    #: End of a slow rank; None: it is slow now. Of a check: its time.
    until: datetime | None
    text: str
    #: Whether it names the host as slow.
    is_slow: bool
    #: Trial of a slow rank; None: the reader may not read its DAG.
    trial_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class HostDay:
    """Work, states and facts of one host."""

    name: str
    pool: str
    #: Its present number of slots.
    slots: int
    #: By begin. Trials on a held gang come after it and hold the same slots.
    work: list[HostWork]
    #: By begin. Before the first one the host was not registered, or its states are older than the store keeps.
    states: list[HostStateSpan]
    #: By time.
    notes: list[HostNote]
    #: Parts of slots x period.
    held_slot_s: float
    idle_slot_s: float
    #: The slot was not held, and the host was not ready.
    away_slot_s: float


@dataclass(frozen=True, kw_only=True)
class HostDays:
    """Days of hosts, or the part of a day that fits an answer."""

    since: datetime
    until: datetime
    #: The period begins later than requested, because more happened than one answer has.
    is_cut: bool
    hosts: list[HostDay]
