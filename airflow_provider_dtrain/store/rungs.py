"""Rungs of a search: reports of its trials, and the decisions on them.

The search's row is locked after all other rows, until the end of the transaction, so that the next report sees the
entry of this one. An index over (rung, rank value) counts the entries for a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.search.asha import LAST, advance, continuing, rank_value
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AttemptRow
from airflow_provider_dtrain.store.database.statements import ByDialect, Values
from airflow_provider_dtrain.store.database.tables import attempts, configs, rung_entries, searches, trials

_MINE = rung_entries.alias("mine")
_OF_SEARCH = searches.join(trials, trials.c.search_id == searches.c.id)
_IS_TRIAL = trials.c.id == sa.bindparam("trial")
#: Does not block the key-share lock of a concurrent submission of a trial.
_LOCK = (
    sa.select(searches.c.id, searches.c.rungs, searches.c.divisor, searches.c.smaller_is_better, trials.c.bracket)
    .select_from(_OF_SEARCH)
    .where(_IS_TRIAL)
    .with_for_update(of=searches, key_share=True)
)
_OWN = (
    sa.select(trials.c.cleared_at, trials.c.draw, rung_entries.c.rung, rung_entries.c.decision, rung_entries.c.is_error)
    .select_from(trials.outerjoin(rung_entries, rung_entries.c.trial_id == trials.c.id))
    .where(_IS_TRIAL)
)
_WAITS_FOR = sa.select(sa.func.coalesce(sa.func.max(_MINE.c.rung), -1) + 1).where(
    _MINE.c.trial_id == sa.bindparam("trial"), sa.not_(_MINE.c.is_error)
)
_SMALLER = sa.select(searches.c.smaller_is_better).select_from(_OF_SEARCH).where(_IS_TRIAL).scalar_subquery()
_RANK_VALUE = sa.case((_SMALLER, sa.bindparam("smaller")), else_=sa.bindparam("larger"))


def _standing(rung: sa.ColumnElement[int]) -> sa.Select[Any]:
    """Return the query for the number of entries of a rung, and for the trial's place among them.

    The place is the number of entries with a rank value up to the trial's. The query has two plain counts without a
    join, so that the index alone answers them: 10,000 entries in less than 1 ms.
    """
    there = (
        rung_entries.c.search_id == sa.select(trials.c.search_id).where(_IS_TRIAL).scalar_subquery(),
        rung_entries.c.bracket == sa.select(trials.c.bracket).where(_IS_TRIAL).scalar_subquery(),
        rung_entries.c.rung == rung,
        rung_entries.c.left_at.is_(None),
    )
    every = sa.select(sa.func.count()).select_from(rung_entries).where(*there)
    before = every.where(rung_entries.c.rank_value <= _RANK_VALUE)
    return sa.select(every.scalar_subquery().label("entries"), before.scalar_subquery().label("before"))


#: For the rung that a trial waits for, and for a later one that it reaches with the same report.
_FIRST, _LATER = _standing(_WAITS_FOR.scalar_subquery()), _standing(sa.bindparam("rung"))
#: Entry of a rung by its place, from 0.
_ENTRY_AT = (
    sa.select(rung_entries.c.rank_value)
    .where(
        rung_entries.c.search_id == sa.bindparam("search"),
        rung_entries.c.bracket == sa.bindparam("bracket"),
        rung_entries.c.rung == sa.bindparam("rung"),
        rung_entries.c.left_at.is_(None),
    )
    .order_by(rung_entries.c.rank_value)
    .limit(1)
    .offset(sa.bindparam("place"))
)
_NAMES = (
    "search_id", "bracket", "rung", "trial_id", "attempt_id", "metric", "units", "rank_value", "decision", "is_error",
    "at", "place", "entries", "cutoff",
)  # fmt: skip
_REPLACED = ("attempt_id", "metric", "units", "rank_value", "decision", "is_error", "at", "place", "entries", "cutoff")


def _insert(dialect: Any, *, replaces: bool) -> Any:
    insert = dialect.insert(rung_entries).values({name: sa.bindparam(f"new_{name}") for name in _NAMES})
    key = ["trial_id", "rung"]
    if not replaces:
        return insert.on_conflict_do_nothing(index_elements=key)
    values = {name: insert.excluded[name] for name in _REPLACED}
    # A stored decision is never replaced by a later report.
    return insert.on_conflict_do_update(index_elements=key, set_=values, where=rung_entries.c.is_error)


_ENTER = ByDialect(_insert(sqlite, replaces=True), _insert(postgresql, replaces=True))
_FAIL = ByDialect(_insert(sqlite, replaces=False), _insert(postgresql, replaces=False))
_SEARCHER = configs.c.document["searcher"]
#: A trial without a search has the metric of its configuration.
_BEST = (
    sa.select(
        sa.func.coalesce(searches.c.metric, _SEARCHER["metric"].as_string()).label("metric"),
        sa.func.coalesce(searches.c.smaller_is_better, _SEARCHER["smaller_is_better"].as_boolean(), sa.true()).label(
            "smaller_is_better"
        ),
        trials.c.best_metric,
        trials.c.draw,
    )
    .select_from(
        trials.join(configs, configs.c.config_id == trials.c.config_id).outerjoin(
            searches, searches.c.id == trials.c.search_id
        )
    )
    .where(_IS_TRIAL)
)


#: Highest value of the rung column.
_HIGHEST = 2**31 - 1


class _Place(NamedTuple):
    """Position of a trial in its search."""

    search: Any
    #: Units of training at each rung of its bracket.
    lengths: Sequence[int]
    #: The rung that it waits for.
    rung: int
    #: True: it has an entry there, because it failed.
    has_failed: bool


def answer(conn: Connection, attempt: AttemptRow, questions: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Enter a trial into the rungs that it reports at, and decide. Earlier decisions stay valid.

    :param attempt: locked; its rank 0 sent the events
    :param questions: events of kind ``rung``, in their order
    """
    for event in questions:
        asked = event.get("rung")
        if _is_number(asked):
            _answer(conn, attempt, event, min(int(asked or 0), _HIGHEST), now)


def _answer(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], asked: int, now: datetime) -> None:
    metric = _metric(event.get("metric"))
    units = event.get("units")
    of = {"trial": attempt.trial_id, "smaller": rank_value(metric), "larger": rank_value(metric, False)}
    locked, own, first = statements.read(conn, (_LOCK, _OWN, _FIRST), of)
    place = _place(locked, own)
    if place is None or asked < place.rung or _is_refused(conn, attempt, own[0].draw):
        return
    search = place.search
    lengths = place.lengths
    value = of["smaller" if search.smaller_is_better else "larger"]

    found: dict[int, tuple[int, int]] = {}

    def standing(rung: int, value: float) -> tuple[int, int]:
        if rung != place.rung:
            later = statements.first(conn, _LATER, {**of, "rung": rung})
            found[rung] = later.before, later.entries
        else:
            # Excludes the trial's own error entry, which this report replaces.
            found[rung] = first[0].before - (place.has_failed and value == LAST), first[0].entries - place.has_failed
        return found[rung]

    length = lengths[min(asked, len(lengths) - 1)]
    step = advance(lengths, search.divisor, rung=place.rung, length=length, value=value, standing=standing)
    rows = [
        _row(
            attempt,
            search,
            rung,
            now,
            metric=metric,
            rank_value=value,
            is_error=False,
            units=units if _is_number(units) else lengths[rung],
            decision=step.decision if rung == step.entered[-1] else "continue",
            place=found[rung][0] + 1,
            entries=found[rung][1] + 1,
            cutoff=_cutoff(conn, of, search, rung, value, found[rung]) if rung < len(lengths) - 1 else None,
        )
        for rung in step.entered
    ]
    statements.write(conn, [(_ENTER, rows)])


def _cutoff(
    conn: Connection, of: Mapping[str, Any], search: Any, rung: int, value: float, standing: tuple[int, int]
) -> float | None:
    """Return the last metric of a rung that lets a trial continue, None when that is no finite number.

    :param value: rank value of the trial, which the rung does not have yet
    :param standing: entries that rank no later, and all entries, without the trial
    """
    before, number = standing
    kept = continuing(number + 1, search.divisor)
    if before == kept - 1:
        cutoff = value
    else:
        # The entry of this place among the others: the trial's own entry is before it or behind it.
        place = kept - 2 if before < kept - 1 else kept - 1
        there = {"search": search.id, "bracket": search.bracket, "rung": rung, "place": place}
        cutoff = statements.first(conn, _ENTRY_AT, {**of, **there}).rank_value
    if not math.isfinite(cutoff):
        return None
    return cutoff if search.smaller_is_better else -cutoff


def note_failure(conn: Connection, attempt: AttemptRow, now: datetime) -> None:
    """Rank a failed or killed trial last in its next rung, until it reports there after all."""
    locked, own = statements.read(conn, (_LOCK, _OWN), {"trial": attempt.trial_id})
    place = _place(locked, own)
    if place is None:
        return
    units = place.lengths[place.rung - 1] if place.rung else 0
    values = {"metric": None, "rank_value": LAST, "units": units, "decision": None, "is_error": True}
    values |= {"place": None, "entries": None, "cutoff": None}
    statements.execute(conn, _FAIL, _row(attempt, place.search, place.rung, now, **values))


def leave(conn: Connection, search_id: int, trial_ids: Sequence[int], now: datetime) -> None:
    """Remove cleared trials from the rungs of their search. Decisions on other trials stay valid."""
    conn.execute(sa.select(searches.c.id).where(searches.c.id == search_id).with_for_update(key_share=True))
    own = (rung_entries.c.trial_id.in_(trial_ids), rung_entries.c.left_at.is_(None))
    conn.execute(rung_entries.update().where(*own).values(left_at=now))


def clear_reports(conn: Connection, trial_id: int, search_id: int | None) -> None:
    """Delete the reports of a trial with hyperparameters that were refused.

    Decisions on other trials stay valid. The old entries must go, because a trial has one entry per rung.
    """
    conn.execute(trials.update().where(trials.c.id == trial_id).values(best_metric=None, best_step=None))
    conn.execute(sa.select(searches.c.id).where(searches.c.id == search_id).with_for_update(key_share=True))
    conn.execute(rung_entries.delete().where(rung_entries.c.trial_id == trial_id))


def note_best(conn: Connection, attempt: AttemptRow, validations: Sequence[Mapping[str, Any]]) -> None:
    """Store the best value of the metric in the configuration with its trial.

    :param attempt: locked
    :param validations: events of kind ``validation`` of rank 0
    """
    search = conn.execute(_BEST, {"trial": attempt.trial_id}).one_or_none()
    if search is None or search.metric is None:
        return
    found = [
        (value, event.get("step"))
        for event in validations
        if isinstance(event.get("metrics"), Mapping)
        and (value := _metric(event["metrics"].get(search.metric))) is not None
    ]
    sign = 1 if search.smaller_is_better else -1
    best = min(found, key=lambda one: sign * one[0], default=None)
    if best is None or (search.best_metric is not None and sign * best[0] >= sign * search.best_metric):
        return
    if _is_refused(conn, attempt, search.draw):
        return
    values = {"best_metric": best[0], "best_step": best[1] if _is_number(best[1]) else None}
    same = (trials.c.id == attempt.trial_id, trials.c.draw == search.draw)
    conn.execute(trials.update().where(*same).values(**values))


def _is_refused(conn: Connection, attempt: AttemptRow, draw: int) -> bool:
    """Return whether an attempt's hyperparameters were refused and replaced, so that its reports are outdated.

    :param draw: index of the trial's current sample
    """
    if not draw:
        return False
    refused = sa.select(sa.func.max(attempts.c.number)).where(
        attempts.c.trial_id == attempt.trial_id, attempts.c.failure["error"].as_string() == "InvalidHPError"
    )
    return bool(attempt.number <= (conn.scalar(refused) or 0))


def _place(locked: Sequence[Any], own: Sequence[Any]) -> _Place | None:
    """Return the position of a trial, None when no further decision is made for it.

    :param locked: rows of ``_LOCK``
    :param own: rows of ``_OWN``, read after the lock
    """
    lengths = locked[0].rungs.get(str(locked[0].bracket)) if locked else None
    if not lengths:
        return None
    reported = [entry for entry in own if entry.rung is not None and not entry.is_error]
    is_decided = any(entry.decision != "continue" for entry in reported)
    rung = 1 + max((entry.rung for entry in reported), default=-1)
    if own[0].cleared_at is not None or is_decided or rung >= len(lengths):
        return None
    return _Place(locked[0], lengths, rung, has_failed=any(entry.is_error for entry in own))


def _row(attempt: AttemptRow, search: Any, rung: int, now: datetime, **values: Any) -> Values:
    of = {"search_id": search.id, "bracket": search.bracket, "trial_id": attempt.trial_id, "attempt_id": attempt.id}
    return {f"new_{name}": value for name, value in {**of, "rung": rung, "at": now, **values}.items()}


def _metric(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_number(value: Any) -> bool:
    """Return whether a host's value is an integer that a column can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
