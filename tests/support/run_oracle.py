"""The meaning of filter expressions, over plain values: what SQL has to agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.core.expressions.names import Kind, Name
from airflow_provider_dtrain.core.expressions.tree import And, Comparison, Expression, Not, Or

#: Values of one trial: facts, ``params`` and ``metrics``.
Values = Mapping[str, Any]
OPPOSITES = {"!=": "=", "!~": "~", "not in": "in"}


def value_of(row: Values, name: Name) -> Any:
    """Return the value of a name, None where it is missing."""
    if name.space == "fact":
        return row.get(name.path[0])
    if name.space == "metrics":
        found = row["metrics"].get(name.path[0])
        return None if isinstance(found, str) else found
    found = row["params"]
    for part in name.path:
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found


def matches(row: Values, expression: Expression) -> bool:
    """Return whether an expression is true for a trial."""
    match expression:
        case And(parts=parts):
            return all(matches(row, part) for part in parts)
        case Or(parts=parts):
            return any(matches(row, part) for part in parts)
        case Not(part=part):
            return not matches(row, part)
        case Comparison(name=name, operator=operator, values=values):
            return compares(value_of(row, name), operator, values, name.kind)


def compares(value: Any, operator: str, wanted: Sequence[Any], kind: Kind) -> bool:
    if kind is Kind.TEXTS:
        positive = (
            bool(value)
            if wanted == (None,)
            else any(compares(one, OPPOSITES.get(operator, operator), wanted, Kind.TEXT) for one in value)
        )
        return positive != (operator in OPPOSITES) if wanted != (None,) else positive == (operator == "!=")
    if wanted == (None,):
        return (value is None) == (operator == "=")
    if value is None:
        return False
    if operator in OPPOSITES:
        return not any(compares(value, OPPOSITES[operator], (one,), kind) for one in wanted)
    return any(_compares(value, operator, one) for one in wanted)


def _compares(value: Any, operator: str, wanted: Any) -> bool:
    if type_of(value) is not type_of(wanted):
        return False
    # An integer beyond 64 bits is a float for SQLite.
    value = float(value) if type_of(value) is float else value
    match operator:
        case "=" | "in":
            return bool(value == wanted)
        case "~":
            return lowered(wanted) in lowered(value)
        case "<":
            return bool(value < wanted)
        case "<=":
            return bool(value <= wanted)
        case ">":
            return bool(value > wanted)
    return bool(value >= wanted)


def type_of(value: Any) -> type:
    for kind in (bool, str, datetime):
        if isinstance(value, kind):
            return kind
    return float if isinstance(value, int | float) else list


def lowered(text: str) -> str:
    """Return a text with its ASCII letters in lower case."""
    return "".join(c.lower() if c.isascii() else c for c in text)
