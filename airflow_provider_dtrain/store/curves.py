"""Curves of reported metrics: the branch that counts after restarts, with as many points as a chart can draw."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.reduction import reduced
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricName
from airflow_provider_dtrain.store.database.connections import NON_FINITE, restore_floats
from airflow_provider_dtrain.store.database.tables import attempts, metrics, streams
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.records.curves import CurveOf

#: Most reports that one answer reads. A trial with more is sampled.
ROWS_MOST = 20_000
#: Latest reports of a group of a trial in which names are looked up.
NAMES_OF_ROWS = 20
#: Characters of a name that a JSON path can hold on every database. Whole reports are read for other names.
_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - frozenset('"\\')
GROUPS: tuple[MetricGroup, ...] = ("validation", "training", "builtin")

#: Groups of what programs report.
REPORTED = GROUPS[:2]


class Curves:
    """Metrics over steps. The cost depends on the points that are drawn, not on the reports that are stored."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def versions(self, conn: Connection, trial_ids: Collection[int]) -> dict[int, tuple[int, ...]]:
        """Return a value per trial that changes whenever a curve of it may have changed.

        Reports of other trials do not change it. Reports are stored together with the position in their file, so the
        positions stand for the reports: they are a few rows per trial. A restarted file has a higher epoch.
        """
        rows = conn.execute(_VERSIONS, {"trials": list(trial_ids)})
        return {row[0]: tuple(int(value) for value in row[1:]) for row in rows}

    @reads
    def newest(self, conn: Connection) -> int:
        """Return the id of the latest report of all trials."""
        return int(conn.scalar(sa.select(sa.func.max(metrics.c.id))) or 0)

    @reads
    def names(self, conn: Connection, trial_ids: Sequence[int]) -> list[MetricName]:
        """Return the metrics that these trials reported lately, those of validations first.

        :param trial_ids: a few; each costs three queries
        """
        found: dict[MetricGroup, set[str]] = {group: set() for group in GROUPS}
        for trial_id in trial_ids:
            for group in GROUPS:
                of = (metrics.c.trial_id == trial_id, metrics.c.metric_group == group)
                latest = sa.select(metrics.c.metrics).where(*of).order_by(metrics.c.step.desc()).limit(NAMES_OF_ROWS)
                for reported in conn.scalars(latest):
                    found[group].update(reported)
        return [MetricName(group=group, name=name) for group in GROUPS for name in sorted(found[group])]

    @reads
    def have_epochs(self, conn: Connection, trial_ids: Sequence[int]) -> bool:
        """Return whether the latest reports of one of these trials name their epoch.

        :param trial_ids: a few; each costs up to two queries
        """
        for trial_id in trial_ids:
            for group in REPORTED:
                of = (metrics.c.trial_id == trial_id, metrics.c.metric_group == group)
                latest = sa.select(metrics.c.epoch).where(*of).order_by(metrics.c.step.desc()).limit(1)
                if conn.scalar(latest) is not None:
                    return True
        return False

    @reads
    def of_trials(
        self,
        conn: Connection,
        trial_ids: Sequence[int],
        metric: str,
        group: MetricGroup,
        *,
        points: int,
        shared_by: int | None = None,
    ) -> list[CurveOf]:
        """Return one metric of several trials, in their order. Trials without it are left out.

        :param points: most points of one trial; minimum and maximum stay
        :param shared_by: number of trials of the chart, which share the reports that are read; None = these
        """
        most = max(10, ROWS_MOST // max(1, len(trial_ids) if shared_by is None else shared_by))
        found = {one.trial_id: one for one in _read(conn, trial_ids, group, [metric], most)}
        return [_reduced(found[trial_id], points) for trial_id in trial_ids if trial_id in found]

    @reads
    def of_trial(self, conn: Connection, trial_id: int, wanted: Sequence[MetricName], *, points: int) -> list[CurveOf]:
        """Return several metrics of one trial.

        :param points: most points of one metric; minimum and maximum stay
        """
        found: list[CurveOf] = []
        for group in GROUPS:
            names = [one.name for one in wanted if one.group == group]
            if names:
                most = max(points, ROWS_MOST // len(names))
                found += [_reduced(one, points) for one in _read(conn, [trial_id], group, names, most)]
        order = {(one.group, one.name): place for place, one in enumerate(wanted)}
        return sorted(found, key=lambda one: order[one.group, one.name])


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """Reports of one attempt that count: those before the first step of every later attempt."""

    trial_id: int
    attempt_id: int
    number: int
    first: int
    #: Exclusive; None = all later ones.
    limit: int | None
    #: Reports of the attempt, counted up to a bound.
    counted: int


def _read(
    conn: Connection, trial_ids: Sequence[int], group: MetricGroup, names: Sequence[str], most: int
) -> list[CurveOf]:
    """Return the curves of trials.

    :param most: reports of one trial that are read; of a trial with more, as many are chosen at even steps
    """
    segments = _segments(conn, trial_ids, group, most)
    of_trial: dict[int, list[_Segment]] = {}
    for one in segments:
        of_trial.setdefault(one.trial_id, []).append(one)
    large = {trial_id for trial_id, own in of_trial.items() if sum(one.counted for one in own) > most}
    whole = [one for one in segments if one.trial_id not in large]
    chosen: list[int] = []
    for trial_id in large:
        for one in of_trial[trial_id]:
            chosen += _sampled(conn, one, group, max(2, most // len(of_trial[trial_id])))
    numbers = {one.attempt_id: one for one in segments}
    series: dict[tuple[int, str], _Series] = {}
    for row in _rows(conn, group, names, [one.attempt_id for one in whole], chosen):
        of = numbers[row.attempt_id]
        if of.limit is not None and row.step >= of.limit:
            continue
        for index, name in enumerate(names):
            value = row[4 + index] if not _is_awkward(names) else restore_floats(row[4]).get(name)
            if value is not None:
                series.setdefault((of.trial_id, name), _Series()).add(row, of.number, value)
    return [one.curve(trial_id, group, name, is_sampled=trial_id in large) for (trial_id, name), one in series.items()]


@dataclass
class _Series:
    steps: list[int] = field(default_factory=list)
    epochs: list[float | None] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)

    def add(self, row: Any, number: int, value: Any) -> None:
        self.steps.append(row.step)
        self.epochs.append(row.epoch)
        self.at_s.append(row.at.timestamp())
        self.values.append(_number(value))
        self.attempts.append(number)

    def curve(self, trial_id: int, group: MetricGroup, name: str, *, is_sampled: bool) -> CurveOf:
        # Rows come by attempt; later attempts resume at later steps than those that count of earlier ones.
        order = sorted(range(len(self.steps)), key=lambda index: (self.steps[index], self.attempts[index]))
        return CurveOf(
            trial_id=trial_id,
            group=group,
            name=name,
            steps=[self.steps[index] for index in order],
            epochs=[self.epochs[index] for index in order],
            at_s=[self.at_s[index] for index in order],
            values=[self.values[index] for index in order],
            attempts=[self.attempts[index] for index in order],
            is_sampled=is_sampled,
        )


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return NON_FINITE.get(value)
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _reduced(curve: CurveOf, points: int) -> CurveOf:
    if len(curve.steps) <= points:
        return curve
    kept = reduced(curve.values, max(4, points))
    return CurveOf(
        trial_id=curve.trial_id,
        group=curve.group,
        name=curve.name,
        steps=[curve.steps[index] for index in kept],
        epochs=[curve.epochs[index] for index in kept],
        at_s=[curve.at_s[index] for index in kept],
        values=[curve.values[index] for index in kept],
        attempts=[curve.attempts[index] for index in kept],
        is_sampled=curve.is_sampled,
    )


#: Files whose reports are those of rank 0, which curves show.
_FILES = ("rank0.events", "supervisor.events")
_VERSIONS: sa.Select[Any] = (
    sa.select(
        attempts.c.trial_id,
        sa.func.max(attempts.c.id),
        sa.func.coalesce(sa.func.sum(streams.c.epoch), 0),
        sa.func.coalesce(sa.func.sum(streams.c.position), 0),
    )
    .select_from(
        attempts.outerjoin(streams, sa.and_(streams.c.attempt_id == attempts.c.id, streams.c.stream.in_(_FILES)))
    )
    .where(attempts.c.trial_id.in_(sa.bindparam("trials", expanding=True)))
    .group_by(attempts.c.trial_id)
)


def _first(group: MetricGroup) -> sa.ScalarSelect[Any]:
    of = (metrics.c.attempt_id == attempts.c.id, metrics.c.metric_group == group, metrics.c.rank == 0)
    query = sa.select(metrics.c.step).where(*of).order_by(metrics.c.step).limit(1)
    return query.correlate(attempts).scalar_subquery()


def _counted(group: MetricGroup) -> sa.ScalarSelect[Any]:
    of = (metrics.c.attempt_id == attempts.c.id, metrics.c.metric_group == group)
    some = sa.select(metrics.c.step).where(*of).limit(sa.bindparam("bound")).correlate(attempts).subquery()
    return sa.select(sa.func.count()).select_from(some).scalar_subquery()


_FIRSTS = {
    group: sa.select(
        attempts.c.id,
        attempts.c.trial_id,
        attempts.c.number,
        _first("training").label("training"),
        _first("validation").label("validation"),
        _first("builtin").label("builtin"),
        _counted(group).label("counted"),
    )
    .where(attempts.c.trial_id.in_(sa.bindparam("trials", expanding=True)))
    .order_by(attempts.c.trial_id, attempts.c.number.desc())
    for group in GROUPS
}


def _segments(conn: Connection, trial_ids: Sequence[int], group: MetricGroup, most: int) -> list[_Segment]:
    """Return the parts of the attempts that count, by the rule of ``core.lifecycle.current_branch``."""
    found: list[_Segment] = []
    limits: dict[int, int] = {}
    for row in conn.execute(_FIRSTS[group], {"trials": list(trial_ids), "bound": most + 1}):
        limit = limits.get(row.trial_id)
        firsts = [step for step in (row.training, row.validation, row.builtin) if step is not None]
        first = getattr(row, group)
        if first is not None and (limit is None or first < limit):
            found.append(
                _Segment(
                    trial_id=row.trial_id,
                    attempt_id=row.id,
                    number=row.number,
                    first=first,
                    limit=limit,
                    counted=row.counted,
                )
            )
        if firsts:
            limits[row.trial_id] = min(firsts) if limit is None else min(*firsts, limit)
    return found[::-1]


def _sampled(conn: Connection, of: _Segment, group: MetricGroup, count: int) -> list[int]:
    """Return the ids of reports at even steps of an attempt, by one index lookup each."""
    own = [metrics.c.attempt_id == of.attempt_id, metrics.c.metric_group == group, metrics.c.rank == 0]
    own = own if of.limit is None else [*own, metrics.c.step < of.limit]
    latest = sa.select(metrics.c.step, metrics.c.id).where(*own).order_by(metrics.c.step.desc()).limit(1)
    last = conn.execute(latest).one_or_none()
    if last is None:
        return []
    number = max(2, min(count, last.step - of.first + 1))
    gap = (last.step - of.first) // (number - 1)
    part = sa.select(sa.literal(0, sa.BigInteger).label("part")).cte("parts", recursive=True)
    part = part.union_all(sa.select(part.c.part + 1).where(part.c.part + 1 < number))
    found = (
        sa.select(metrics.c.id)
        .where(*own, metrics.c.step >= of.first + part.c.part * gap)
        .order_by(metrics.c.step, metrics.c.id)
        .limit(1)
        .correlate(part)
        .scalar_subquery()
    )
    ids = conn.scalars(sa.select(found).select_from(part))
    return sorted({one for one in ids if one is not None} | {last.id})


#: Ids of one statement.
_PIECE = 500


def _rows(
    conn: Connection, group: MetricGroup, names: Sequence[str], attempt_ids: Sequence[int], ids: Sequence[int]
) -> Iterator[Any]:
    """Yield attempt_id, step, epoch, at and the values of reports, or whole reports if a name is awkward."""
    values = [metrics.c.metrics] if _is_awkward(names) else [metrics.c.metrics[name] for name in names]
    labelled = [value.label(f"value{index}") for index, value in enumerate(values)]
    query = sa.select(metrics.c.attempt_id, metrics.c.step, metrics.c.epoch, metrics.c.at, *labelled)
    for some in _pieces(attempt_ids):
        where = (metrics.c.attempt_id.in_(some), metrics.c.metric_group == group, metrics.c.rank == 0)
        yield from conn.execute(query.where(*where)).all()
    for some in _pieces(ids):
        yield from conn.execute(query.where(metrics.c.id.in_(some))).all()


def _is_awkward(names: Sequence[str]) -> bool:
    return not all(_PLAIN.issuperset(name) for name in names)


def _pieces(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))
