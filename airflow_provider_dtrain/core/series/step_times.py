"""Times of steps: the parts that add up to a step, the time that a rank itself needs, and slow ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from airflow_provider_dtrain.core.telemetry import TIMINGS

#: A rank whose median busy time is more than this multiple of the gang's median is slow. Ranks on equal hosts differ by
#: a few percent, and a rank that is 1.2 times slower costs the whole gang a sixth of its speed.
SLOW_RATIO = 1.2
#: Timings that do not overlap and add up to the time of a step, in the order of a step. ``forward`` is what remains of
#: ``train_batch`` without the other parts in it.
PARTS = (
    "dataloader_next", "to_device", "forward", "backward", "step_optimizer", "step_lr_schedulers", "from_device",
    "reduce_metrics", "checkpoint",
)  # fmt: skip
#: Everything that ranks measure, in the order of a step.
RANK_METRICS = (*TIMINGS[:3], "forward", *TIMINGS[3:])
#: Parts of every step. The other parts occur between some of the steps.
OF_STEP = frozenset(PARTS[:6])
#: Timing whose count is the number of steps, and the timing in which a rank waits for the other ranks.
STEP, EXCHANGE = "train_batch", "gradient_exchange"


def median_of(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that exist, None without one."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def slow_ranks(busy_s: Mapping[int, float | None]) -> tuple[float | None, dict[int, float]]:
    """Return the median of the gang, and the ratio of each rank that is slow, slowest first.

    :param busy_s: rank -> its median busy time per step, seconds; None without a step
    """
    middle = median_of(list(busy_s.values()))
    if not middle:
        return middle, {}
    ratios = {rank: value / middle for rank, value in busy_s.items() if value is not None}
    slow = {rank: ratio for rank, ratio in ratios.items() if ratio > SLOW_RATIO}
    return middle, dict(sorted(slow.items(), key=lambda pair: -pair[1]))
