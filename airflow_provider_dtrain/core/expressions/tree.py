"""Parsed filter expressions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_provider_dtrain.core.expressions.names import Name

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "!~", "in", "not in"]
#: None stands for ``null``.
Value = float | str | bool | datetime | None


@dataclass(frozen=True)
class Comparison:
    """A name compared with a value, or with several for ``in`` and ``not in``."""

    name: Name
    operator: Operator
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Not:
    """True if an expression is false."""

    part: Expression


@dataclass(frozen=True)
class And:
    """True if all of several expressions are."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Or:
    """True if one of several expressions is."""

    parts: tuple[Expression, ...]


Expression = Comparison | Not | And | Or


def names_of(expression: Expression) -> Iterator[Name]:
    """Yield the names in an expression, in the order in which they are written."""
    match expression:
        case Comparison(name=name):
            yield name
        case Not(part=part):
            yield from names_of(part)
        case And(parts=parts) | Or(parts=parts):
            for part in parts:
                yield from names_of(part)
