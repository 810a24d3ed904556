"""Metrics of hosts and ranks: their names and units."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: name -> unit of each system metric of a host, empty for a count. Rates are per second.
SYSTEM_METRICS: Mapping[str, str] = {
    "cpu_util": "%",
    "memory_available": "bytes",
    "net_sent": "bytes/s",
    "net_recv": "bytes/s",
    "disk_iops": "1/s",
    "disk_read": "bytes/s",
    "disk_write": "bytes/s",
    "cpu_steal": "%",
    "cpu_pressure": "%",
    "io_pressure": "%",
    "cpu_clock": "MHz",
    "net_retransmitted": "%",
    "net_errors": "1/s",
    "cpu_wait": "%",
    "cpu_throttled": "%",
    "gpu_util": "%",
    "gpu_free_memory": "bytes",
    "gpu_clock": "MHz",
    "gpu_temperature": "°C",
    "gpu_power": "W",
    "gpu_thermal_slowdown": "%",
    "gpu_power_slowdown": "%",
    "gpu_hardware_slowdown": "%",
    "gpu_ecc_errors": "",
    "gpu_remapped_rows": "",
    "gpu_other_processes": "",
}
#: System metrics that a host measures for each of its ranks.
OF_RANKS = frozenset(("cpu_wait", "cpu_throttled"))
#: System metrics that hosts measure every :data:`FACTS_S` seconds. They may explain a slow rank.
FACTS = frozenset((
    "cpu_steal", "cpu_pressure", "io_pressure", "cpu_clock", "net_retransmitted", "net_errors", "gpu_clock",
    "gpu_temperature", "gpu_power", "gpu_thermal_slowdown", "gpu_power_slowdown", "gpu_hardware_slowdown",
    "gpu_ecc_errors", "gpu_remapped_rows", "gpu_other_processes", *OF_RANKS,
))  # fmt: skip
FACTS_S = 5


def is_of_gpu(metric: str) -> bool:
    """Return whether a system metric is measured for each GPU."""
    return metric.startswith("gpu_")


#: Names of timings in the order of a batch. Other names follow.
TIMINGS = (
    "dataloader_next", "to_device", "train_batch", "backward", "gradient_exchange", "step_optimizer",
    "step_lr_schedulers", "from_device", "reduce_metrics", "checkpoint", "callbacks",
)  # fmt: skip

#: Timings of which a summary holds one value. They have a mean, but their sum has no meaning.
SAMPLED_TIMINGS = frozenset({"gradient_exchange"})

#: Timing of the hooks of a trial class's callbacks. It has a series per class and hook, as ``Stopping.on_epoch_end``.
CALLBACKS = "callbacks"
#: Most classes and hooks of a rank that have a series of their own, and the series of all further ones together.
CALLBACKS_MOST, OTHER_CALLBACKS = 32, "other"
#: Hook that runs inside ``checkpoint``, whose time contains it.
INSIDE_CHECKPOINT = "on_checkpoint_save_start"
_CALLBACK = re.compile(r"callbacks\.(other|[A-Za-z0-9_]{1,64}\.on_[a-z_]{1,40})", re.ASCII)


class CallbackNames:
    """Classes and hooks of one rank that have a series of their own: the first ones that it measures."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def series_of(self, timing: str) -> str | None:
        """Return the series of a timing ``callbacks.CLASS.HOOK``, None for a name of another form."""
        found = _CALLBACK.fullmatch(timing)
        if found is None:
            return None
        name = found[1]
        if name not in self._known:
            if len(self._known) >= CALLBACKS_MOST:
                return OTHER_CALLBACKS
            if name != OTHER_CALLBACKS:
                self._known.add(name)
        return name


def timing_of(metric: str, series: str) -> str:
    """Return the name of a timing of a rank.

    :param series: class and hook of a callback; empty for any other timing
    """
    return f"{metric}.{series}" if series else metric
