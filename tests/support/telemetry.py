"""Points of telemetry for tests."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry

#: A second at which a window of every tier begins.
START_S = 1_767_312_000


def points(start: int, count: int, value: Callable[[int], float] | float, *, step: int = 1, weight: int = 1) -> Points:
    """Return points with one value each.

    :param value: of all points, or a function of their index
    """
    found = Points()
    for index in range(count):
        mean = float(value(index) if callable(value) else value)
        found.add(start + index * step, weight, mean, mean, mean)
    return found


def of_host(host: str, start: int, count: int, *, gpus: int = 0, ranks: int = 0, step_s: float = 0.1) -> HostTelemetry:
    """Return some seconds of a host: CPU, GPUs, and ranks with ten steps per second."""
    series = {Key("cpu_util"): points(start, count, lambda index: index % 100)}
    series |= {Key("gpu_util", f"GPU-{gpu}"): points(start, count, 80 + gpu) for gpu in range(gpus)}
    for rank in range(ranks):
        for name, part in (("dataloader_next", 0.1), ("train_batch", 0.9), ("forward", 0.3), ("backward", 0.6)):
            series[Key(name, "", rank)] = points(start, count, step_s * part, weight=10)
    return HostTelemetry(host=host, series=series)
