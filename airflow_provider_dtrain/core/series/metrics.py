"""Metrics of hosts and ranks: their names and units."""

from __future__ import annotations

from collections.abc import Mapping

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
