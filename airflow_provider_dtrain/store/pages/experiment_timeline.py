"""The timeline of an experiment: which attempt held which slots, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import allocations, attempts, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.pages.trial_table import current_trials
from airflow_provider_dtrain.store.views import placements


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """Time in which an attempt held its slots."""

    trial_id: int
    trial_number: int
    #: State of the trial now.
    trial_state: str
    #: Best metric of the trial, None without one.
    metric: float | None
    #: From 1 in its trial.
    attempt: int
    attempt_state: str
    granted_at: datetime
    #: When its ranks ran, None if they never did.
    started_at: datetime | None
    #: None: it has not ended.
    ended_at: datetime | None
    #: Host -> slots.
    placement: Mapping[str, Sequence[int]]


class ExperimentTimeline:
    """Attempts of experiments with their slots."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def version(self, conn: Connection, experiment_id: int) -> tuple[object, ...]:
        """Return a value that changes whenever an attempt of an experiment gets slots, starts or ends."""
        every = sa.select(sa.func.count(attempts.c.id), sa.func.max(attempts.c.id))
        of_trials = attempts.join(trials, trials.c.id == attempts.c.trial_id)
        number = conn.execute(every.select_from(of_trials).where(*current_trials(experiment_id))).one()
        # Ended attempts do not change. Their rows, and those of their allocations, are most of the work.
        times = (allocations.c.granted_at, attempts.c.started_at)
        own = (sa.func.count(), sa.func.sum(attempts.c.id))
        figures = (*own, *(of(at) for at in times for of in (sa.func.count, sa.func.max)))
        live = _of(sa.select(attempts.c.state, *figures), experiment_id).where(attempts.c.ended_at.is_(None))
        by_state = conn.execute(live.group_by(attempts.c.state).order_by(attempts.c.state))
        return (*number, *map(tuple, by_state))

    @reads
    def spans(self, conn: Connection, experiment_id: int, *, most: int) -> tuple[list[AttemptSpan], int]:
        """Return the attempts that have got slots, oldest first, and their number.

        :param most: attempts, the latest ones
        """
        # All ids and then some rows: the database is slower to count all, and to sort whole rows.
        ids = sorted(conn.scalars(_granted(sa.select(attempts.c.id), experiment_id)))
        rows = conn.execute(_SPANS, {"attempts": ids[-most:]}).all() if ids else []
        placed = placements(conn, {row.allocation_id: row.token for row in rows if row.token is not None})
        return [_span(row, placed.get(row.allocation_id, {})) for row in rows], len(ids)


_JOINED = attempts.join(trials, trials.c.id == attempts.c.trial_id).join(
    allocations, allocations.c.id == attempts.c.allocation_id
)
#: An attempt on the gang of an earlier one, or on a held gang, holds its slots from its own begin.
_SINCE = sa.case(
    (allocations.c.granted_at < attempts.c.created_at, attempts.c.created_at), else_=allocations.c.granted_at
)
_SPANS: sa.Select[Any] = (
    sa.select(
        attempts.c.trial_id,
        trials.c.number.label("trial_number"),
        sa.type_coerce(trials.c.state, sa.String).label("trial_state"),
        trials.c.best_metric,
        attempts.c.number,
        sa.type_coerce(attempts.c.state, sa.String).label("state"),
        attempts.c.started_at,
        attempts.c.ended_at,
        attempts.c.allocation_id,
        _SINCE.label("since"),
        allocations.c.token,
    )
    .select_from(_JOINED)
    .where(attempts.c.id.in_(sa.bindparam("attempts", expanding=True)))
    .order_by(attempts.c.id)
)


def _of(query: sa.Select[Any], experiment_id: int) -> sa.Select[Any]:
    return query.select_from(_JOINED).where(*current_trials(experiment_id))


def _granted(query: sa.Select[Any], experiment_id: int) -> sa.Select[Any]:
    return _of(query, experiment_id).where(allocations.c.granted_at.is_not(None), attempts.c.state != "waiting")


def _span(row: Any, placed: Mapping[str, tuple[Sequence[int], bool]]) -> AttemptSpan:
    return AttemptSpan(
        trial_id=row.trial_id,
        trial_number=row.trial_number,
        trial_state=row.trial_state,
        metric=row.best_metric,
        attempt=row.number,
        attempt_state=row.state,
        granted_at=row.since,
        started_at=row.started_at,
        ended_at=row.ended_at,
        placement={host: list(slots) for host, (slots, _) in placed.items()},
    )
