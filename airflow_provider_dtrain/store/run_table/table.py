"""The table of runs: trials of all experiments, filtered, ordered, grouped and in pages."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.expressions.names import Kind, Name, is_usable
from airflow_provider_dtrain.core.expressions.tree import Expression, names_of
from airflow_provider_dtrain.core.search.dimensions import value_at
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.run_tables import latest_metrics
from airflow_provider_dtrain.store.database.tables import trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.labels import labels_of
from airflow_provider_dtrain.store.places import IS_DELETED_TRIAL
from airflow_provider_dtrain.store.records.pages import Labels
from airflow_provider_dtrain.store.records.runs import (
    GroupEntry,
    GroupFigures,
    GroupPageQuery,
    RunEntry,
    RunPageQuery,
    RunQuery,
    UsedNames,
)
from airflow_provider_dtrain.store.run_table.conditions import condition_of
from airflow_provider_dtrain.store.run_table.fact_columns import OF_SEVERAL_ROWS, REPLACED, Column, fact_column
from airflow_provider_dtrain.store.run_table.values import HPARAMS, RunRows, run_rows

#: Experiments whose latest trials name the hyperparameters and metrics in use, and most names of each.
EXPERIMENTS_MOST: Final = 300
NAMES_MOST: Final = 2000
#: A figure of a group leaves out larger values: the square of one would be no float.
_VALUE_MOST: Final = 1e150
_IDS_PER_STATEMENT: Final = 500


class RunTable:
    """Trials of all experiments, with columns of any hyperparameter, metric and fact."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def page(self, conn: Connection, query: RunPageQuery) -> tuple[list[RunEntry], int]:
        """Return one page of the matching trials, and the number of all that match.

        :raises UserError: the trials cannot be ordered by the column
        """
        now = self.db.now()
        run = _rows(conn, query, [query.sort] if query.sort else [], now)
        matching = sa.select(run.rows.c.id, sa.func.count().over().label("total")).where(*_where(query, run))
        order = _directed(query, [run.rows.c.id] if query.sort is None else _single(run, query.sort))
        found = conn.execute(matching.order_by(*order, run.rows.c.id).limit(query.limit).offset(query.offset)).all()
        # A page behind the last one has no row with the number of all.
        total = found[0].total if found else _count(conn, query, run) if query.offset else 0
        return _entries(conn, [row.id for row in found], query.columns, now), int(total)

    @reads
    def groups(self, conn: Connection, query: GroupPageQuery) -> tuple[list[GroupEntry], int]:
        """Return one page of the groups of the matching trials, and the number of all groups.

        :raises UserError: the trials cannot be grouped or ordered by a column, or a column has no numbers
        """
        return _groups(conn, query, self.db.now())

    @reads
    def configs(self, conn: Connection, query: RunQuery, most: int) -> list[int]:
        """Return the ids of the configurations of the latest matching trial of each experiment.

        :param most: ids
        """
        run = _rows(conn, query, [], self.db.now())
        latest = sa.select(sa.func.max(run.rows.c.id)).where(*_where(query, run)).group_by(run.rows.c.experiment_id)
        return list(conn.scalars(sa.select(trials.c.config_id).where(trials.c.id.in_(latest)).distinct().limit(most)))

    @reads
    def names(self, conn: Connection, dags: Collection[str] | None) -> UsedNames:
        """Return hyperparameters and metrics of the latest trials of the latest experiments.

        :param dags: only of these DAGs; None = all
        """
        latest = sa.select(sa.func.max(trials.c.id).label("id")).where(sa.not_(IS_DELETED_TRIAL))
        latest = latest.group_by(trials.c.experiment_id)
        latest = latest if dags is None else latest.where(trials.c.dag_id.in_(sorted(dags)))
        ids = latest.order_by(sa.desc("id")).limit(EXPERIMENTS_MOST).subquery()
        rows = conn.execute(
            sa.select(
                sa.type_coerce(HPARAMS, trials.c.hparams.type), latest_metrics.c.validation, latest_metrics.c.training
            ).select_from(ids.join(trials, trials.c.id == ids.c.id).outerjoin(latest_metrics))
        )
        params: set[Name] = set()
        metrics: set[Name] = set()
        for hparams, validation, training in rows:
            params |= {Name("params", path) for path in _leaves(hparams or {}) if all(map(is_usable, path))}
            metrics |= {Name("metrics", (one,)) for one in (*(validation or {}), *(training or {})) if is_usable(one)}
        return UsedNames(params=sorted(params)[:NAMES_MOST], metrics=sorted(metrics)[:NAMES_MOST])


def matching_ids(
    conn: Connection, where: Expression, now: datetime, among: Sequence[sa.ColumnElement[bool]]
) -> sa.Select[Any]:
    """Return the query for the ids of the trials that meet an expression.

    :param among: conditions of the trials of which the values are read
    """
    run = run_rows(conn, list(names_of(where)), among, now)
    return sa.select(run.rows.c.id).where(condition_of(where, run))


def _rows(conn: Connection, query: RunQuery, further: Sequence[Name], now: datetime) -> RunRows:
    conditions = [sa.not_(IS_DELETED_TRIAL), *([] if query.with_replaced else [sa.not_(REPLACED)])]
    if query.dags is not None:
        conditions.append(trials.c.dag_id.in_(sorted(query.dags)))
    names = [*(names_of(query.where) if query.where else ()), *further]
    return run_rows(conn, names, conditions, now)


def _where(query: RunQuery, run: RunRows) -> list[sa.ColumnElement[bool]]:
    return [] if query.where is None else [condition_of(query.where, run)]


def _count(conn: Connection, query: RunQuery, run: RunRows) -> int:
    counted = sa.select(sa.func.count()).select_from(run.rows).where(*_where(query, run))
    return int(conn.scalar(counted) or 0)


def _directed(query: RunQuery, columns: Sequence[Column]) -> list[Column]:
    return [(column.desc() if query.descending else column.asc()).nulls_last() for column in columns]


def _single(run: RunRows, name: Name) -> Sequence[Column]:
    """Return the columns of the order by a name.

    :raises UserError: a trial may have several values
    """
    if name not in run.values:
        raise UserError(f"Trials cannot be ordered or grouped by {name}: a trial may have several.")
    return run.values[name].order


def _entries(conn: Connection, ids: Sequence[int], columns: Sequence[Name], now: datetime) -> list[RunEntry]:
    found: dict[int, RunEntry] = {}
    for start in range(0, len(ids), _IDS_PER_STATEMENT):
        for entry in _read(conn, ids[start : start + _IDS_PER_STATEMENT], columns, now):
            found[entry.trial_id] = entry
    return [found[trial_id] for trial_id in ids if trial_id in found]


def _read(conn: Connection, ids: Sequence[int], columns: Sequence[Name], now: datetime) -> Iterator[RunEntry]:
    is_postgresql = conn.dialect.name == "postgresql"
    always = ("trial", "experiment_id", "experiment", "number", "name", "never_fits")
    facts = [one.path[0] for one in columns if one.space == "fact" and one.path[0] not in OF_SEVERAL_ROWS]
    chosen = [fact_column(one, now, is_postgresql=is_postgresql).label(one) for one in dict.fromkeys((*always, *facts))]
    hparams = sa.type_coerce(HPARAMS, trials.c.hparams.type).label("of_hparams")
    documents = [hparams, latest_metrics.c.validation, latest_metrics.c.training]
    source = trials.outerjoin(latest_metrics, latest_metrics.c.trial_id == trials.c.id)
    of_state = trials.c.state.label("trial_state")
    query: sa.Select[Any] = sa.select(*chosen, of_state, *documents)
    rows = conn.execute(query.select_from(source).where(trials.c.id.in_(ids))).all()
    tags = _tags(conn, rows) if any(one == Name("fact", ("tag",)) for one in columns) else {}
    for row in rows:
        values = [_value(row, one, tags) for one in columns]
        fixed = {name: getattr(row, name) for name in always[1:]}
        yield RunEntry(trial_id=row.trial, state=row.trial_state, values=values, **fixed)


def _tags(conn: Connection, rows: Sequence[Row[Any]]) -> Mapping[int, list[str]]:
    """Return the tags of each trial and of its experiment."""
    own = labels_of(conn, "trial", {row.trial for row in rows})
    shared = labels_of(conn, "experiment", {row.experiment_id for row in rows})
    none = Labels()
    return {
        row.trial: sorted({*own.get(row.trial, none).tags, *shared.get(row.experiment_id, none).tags}) for row in rows
    }


def _value(row: Row[Any], name: Name, tags: Mapping[int, list[str]]) -> Any:
    if name.space == "params":
        return value_at(row.of_hparams or {}, name.path)
    if name.space == "metrics":
        validation, training = row.validation or {}, row.training or {}
        return validation.get(name.path[0], training.get(name.path[0]))
    return tags.get(row.trial, []) if name.kind is Kind.TEXTS else getattr(row, name.path[0])


def _groups(conn: Connection, query: GroupPageQuery, now: datetime) -> tuple[list[GroupEntry], int]:
    run = _rows(conn, query, [one for one in (*query.by, *query.columns) if one is not None], now)
    keys = [_keys(run, one) for one in query.by]
    key_columns = [column.label(f"k{n}_{i}") for n, of in enumerate(keys) for i, column in enumerate(of)]
    numbers = [_number(run, one).label(f"v{n}") for n, one in enumerate(query.columns)]
    source: Any = run.rows
    if None in query.by:
        source = run.rows.join(trials, trials.c.id == run.rows.c.id)
    inner = sa.select(*key_columns, *numbers).select_from(source).where(*_where(query, run)).subquery("chosen")
    by = [inner.c[one.name] for one in key_columns]
    means = [sa.func.avg(inner.c[one.name]).over(partition_by=by).label(f"m{n}") for n, one in enumerate(numbers)]
    # The distance to the mean, not the difference of two large sums.
    rows = sa.select(inner, *means).subquery("centred")
    figures = [column for n in range(len(numbers)) for column in _figures(rows, n)]
    by = [rows.c[one.name] for one in key_columns]
    count = sa.func.count().label("trials")
    total = sa.func.count().over().label("total")
    grouped: sa.Select[Any] = sa.select(*by, count, total, *figures)
    grouped = grouped.group_by(*by)
    order = _directed(query, _group_order(query, keys, rows, count))
    found = conn.execute(grouped.order_by(*order, *_ties(by)).limit(query.limit).offset(query.offset)).all()
    if not found and query.offset:
        total_of_all = conn.scalar(sa.select(sa.func.count()).select_from(grouped.subquery()))
        return [], int(total_of_all or 0)
    return [_group(row, query, keys) for row in found], int(found[0].total) if found else 0


def _keys(run: RunRows, name: Name | None) -> Sequence[Column]:
    return [sa.cast(HPARAMS, sa.Text)] if name is None else _single(run, name)


def _number(run: RunRows, name: Name) -> Column:
    """Return the number of a column as a float, NULL if its square is none.

    :raises UserError: the column has no numbers
    """
    number = run.values[name].number if name in run.values else None
    if number is None:
        raise UserError(f"{name} has no mean: it is a {name.kind}. Choose a number, a metric or a hyperparameter.")
    return sa.case((sa.func.abs(number) <= _VALUE_MOST, sa.cast(number, sa.Double)))


def _figures(rows: sa.Subquery, n: int) -> list[sa.Label[Any]]:
    value, mean = rows.c[f"v{n}"], rows.c[f"m{n}"]
    count = sa.func.count(value)
    # NULL for less than two values.
    variance = sa.func.sum((value - mean) * (value - mean)) / sa.func.nullif(count - 1, 0)
    return [
        count.label(f"count{n}"),
        sa.func.max(mean).label(f"mean{n}"),
        variance.label(f"std{n}"),
        sa.func.min(value).label(f"min{n}"),
        sa.func.max(value).label(f"max{n}"),
    ]


def _group_order(
    query: GroupPageQuery, keys: Sequence[Sequence[Column]], rows: sa.Subquery, count: Column
) -> Sequence[Column]:
    """Return the columns by which groups are ordered.

    :raises UserError: the column is not in the table
    """
    if query.measure is None and query.sort in query.by:
        n = [*query.by].index(query.sort)
        return [rows.c[f"k{n}_{i}"] for i in range(len(keys[n]))]
    if query.measure == "count" and query.sort is None:
        return [count]
    if query.measure is None or query.sort is None or query.sort not in query.columns:
        raise UserError(f"Groups cannot be ordered by {query.sort}: it is no column of the table.")
    wanted = f"{query.measure}{[*query.columns].index(query.sort)}"
    return [one.element for n in range(len(query.columns)) for one in _figures(rows, n) if one.name == wanted]


def _ties(by: Sequence[Column]) -> list[Column]:
    return [column.asc().nulls_last() for column in by]


def _group(row: Row[Any], query: GroupPageQuery, keys: Sequence[Sequence[Column]]) -> GroupEntry:
    own = row._mapping
    figures = [
        GroupFigures(
            count=own[f"count{n}"],
            mean=own[f"mean{n}"],
            # Rounding may make the variance of equal values negative.
            std=None if own[f"std{n}"] is None else math.sqrt(max(0.0, own[f"std{n}"])),
            min=own[f"min{n}"],
            max=own[f"max{n}"],
        )
        for n in range(len(query.columns))
    ]
    values = [_key(name, [own[f"k{n}_{i}"] for i in range(len(keys[n]))]) for n, name in enumerate(query.by)]
    return GroupEntry(keys=values, count=row.trials, figures=figures)


def _key(name: Name | None, parts: Sequence[Any]) -> Any:
    """Return the value that a group has in common."""
    if name is not None and name.space == "fact":
        return parts[0]
    number, other = (None, parts[0]) if name is None else (parts[0], parts[1] if len(parts) > 1 else None)
    if isinstance(number, Decimal):
        return int(number) if number == number.to_integral_value() else float(number)
    return number if number is not None or other is None else json.loads(other)


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)
