"""Metrics of the store for monitoring: facts that are counted once their transaction is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Metric(StrEnum):
    """Names of all metrics. docs/monitoring.md has their meanings."""

    FREE_SLOTS = "dtrain.pool.free_slots"
    USED_SLOTS = "dtrain.pool.used_slots"
    UNUSABLE_SLOTS = "dtrain.pool.unusable_slots"
    WAITING_GANGS = "dtrain.pool.waiting_gangs"
    RUNNING_GANGS = "dtrain.pool.running_gangs"
    LOST_HOSTS = "dtrain.pool.lost_hosts"
    GRANTS = "dtrain.gang.grants"
    PREEMPTIONS = "dtrain.gang.preemptions"
    TIME_TO_GRANT = "dtrain.gang.time_to_grant"
    RESTARTS = "dtrain.trial.restarts"
    TRIAL_FINISH = "dtrain.trial.finish"
    HOST_LOST = "dtrain.host.lost"


Tags = Mapping[str, str]


class Meter(Protocol):
    """Receiver of metrics. Its methods return at once and raise nothing."""

    @property
    def is_on(self) -> bool:
        """Return False when metrics are dropped."""

    def count(self, metric: Metric, by: int, tags: Tags) -> None:
        """Raise a counter."""

    def gauge(self, metric: Metric, value: float, tags: Tags) -> None:
        """Set a gauge."""

    def timing(self, metric: Metric, seconds: float, tags: Tags) -> None:
        """Record a duration."""


class NoMeter:
    """Meter of a process without metrics."""

    is_on = False

    def count(self, metric: Metric, by: int, tags: Tags) -> None:
        """Ignore a count."""

    def gauge(self, metric: Metric, value: float, tags: Tags) -> None:
        """Ignore a gauge."""

    def timing(self, metric: Metric, seconds: float, tags: Tags) -> None:
        """Ignore a duration."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One change that a transaction makes, for the counter of its kind."""

    metric: Metric
    by: int = 1
    tags: Tags = field(default_factory=dict)
