"""Values of names in SQL: what comparisons, orders and groups of trials see."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from json import dumps
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.expressions.names import Kind, Name
from airflow_provider_dtrain.store.database.run_tables import latest_metrics
from airflow_provider_dtrain.store.database.tables import trials
from airflow_provider_dtrain.store.run_table.fact_columns import OF_SEVERAL_ROWS, Column, fact_column

#: Hyperparameters of a trial, NULL until they are sampled.
HPARAMS: Final = sa.case((trials.c.is_drawn, trials.c.hparams))


@dataclass(frozen=True, kw_only=True)
class ValueColumns:
    """Columns of one name. Each is NULL where the value is missing or of another type."""

    number: Column | None = None
    text: Column | None = None
    time: Column | None = None
    flag: Column | None = None
    #: Columns by which rows are ordered and grouped: numbers by value, then other values as JSON.
    order: Sequence[Column]
    #: True where there is no value.
    is_missing: sa.ColumnElement[bool]


@dataclass(frozen=True, kw_only=True)
class RunRows:
    """Trials with the values of some names."""

    #: Columns ``id``, ``experiment_id`` and those of the names.
    rows: sa.Subquery
    values: Mapping[Name, ValueColumns]
    is_postgresql: bool


def run_rows(
    conn: Connection, names: Collection[Name], where: Sequence[sa.ColumnElement[bool]], now: datetime
) -> RunRows:
    """Return the trials that meet conditions, with the values of names.

    Each hyperparameter is read once per row, in a subquery of its own: a database parses the JSON wherever it is named.

    :param where: conditions on the table of trials
    """
    is_postgresql = conn.dialect.name == "postgresql"
    singles = [name for name in dict.fromkeys(names) if name.path[0] not in OF_SEVERAL_ROWS or name.space != "fact"]
    columns: list[Column] = [trials.c.id, trials.c.experiment_id]
    for index, name in enumerate(singles):
        columns += [part.label(f"{kind}{index}") for kind, part in _parts(name, now, is_postgresql).items()]
    source: Any = trials
    if any(name.space == "metrics" for name in singles):
        source = trials.outerjoin(latest_metrics, latest_metrics.c.trial_id == trials.c.id)
    # OFFSET keeps the databases from putting the parts into each place that names them.
    rows = sa.select(*columns).select_from(source).where(*where).offset(0).subquery("run")
    values = {name: _columns(rows, index, name, is_postgresql) for index, name in enumerate(singles)}
    return RunRows(rows=rows, values=values, is_postgresql=is_postgresql)


def _parts(name: Name, now: datetime, is_postgresql: bool) -> Mapping[str, Column]:
    """Return the columns of the subquery from which the values of a name follow."""
    if name.space == "fact":
        return {"fact": fact_column(name.path[0], now, is_postgresql=is_postgresql)}
    documents = [HPARAMS] if name.space == "params" else [latest_metrics.c.validation, latest_metrics.c.training]
    if is_postgresql:
        # PostgreSQL reads no member of a document with a NUL, which a configuration may have. Hosts send none.
        has_none = sa.func.strpos(sa.cast(HPARAMS, sa.Text), r"\u0000") == 0
        documents = [sa.case((has_none, HPARAMS))] if name.space == "params" else documents
        found = [_member(document, name.path) for document in documents]
        return {"json": found[0] if len(found) == 1 else sa.func.coalesce(*found, type_=sa.JSON())}
    # Keys in the store have ASCII characters only.
    path = "$" + "".join(f".{dumps(part)}" for part in name.path)
    types = [sa.func.json_type(document, path, type_=sa.String) for document in documents]
    extracts = [sa.func.json_extract(document, path, type_=sa.types.NullType()) for document in documents]
    if len(documents) == 1:
        return {"type": types[0], "value": extracts[0]}
    return {"type": sa.func.coalesce(*types), "value": sa.func.coalesce(*extracts)}


def _member(document: Column, path: Sequence[str]) -> Column:
    found = document
    for part in path:
        # Not ->> with a path, which counts the values of lists.
        found = sa.type_coerce(found, sa.String).op("->", return_type=sa.String())(sa.cast(part, sa.Text))
    return found


def _columns(rows: sa.Subquery, index: int, name: Name, is_postgresql: bool) -> ValueColumns:
    if name.space == "fact":
        column = rows.c[f"fact{index}"]
        kind = {Kind.NUMBER: "number", Kind.TEXT: "text", Kind.TIME: "time", Kind.FLAG: "flag"}[name.kind]
        return ValueColumns(is_missing=column.is_(None), order=[column], **{kind: column})
    return _of_postgresql(rows, index, name) if is_postgresql else _of_sqlite(rows, index, name)


def _of_postgresql(rows: sa.Subquery, index: int, name: Name) -> ValueColumns:
    value = rows.c[f"json{index}"]
    kind = sa.func.json_typeof(value)
    text = sa.type_coerce(value, sa.String).op("#>>", return_type=sa.Text())(sa.literal_column("'{}'"))
    # numeric, because an integer may be larger than a float can be.
    number = sa.case((kind == "number", sa.cast(text, sa.Numeric)))
    if name.space == "metrics":
        return ValueColumns(number=number, order=[number], is_missing=number.is_(None))
    return ValueColumns(
        number=number,
        text=sa.case((kind == "string", text)),
        flag=sa.case((kind == "boolean", text == "true")),
        order=[number, sa.case((kind.not_in(("number", "null")), sa.cast(value, sa.Text)))],
        is_missing=sa.or_(kind.is_(None), kind == "null"),
    )


def _of_sqlite(rows: sa.Subquery, index: int, name: Name) -> ValueColumns:
    value, kind = rows.c[f"value{index}"], rows.c[f"type{index}"]
    number = sa.case((kind.in_(("integer", "real")), sa.type_coerce(value, sa.Double)))
    if name.space == "metrics":
        return ValueColumns(number=number, order=[number], is_missing=number.is_(None))
    text = sa.type_coerce(value, sa.String)
    as_json = sa.case((kind.in_(("true", "false")), kind), (kind == "text", sa.func.json_quote(text)), else_=text)
    return ValueColumns(
        number=number,
        text=sa.case((kind == "text", text)),
        flag=sa.case((kind.in_(("true", "false")), kind == "true")),
        order=[number, sa.case((kind.not_in(("integer", "real", "null")), as_json))],
        is_missing=sa.or_(kind.is_(None), kind == "null"),
    )
