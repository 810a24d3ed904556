"""Rows of the day of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from airflow_provider_dtrain.core.lifecycle.states import HostState, TrialState


class HeldSlot(NamedTuple):
    """A slot that an allocation held."""

    host: str
    slot: int
    allocation_id: int
    since: datetime
    #: None: it still holds it.
    until: datetime | None


class HolderWork(NamedTuple):
    """An allocation, and one of its attempts with the trial, None without one."""

    allocation_id: int
    #: None: it is no held gang.
    gang_dag: str | None
    gang_task: str | None
    created_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    trial_id: int | None
    trial_number: int | None
    trial_state: TrialState | None
    trial_dag: str | None
    experiment_id: int | None
    experiment: str | None


class StateSpan(NamedTuple):
    """A state of a host, until None for the present one."""

    host: str
    state: HostState
    reason: str
    since: datetime
    until: datetime | None


class CheckResult(NamedTuple):
    """A result of a host check with its finding, None without one."""

    host: str
    at: datetime
    finding: str | None


class SlowRank(NamedTuple):
    """A slow rank that a follower named on a host."""

    host: str
    since: datetime
    #: None: it is slow.
    until: datetime | None
    rank: int
    ratio: float
    cost: float
    text: str
    trial_id: int
    dag_id: str


@dataclass(frozen=True, kw_only=True)
class HostDayRows:
    """Facts about some hosts in a period."""

    #: Begin from which the rows are complete.
    since: datetime
    #: Name -> pool, number of slots.
    hosts: Mapping[str, tuple[str, int]]
    held: Sequence[HeldSlot]
    #: Allocation -> its attempts.
    work: Mapping[int, Sequence[HolderWork]]
    states: Sequence[StateSpan]
    checks: Sequence[CheckResult]
    slow_ranks: Sequence[SlowRank]
