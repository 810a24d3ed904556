"""Reported metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

#: ``training`` and ``validation``: reported by the program. ``builtin``: recorded by the training library itself.
MetricGroup = Literal["training", "validation", "builtin"]
#: A number. JSON has no NaN and no infinity, so these are sent as their names.
Number = float | Literal["nan", "inf", "-inf"]
#: A reported value; NaN and infinities by their names.
Value = float | int | bool | str | None


@dataclass(frozen=True, kw_only=True)
class MetricName:
    """A reported metric."""

    group: MetricGroup
    name: str


@dataclass(frozen=True, kw_only=True)
class MetricReport:
    """One report of a trial."""

    #: Number of the attempt that reported.
    attempt: int
    group: MetricGroup
    step: int
    epoch: float | None
    rank: int
    #: By the clock of the host.
    at: datetime
    #: NaN and infinities are floats in the store's process, and outside they have their names.
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MetricReports:
    """A page of the reports of a trial."""

    rows: list[MetricReport]
    #: Where the next page begins; None: this is the last one.
    next_offset: int | None
