"""Rungs of a search: which trial was stopped where, against which others, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.reduction import even
from airflow_provider_dtrain.core.search.standings import Entered, Standing, cut_off_now, metric_of, standings
from airflow_provider_dtrain.store.database.connections import aware
from airflow_provider_dtrain.store.database.tables import rung_entries, searches, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.records.pages import RungStanding, RungState


class RungPage:
    """Rungs of searches with all their reports."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def version(self, conn: Connection, search_id: int) -> tuple[object, ...]:
        """Return a value that changes whenever a rung of a search may have changed."""
        of = rung_entries.c
        query = sa.select(sa.func.count(), sa.func.max(of.id), sa.func.max(of.at), sa.func.max(of.left_at))
        return tuple(conn.execute(query.where(of.search_id == search_id)).one())

    @reads
    def rungs(self, conn: Connection, search_id: int, *, most: int) -> list[RungState]:
        """Return the rungs of a search by bracket and length.

        :param most: reports per rung; of more, the best half, and as many of the rest at even places
        """
        search = conn.execute(sa.select(searches).where(searches.c.id == search_id)).one_or_none()
        if search is None:
            return []
        at: dict[tuple[int, int], list[Any]] = {}
        for row in conn.execute(_ENTRIES.where(rung_entries.c.search_id == search_id)).all():
            at.setdefault((row[0], row[1]), []).append(row)
        return [
            _rung(search, int(bracket), rung, units, at.get((int(bracket), rung), []), len(lengths), most)
            for bracket, lengths in sorted(search.rungs.items(), key=lambda one: int(one[0]))
            for rung, units in enumerate(lengths)
        ]


#: Times stay as the driver returns them, which is enough to compare them: the conversion of 10,000 is slow.
_TIMES = sa.DateTime(timezone=True)
_ENTRIES: sa.Select[Any] = (
    sa.select(
        *(rung_entries.c[name] for name in ("bracket", "rung", "id", "rank_value", "decision")),
        *(sa.type_coerce(rung_entries.c[name], _TIMES).label(name) for name in ("at", "left_at")),
        *(rung_entries.c[name] for name in ("trial_id", "units", "metric", "is_error")),
        trials.c.number,
    )
    .join(trials, trials.c.id == rung_entries.c.trial_id)
    .order_by(rung_entries.c.rank_value, rung_entries.c.id)
)


def _rung(search: Any, bracket: int, rung: int, units: int, rows: Sequence[Any], count: int, most: int) -> RungState:
    entries = [Entered(value, order, at, left_at) for _, _, order, value, _, at, left_at, *_ in rows]
    is_top = rung == count - 1
    then = standings(entries, search.divisor)
    kept = range(len(rows)) if len(rows) <= most else _chosen(len(rows), most)
    smaller = search.smaller_is_better
    now = None if is_top or not rows else cut_off_now(entries, search.divisor)
    decided = [row[4] for row in rows]
    return RungState(
        bracket=bracket,
        rung=rung,
        units=units,
        reported=len(rows),
        continued=decided.count("continue"),
        stopped=decided.count("stop"),
        cut_off=metric_of(now, smaller_is_better=smaller),
        entries=[_entry(rows[index], then[index], smaller=smaller, is_top=is_top) for index in kept],
    )


def _chosen(count: int, most: int) -> Sequence[int]:
    """Return the places that are shown of a long rung: the best half, and even places of the rest."""
    best = most // 2
    return [*range(best), *even(best, count - 1, most - best)]


def _entry(row: Any, then: Standing, *, smaller: bool, is_top: bool) -> RungStanding:
    cut_off = None if is_top else metric_of(then.cut_off, smaller_is_better=smaller)
    distance = None
    if cut_off is not None and row.metric is not None:
        distance = cut_off - row.metric if smaller else row.metric - cut_off
    return RungStanding(
        trial_id=row.trial_id,
        trial_number=row.number,
        units=row.units,
        metric=row.metric,
        decision=row.decision,
        place=then.place,
        of=then.of,
        cut_off=cut_off,
        distance=distance,
        is_error=row.is_error,
        has_left=row.left_at is not None,
        at=aware(row.at),
    )
