"""Filter expressions as conditions of SQL, with bound parameters only.

No condition is NULL: a comparison with a missing value is false, so ``not`` of it is true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa

from airflow_provider_dtrain.core.expressions.names import Kind
from airflow_provider_dtrain.core.expressions.tree import And, Comparison, Expression, Not, Operator, Or, Value
from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.tables import tags
from airflow_provider_dtrain.store.run_table.values import RunRows, ValueColumns

Condition = sa.ColumnElement[bool]

#: Operators that are true if there is a value, and the other operator is false.
_OPPOSITE: Final[Mapping[Operator, Operator]] = {"!=": "=", "!~": "~", "not in": "in"}
_COMPARED: Final[Mapping[str, Callable[[Any, Any], Condition]]] = {
    "=": operator.eq,
    "in": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def condition_of(expression: Expression, run: RunRows) -> Condition:
    """Return the condition on rows that an expression stands for."""
    match expression:
        case And(parts=parts):
            return sa.and_(*(condition_of(part, run) for part in parts))
        case Or(parts=parts):
            return sa.or_(*(condition_of(part, run) for part in parts))
        case Not(part=part):
            return sa.not_(condition_of(part, run))
        case Comparison() if expression.name.kind is Kind.TEXTS:
            return _of_tags(expression, run)
        case Comparison():
            return _of_value(expression, run)


def _of_value(comparison: Comparison, run: RunRows) -> Condition:
    columns = run.values[comparison.name]
    if comparison.values == (None,):
        return columns.is_missing if comparison.operator == "=" else sa.not_(columns.is_missing)
    opposite = _OPPOSITE.get(comparison.operator)
    made = sa.or_(*(_compared(columns, opposite or comparison.operator, one, run) for one in comparison.values))
    never_null = sa.func.coalesce(made, sa.false())
    return never_null if opposite is None else sa.and_(sa.not_(columns.is_missing), sa.not_(never_null))


def _compared(columns: ValueColumns, sign: Operator, value: Value, run: RunRows) -> Condition:
    if isinstance(value, bool):
        return sa.false() if columns.flag is None else columns.flag == sa.literal(value)
    if isinstance(value, str):
        if columns.text is None:
            return sa.false()
        return contains_text(columns.text, value, run) if sign == "~" else columns.text == value
    if isinstance(value, float):
        if columns.number is None:
            return sa.false()
        # A float is a Numeric for SQLAlchemy.
        is_exact = type(columns.number.type) is sa.Numeric
        bound = sa.literal(Decimal(repr(value)), sa.Numeric()) if is_exact else sa.literal(value, sa.Double())
        return _COMPARED[sign](columns.number, bound)
    return sa.false() if columns.time is None else _COMPARED[sign](columns.time, sa.literal(value, UtcDateTime()))


def contains_text(column: sa.ColumnElement[Any], text: str, run: RunRows) -> Condition:
    """Return the condition that a text contains another one, in any case of ASCII letters: both databases agree."""
    wanted = "".join(c.lower() if c.isascii() else c for c in text)
    if run.is_postgresql:
        return sa.func.strpos(sa.func.lower(sa.collate(column, "C")), wanted) > 0
    return sa.func.instr(sa.func.lower(column), wanted) > 0


def _of_tags(comparison: Comparison, run: RunRows) -> Condition:
    opposite = _OPPOSITE.get(comparison.operator)
    sign = opposite or comparison.operator
    if comparison.values == (None,):
        has_some = _has_tag(run, sa.true())
        return has_some if opposite else sa.not_(has_some)
    texts = [str(one) for one in comparison.values]
    is_one = sa.or_(*(contains_text(tags.c.tag, one, run) for one in texts)) if sign == "~" else tags.c.tag.in_(texts)
    found = _has_tag(run, is_one)
    return sa.not_(found) if opposite else found


def _has_tag(run: RunRows, is_one: Condition) -> Condition:
    """Return the condition that the trial or its experiment has a tag.

    :param is_one: condition on the tag
    """
    # Not correlated: the databases read the tags once.
    own, of_experiment = (
        sa.select(tags.c.object_id).where(tags.c.kind == kind, is_one) for kind in ("trial", "experiment")
    )
    return sa.or_(run.rows.c.id.in_(own), run.rows.c.experiment_id.in_(of_experiment))
