"""Metrics of the store as Airflow's ``Stats``: StatsD, DogStatsD or OpenTelemetry, as ``[metrics]`` configures."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow_provider_dtrain.store.meter import Meter, Metric, NoMeter, Tags

log = logging.getLogger(__name__)

#: Tag whose value is the last part of a metric's legacy name. Plain StatsD has no tags.
NAME_TAGS = ("state", "pool_name")


def meter() -> Meter:
    """Return the meter of this process. Imports nothing of Airflow's metrics while they are off."""
    from airflow.sdk.configuration import conf

    switches = ("statsd_on", "statsd_datadog_enabled", "otel_on")
    if not any(conf.getboolean("metrics", switch, fallback=False) for switch in switches):
        return NoMeter()
    return StatsMeter(_stats(), with_legacy_names=conf.getboolean("metrics", "legacy_names_on", fallback=True))


class StatsMeter:
    """Meter that emits to Airflow's ``Stats``.

    :param with_legacy_names: emit each metric also under a name that ends with its pool or state
    """

    is_on = True

    def __init__(self, stats: Any, *, with_legacy_names: bool) -> None:
        self._stats = stats
        self._with_legacy_names = with_legacy_names

    def count(self, metric: Metric, by: int, tags: Tags) -> None:
        """Raise a counter."""
        self._emit("incr", metric, by, tags)

    def gauge(self, metric: Metric, value: float, tags: Tags) -> None:
        """Set a gauge."""
        self._emit("gauge", metric, value, tags)

    def timing(self, metric: Metric, seconds: float, tags: Tags) -> None:
        """Record a duration."""
        self._emit("timing", metric, timedelta(seconds=seconds), tags)

    def _emit(self, kind: str, metric: Metric, value: Any, tags: Tags) -> None:
        emit = getattr(self._stats, kind)
        try:
            emit(metric.value, value, tags=dict(tags))
            if self._with_legacy_names:
                name, rest = legacy_name(metric, tags)
                emit(name, value, tags=rest)
        except Exception:
            # A metric never disturbs the work that it measures.
            log.exception("Metric %s was not emitted", metric.value)


def legacy_name(metric: Metric, tags: Tags) -> tuple[str, dict[str, str]]:
    """Return the name of a metric that contains its pool or state, and the tags that are not part of it.

    As in Airflow's own legacy names, dots of a value become two underscores.
    """
    tag = next(name for name in NAME_TAGS if name in tags)
    rest = {name: value for name, value in tags.items() if name != tag}
    return f"{metric.value}.{tags[tag].replace('.', '__')}", rest


def _stats() -> Any:
    """Return Airflow's ``Stats``, configured.

    Airflow configures it in tasks, and in the triggerer once serialization is imported. Commands and the API server
    use the module of Airflow's core instead, so it is configured here for them.
    """
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    module = getattr(stats.initialize, "__globals__", {})
    if module.get("_factory") is None:
        stats.initialize(
            factory=stats_utils.get_stats_factory(),
            export_legacy_names=conf.getboolean("metrics", "legacy_names_on", fallback=True),
        )
    return stats
