"""Records of a benchmark: its rows, the programs beside each other in a row, and goals."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.framework.measuring import Run

FOLDER = Path(__file__).resolve().parents[1]


class Kind(Enum):
    """Part of a program in a comparison."""

    #: This package.
    OURS = "ours"
    #: Another program that does the same work.
    PEER = "peer"
    #: The least that this machine needs for the work.
    LIMIT = "limit"


OURS, PEER, LIMIT = Kind.OURS, Kind.PEER, Kind.LIMIT


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Bound of one program's figure.

    :param side: name of the program
    :param of: program whose figure the bound is a multiple of, None for an absolute bound
    :param quantile: 0.5 is the median
    """

    side: str
    at_most: float | None = None
    at_least: float | None = None
    of: str | None = None
    quantile: float = 0.5

    def text(self, unit: str) -> str:
        """Return the goal in words."""
        sign, bound = ("<=", self.at_most) if self.at_most is not None else (">=", self.at_least)
        what = "median" if self.quantile == 0.5 else f"p{100 * self.quantile:g}"
        return f"{self.side}: {what} {sign} {bound:g} {f'of {self.of}' if self.of else unit}"

    def is_met(self, values: Mapping[str, Sequence[float]]) -> bool | None:
        """Return whether the values meet the goal, None if a program was not measured."""
        mine, other = values.get(self.side), values.get(self.of) if self.of else [1.0]
        if not mine or not other:
            return None
        if self.of and self.quantile == 0.5:
            figure = ratio(mine, other)
        else:
            figure = quantile(mine, self.quantile) / quantile(other, self.quantile)
        return figure <= self.at_most if self.at_most is not None else figure >= (self.at_least or 0.0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison.

    :param name: unique in its benchmark
    :param sides: name of a program -> kind, in the order in which the first round runs them
    :param base: program that the others are compared with
    """

    name: str
    what: str
    unit: str
    sides: Mapping[str, Kind]
    base: str | None = None
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Rows that are measured together.

    :param measure: adds the values of all rows to the run that it gets
    :param rounds: number of rounds, and that with ``--quick``
    :param missing: returns the reason why this machine cannot run it
    """

    what: str
    rows: tuple[Row, ...]
    measure: Callable[[Run], None]
    rounds: tuple[int, int] = (7, 3)
    missing: Callable[[], str | None] = lambda: None


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(file.stem.removeprefix("bench_") for file in FOLDER.glob("bench_*.py"))


def load(name: str) -> Bench:
    """Return a benchmark."""
    found: Bench = importlib.import_module(f"bench.bench_{name}").BENCH
    return found


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile with linear interpolation. One value is its own quantile."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios within the rounds, because other load affects both sides of a round."""
    if len(mine) == len(other) and all(other):
        return statistics.median(a / b for a, b in zip(mine, other, strict=True))
    below = statistics.median(other)
    return statistics.median(mine) / below if below else float("nan")
