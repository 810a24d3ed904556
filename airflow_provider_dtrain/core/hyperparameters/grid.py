"""Points of a grid: one axis per hyperparameter, in the order of names. The last axis varies fastest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.sampling import LOG_BASE, own, power, value_of
from airflow_provider_dtrain.errors import Problem

#: Trials that one experiment may have, one per point of a grid: they are held in memory and in the store.
GRID_LIMIT: Final = 100_000
#: A grid with more points than this is not counted further.
COUNTED: Final = 10**60


def axis_size(leaf: object) -> int:
    """Return how many values a leaf has on a grid.

    :raises KeyError: a range without a count
    """
    if not isinstance(leaf, Mapping) or leaf["type"] == "const":
        return 1
    if leaf["type"] == "categorical":
        return len(leaf["vals"])
    count = int(leaf["count"])
    return min(count, leaf["maxval"] - leaf["minval"] + 1) if leaf["type"] == "int" else count


def axis(leaf: object) -> list[Any]:
    """Return the values of a leaf on a grid, both ends included. A single value is the middle.

    Halves of an ``int`` are rounded to the even neighbour. Its count is limited to the number of its values.
    """
    if not isinstance(leaf, Mapping) or leaf["type"] == "const":
        return [value_of(leaf)]
    if leaf["type"] == "categorical":
        return list(leaf["vals"])
    low = leaf["minval"]
    high = leaf["maxval"]
    count = axis_size(leaf)
    if leaf["type"] == "int":
        return [round(Fraction(low) + part * (high - low)) for part in _parts(count)]
    values = [_between(float(low), float(high), part) for part in _parts(count)]
    return values if leaf["type"] == "double" else [power(leaf.get("base", LOG_BASE), value) for value in values]


def _parts(count: int) -> list[Fraction]:
    """Return the relative positions of the values, 0 to 1."""
    return [Fraction(1, 2)] if count == 1 else [Fraction(index, count - 1) for index in range(count)]


def _between(low: float, high: float, part: Fraction) -> float:
    """Return the float that is nearest to the exact position."""
    return float(Fraction(low) + part * (Fraction(high) - Fraction(low)))


def missing_counts(leaves: Iterator[tuple[str, Any]]) -> list[Problem]:
    """Return one problem per range that has no count.

    :param leaves: (dotted path, leaf)
    """
    return [
        Problem(path=f"{path}.count", message="missing; a grid requires it")
        for path, leaf in leaves
        if isinstance(leaf, Mapping) and leaf["type"] in ("int", "double", "log") and "count" not in leaf
    ]


def size(leaves: Iterator[tuple[str, Any]]) -> int:
    """Return the number of points without creating them. Above ``COUNTED``, it is a lower bound.

    :raises KeyError: a range without a count
    """
    points = 1
    for _, leaf in leaves:
        # Without a bound thousands of axes would cost quadratic time.
        points = points if points > COUNTED else points * axis_size(leaf)
    return points


def points(group: Mapping[str, Any]) -> Iterator[Hyperparameters]:
    """Yield the points of a valid space, each a nested dict of its own."""
    names = sorted(group)
    for values in itertools.product(*(_values(group[name]) for name in names)):
        yield {name: own(value) for name, value in zip(names, values, strict=True)}


def _values(value: Any) -> list[Any]:
    is_group = isinstance(value, Mapping) and "type" not in value
    return list(points(value)) if is_group else axis(value)
