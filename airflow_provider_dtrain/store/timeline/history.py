"""Rows from which the timeline of a trial is made, read in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind, one_line, within
from airflow_provider_dtrain.resources.telemetry import NamedStraggler
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AllocationRow, AllocationSlotRow, TrialRow
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    checkpoints,
    configs,
    events,
    experiments,
    external_jobs,
    gangs,
    ranks,
    rung_entries,
    searches,
    timeline,
    trials,
)
from airflow_provider_dtrain.store.stragglers import find_stragglers

#: Checkpoints of a trial that are read one by one: the first and the latest ones.
FIRST_CHECKPOINTS, LATEST_CHECKPOINTS = 20, 80

#: Latest jobs of a trial that are read.
LATEST_JOBS = 200

#: Latest starts of a gang's part on a host that are read.
LATEST_STARTS = 1000

_TRIAL: sa.BindParameter[int] = sa.bindparam("trial")
_CLAIMANTS = allocations.alias("claimants")
_OF_TRIAL = (
    sa.select(
        trials,
        experiments.c.name.label("experiment"),
        searches.c.metric,
        configs.c.document["searcher"].label("searcher"),
    )
    .join(experiments, experiments.c.id == trials.c.experiment_id)
    .join(configs, configs.c.config_id == trials.c.config_id)
    .outerjoin(searches, searches.c.id == trials.c.search_id)
    .where(trials.c.id == _TRIAL)
)
_ATTEMPTS = (
    sa.select(
        *(
            attempts.c[name]
            for name in (
                "id",
                "number",
                "allocation_id",
                "state",
                "reason",
                "failure",
                "created_at",
                "started_at",
                "ended_at",
            )
        ),
        gangs.c.dag_id.label("gang_dag"),
        gangs.c.task_id.label("gang_task"),
    )
    .outerjoin(gangs, gangs.c.allocation_id == attempts.c.allocation_id)
    .where(attempts.c.trial_id == _TRIAL)
    .order_by(attempts.c.number)
)
_REQUESTS = (
    sa.select(allocations, _CLAIMANTS.c.trial_id.label("claimant_trial"))
    .outerjoin(_CLAIMANTS, _CLAIMANTS.c.id == allocations.c.preempted_for)
    .where(allocations.c.trial_id == _TRIAL)
    .order_by(allocations.c.id)
)
_JOBS = (
    sa.select(external_jobs, allocations.c.backend)
    .join(allocations, allocations.c.id == external_jobs.c.allocation_id)
    .where(allocations.c.trial_id == _TRIAL)
    .order_by(external_jobs.c.id.desc())
    .limit(LATEST_JOBS)
)
_SLOTS = (
    sa.select(
        *(allocation_slots.c[name] for name in ("allocation_id", "token", "host", "slot", "released_at", "proof"))
    )
    .join(allocations, allocations.c.id == allocation_slots.c.allocation_id)
    .where(allocations.c.trial_id == _TRIAL)
    .order_by(allocation_slots.c.allocation_id, allocation_slots.c.host, allocation_slots.c.slot)
)
_RUNGS = (
    sa.select(rung_entries, attempts.c.number.label("attempt"))
    .join(attempts, attempts.c.id == rung_entries.c.attempt_id)
    .where(rung_entries.c.trial_id == _TRIAL, rung_entries.c.decision.is_not(None))
    .order_by(rung_entries.c.id)
)
_SAVED = sa.select(*(checkpoints.c[name] for name in ("id", "attempt_id", "step", "host", "at"))).where(
    checkpoints.c.trial_id == _TRIAL, checkpoints.c.refused.is_(None)
)
_FIRST_SAVED = _SAVED.order_by(checkpoints.c.id).limit(FIRST_CHECKPOINTS)
_LATEST_SAVED = _SAVED.order_by(checkpoints.c.id.desc()).limit(LATEST_CHECKPOINTS)
_SAVED_COUNT = sa.select(sa.func.count().label("all")).select_from(_SAVED.subquery())
_NOTES = sa.select(timeline).where(timeline.c.trial_id == _TRIAL).order_by(timeline.c.id)
_FAILED_RANKS = (
    sa.select(
        *(ranks.c[name] for name in ("attempt_id", "rank", "host", "exit_code", "exited_at")),
    )
    .join(attempts, attempts.c.id == ranks.c.attempt_id)
    .where(attempts.c.trial_id == _TRIAL, ranks.c.exit_code != 0, sa.not_(ranks.c.sent_signal))
    .order_by(ranks.c.attempt_id, ranks.c.exited_at, ranks.c.rank)
)
_STARTS = (
    sa.select(events.c.attempt_id, events.c.host, events.c.body)
    .join(attempts, attempts.c.id == events.c.attempt_id)
    .where(attempts.c.trial_id == _TRIAL, events.c.kind == "started")
    .order_by(events.c.id.desc())
    .limit(LATEST_STARTS)
)


class OwnRow(TrialRow, Protocol):
    """The row of a trial, with its experiment and search."""

    experiment: str
    #: Name of the searcher's metric; None without a search.
    metric: str | None
    #: Of its configuration.
    searcher: Mapping[str, Any] | None


class LaunchRow(Protocol):
    """A row of ``attempts`` with the columns of a timeline."""

    id: int
    number: int
    allocation_id: int
    state: str
    reason: str
    failure: Mapping[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    #: Of the task that holds its gang, None for a gang of its own.
    gang_dag: str | None
    gang_task: str | None


class OwnRequestRow(AllocationRow, Protocol):
    """A row of ``allocations``, with the trial for which its gang was preempted."""

    claimant_trial: int | None


class OwnSlotRow(AllocationSlotRow, Protocol):
    """A row of ``allocation_slots`` with the proof of its release."""

    proof: str | None


class NoteRow(Protocol):
    """A row of ``timeline``."""

    attempt_id: int | None
    kind: str
    at: datetime
    until: datetime | None
    host: str | None
    by: str | None
    words: str
    value: int | None
    merged: int


class OwnRungRow(Protocol):
    """A row of ``rung_entries``, with the number of its attempt."""

    rung: int
    units: int
    metric: float | None
    decision: str
    attempt: int
    at: datetime
    place: int | None
    entries: int | None
    cutoff: float | None


class SavedRow(Protocol):
    """A row of ``checkpoints``."""

    id: int
    attempt_id: int
    step: int
    host: str
    at: datetime


class FailedRankRow(Protocol):
    """A row of ``ranks`` whose process ended with an error of its own."""

    attempt_id: int
    rank: int
    host: str
    exit_code: int
    exited_at: datetime | None


@dataclass(frozen=True)
class Start:
    """The start of the ranks of one host."""

    attempt_id: int
    host: str
    #: From a warm parent; None: the trial has no warm starts.
    is_forked: bool | None
    #: Reason why they were not forked, empty if unknown.
    why_executed: str


@dataclass(frozen=True, kw_only=True)
class History:
    """Rows of one trial, each list in the order in which its rows were written."""

    now: datetime
    trial: OwnRow
    attempts: Sequence[LaunchRow]
    requests: Sequence[OwnRequestRow]
    slots: Sequence[OwnSlotRow]
    notes: Sequence[NoteRow]
    rungs: Sequence[OwnRungRow]
    first_saved: Sequence[SavedRow]
    #: Without those of ``first_saved``.
    latest_saved: Sequence[SavedRow]
    saved_count: int
    failed_ranks: Sequence[FailedRankRow]
    stragglers: Sequence[NamedStraggler]
    #: Rows of ``external_jobs``, each with ``backend``, the name of its scheduler.
    jobs: Sequence[Row[Any]]
    starts: Sequence[Start]

    def number_of(self, attempt_id: int | None) -> int | None:
        """Return the number of an attempt, None for one of another trial."""
        return next((one.number for one in self.attempts if one.id == attempt_id), None)

    def notes_of(self, *kinds: TimelineKind) -> list[NoteRow]:
        """Return the facts of some kinds."""
        return [row for row in self.notes if row.kind in kinds]

    def attempt_at(self, at: datetime) -> int | None:
        """Return the number of the attempt of a time."""
        return next((one.number for one in reversed(self.attempts) if one.created_at <= at), None)

    def attempt_of(self, allocation_id: int, at: datetime) -> int | None:
        """Return the number of the attempt that had or awaited an allocation at a time."""
        users = [one for one in self.attempts if one.allocation_id == allocation_id]
        before = [one.number for one in users if one.created_at <= at]
        return before[-1] if before else next((one.number for one in users), None)

    def in_attempt(self, at: datetime, attempt_id: int) -> datetime:
        """Return a time of a host, moved into the span of its attempt."""
        of = next((one for one in self.attempts if one.id == attempt_id), None)
        if of is None:
            return within(at, self.trial.created_at, self.now)
        return within(at, of.started_at or of.created_at, of.ended_at or self.now)


def read_history(conn: Connection, trial_id: int, now: datetime) -> History | None:
    """Return the rows of a trial, None when there is no trial with this id."""
    of = {"trial": trial_id}
    trial = statements.first(conn, _OF_TRIAL, of)
    if trial is None:
        return None
    queries = (
        _ATTEMPTS,
        _REQUESTS,
        _SLOTS,
        _NOTES,
        _RUNGS,
        _FIRST_SAVED,
        _LATEST_SAVED,
        _SAVED_COUNT,
        _FAILED_RANKS,
        _JOBS,
        _STARTS,
    )
    own, requests, slots, notes, rungs, first, latest, [saved], failed, jobs, starts = statements.read(
        conn, queries, of
    )
    known = {row.id for row in first}
    return History(
        now=now,
        trial=trial,
        attempts=own,
        requests=requests,
        slots=slots,
        notes=notes,
        rungs=rungs,
        first_saved=first,
        latest_saved=[row for row in reversed(latest) if row.id not in known],
        saved_count=saved.all,
        failed_ranks=failed,
        stragglers=find_stragglers(conn, trial_id),
        jobs=jobs[::-1],
        starts=[_start(*row) for row in reversed(starts)],
    )


def _start(attempt_id: int, host: str, body: Mapping[str, Any]) -> Start:
    """Return the start of the ranks of a host, whatever the host reported."""
    forked, why = body.get("forked"), body.get("why_executed")
    is_forked = forked if isinstance(forked, bool) else None
    return Start(attempt_id, host, is_forked, one_line(why, 120) if isinstance(why, str) else "")
