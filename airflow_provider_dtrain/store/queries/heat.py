"""Heat map of the slots of hosts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.resources.heat import Heat, HeatMetric, HostHeat

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.pages import SlotDevice
    from airflow_provider_dtrain.store.store import Store

_UNITS: Final = {HeatMetric.LOAD: "%", HeatMetric.MEMORY: "%", HeatMetric.TEMPERATURE: "°C", HeatMetric.POWER: "W"}
#: Ends of the scale. That of power grows in steps, because devices differ.
_SCALES: Final = {
    HeatMetric.LOAD: (0.0, 100.0),
    HeatMetric.MEMORY: (0.0, 100.0),
    HeatMetric.TEMPERATURE: (20.0, 90.0),
    HeatMetric.POWER: (0.0, 100.0),
}
_POWER_STEP_W: Final = 100.0


def heat_of(store: Store, hosts: Collection[str], metric: HeatMetric) -> Heat:
    """Return the latest minute of a metric for each slot of some hosts.

    A CPU slot has the load and the memory of its host. Only hosts on which a trial runs are measured.

    :param hosts: names; unknown ones are left out
    """
    latest = store.telemetry.latest(hosts)
    rows: dict[str, dict[int, float | None]] = {}
    for one in store.cluster_page.slot_devices({host for host, _, _ in latest}):
        rows.setdefault(one.host, {})[one.slot] = _value(latest, one, metric)
    found = [
        HostHeat(name=host, slots=[slots.get(index) for index in range(max(slots) + 1)])
        for host, slots in rows.items()
        if any(value is not None for value in slots.values())
    ]
    minimum, maximum = _SCALES[metric]
    if metric is HeatMetric.POWER:
        most = max((value for one in found for value in one.slots if value is not None), default=0.0)
        maximum = max(maximum, math.ceil(most / _POWER_STEP_W) * _POWER_STEP_W)
    return Heat(metric=metric, unit=_UNITS[metric], minimum=minimum, maximum=maximum, hosts=found)


def _value(latest: Mapping[tuple[str, str, str], float], slot: SlotDevice, metric: HeatMetric) -> float | None:
    host, device = slot.host, slot.device
    match metric:
        case HeatMetric.LOAD:
            value = latest.get((host, "", "cpu_util") if device is None else (host, device, "gpu_util"))
        case HeatMetric.MEMORY if device is None:
            value = _used(latest.get((host, "", "memory_available")), slot.host_memory_bytes)
        case HeatMetric.MEMORY:
            value = _used(latest.get((host, device or "", "gpu_free_memory")), slot.memory_bytes)
        case HeatMetric.TEMPERATURE:
            value = None if device is None else latest.get((host, device, "gpu_temperature"))
        case HeatMetric.POWER:
            value = None if device is None else latest.get((host, device, "gpu_power"))
    return None if value is None else round(value, 1)


def _used(free_bytes: float | None, total_bytes: int | None) -> float | None:
    """Return the used share of a memory in percent, None if it is not known or the numbers contradict each other."""
    if free_bytes is None or not total_bytes or not 0 <= free_bytes <= total_bytes:
        return None
    return 100 * (1 - free_bytes / total_bytes)
