"""Records of failures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class GoodRun:
    """A trial that ended with a result."""

    trial_id: int
    experiment_id: int
    dag_id: str
    ended_at: datetime
