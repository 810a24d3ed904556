"""Metrics of hosts and ranks: their names and units, and totals over the files of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: name -> unit of each system metric of a host. Rates are per second.
SYSTEM_METRICS: Mapping[str, str] = {
    "cpu_util": "%",
    "memory_available": "bytes",
    "net_sent": "bytes/s",
    "net_recv": "bytes/s",
    "disk_iops": "1/s",
    "disk_read": "bytes/s",
    "disk_write": "bytes/s",
    "gpu_util": "%",
    "gpu_free_memory": "bytes",
}
#: Names of timings in the order of a batch. Other names follow.
TIMINGS = (
    "dataloader_next", "to_device", "train_batch", "backward", "gradient_exchange", "step_optimizer",
    "step_lr_schedulers", "from_device", "reduce_metrics", "checkpoint",
)  # fmt: skip

#: Timings of which a summary holds one value. They have a mean, but their sum has no meaning.
SAMPLED_TIMINGS = frozenset({"gradient_exchange"})


def total_timings(summaries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return count, total_s, mean_s and max_s per name over several ``timings`` events.

    Malformed events are left out.
    """
    sums: dict[str, dict[str, float]] = {}
    for summary in summaries:
        names = summary.get("names")
        for name, found in names.items() if isinstance(names, Mapping) else ():
            count, total, longest = (_number(found, key) for key in ("count", "total_s", "max_s"))
            if not count:
                continue
            one = sums.setdefault(str(name), {"count": 0, "total_s": 0.0, "mean_s": 0.0, "max_s": 0.0})
            one["count"] += count
            one["total_s"] += total
            one["max_s"] = max(one["max_s"], longest)
    for one in sums.values():
        one["mean_s"] = one["total_s"] / one["count"]
    order = {name: index for index, name in enumerate(TIMINGS)}
    return dict(sorted(sums.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0])))


def system_ranges(samples: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """Return (device, metric) -> min, mean, max, count.

    The device is the UUID of a GPU, or empty for the host itself.
    """
    found: dict[tuple[str, str], dict[str, float]] = {}
    for sample in samples:
        _take(found, "", sample)
        gpus = sample.get("gpus")
        for gpu in gpus if isinstance(gpus, list) else ():
            if isinstance(gpu, Mapping):
                _take(found, str(gpu.get("uuid")), gpu)
    for one in found.values():
        one["mean"] = one.pop("total") / one["count"]
    return found


def _take(found: dict[tuple[str, str], dict[str, float]], device: str, sample: Mapping[str, Any]) -> None:
    for name in SYSTEM_METRICS:
        value = sample.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            one = found.setdefault((device, name), {"min": value, "max": value, "total": 0.0, "count": 0})
            one["min"], one["max"] = min(one["min"], value), max(one["max"], value)
            one["total"] += value
            one["count"] += 1


def _number(found: Any, key: str) -> float:
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else 0.0
