"""Reported metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: A reported value; NaN and infinities by their names.
Value = float | int | bool | str | None


@dataclass(frozen=True, kw_only=True)
class MetricLine:
    """One report of a trial."""

    attempt: int
    #: ``training`` or ``validation``.
    group: str
    step: int
    epoch: float | None
    rank: int
    at: datetime
    metrics: dict[str, Any]
