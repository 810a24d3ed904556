"""Times of steps: the parts that add up to a step, the time that a rank itself needs, and slow ranks.

The ranks of a gang exchange gradients in each step, so all of them take as long as the slowest one. A slow rank is
recognized by its busy time: the step without the exchange, in which the faster ranks wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from airflow_provider_dtrain.core.series.metrics import TIMINGS

#: A rank is slow when its median busy time is more than this multiple of the gang's median. Ranks on equal hosts differ
#: by a few percent.
SLOW_RATIO = 1.2
#: The excess of a slow rank is also at least this part of a step. A gang that mostly exchanges gradients has busy times
#: that differ much and cost little.
SLOW_COST = 0.1
#: DistributedDataParallel measures the exchanges of the first ten steps and then of every hundredth one. In the first
#: ones, ranks wait for the start of other ranks: their time buckets do not count.
FIRST_STEPS = 10
#: Steps of each rank before one is called slow, so that three later exchanges are measured.
STEPS_LEAST = 300
#: Time buckets with a measured exchange that are compared, and the part of them in which a slow rank needs more than
#: :data:`SLOW_RATIO`. A single moment says little: a rank may write a checkpoint or wait for its data then.
MOMENTS_LEAST, SLOW_MOMENTS = 3, 0.75
#: Seconds after which a rank writes its timings every 5 s instead of every second, the time between two lines then, and
#: the shortest time buckets that all have a line.
EARLY_S, LINE_S, BUCKET_S = 300, 5, 10
#: Timings that do not overlap and add up to the time of a step, in the order of a step. ``forward`` is what remains of
#: ``train_batch`` without the other parts in it.
PARTS = (
    "dataloader_next", "to_device", "forward", "backward", "step_optimizer", "step_lr_schedulers", "from_device",
    "reduce_metrics", "checkpoint", "callbacks",
)  # fmt: skip
#: Part that remains of a whole step whose program does not use the loader of the training library.
REST = "rest"
#: Whole time of a step in a program that does not use the loader of the training library.
WHOLE = "step"
#: Everything that ranks measure, in the order of a step.
RANK_METRICS = (WHOLE, *TIMINGS[:3], "forward", *TIMINGS[3:])
#: Parts of every step. The other parts occur between some of the steps.
OF_STEP = frozenset(PARTS[:6])
#: Timing whose count is the number of steps, and the timing in which a rank waits for the other ranks.
STEP, EXCHANGE = "train_batch", "gradient_exchange"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pace of one rank."""

    #: Median times per step, seconds.
    step_s: float
    busy_s: float
    #: Number of steps.
    steps: int
    #: Busy time per step in each time bucket in which the rank has measured an exchange after its first steps,
    #: seconds; None in the others.
    moments: Sequence[float | None]


def median_of(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that exist, None without one."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def busy_times(steps: Sequence[float | None], exchanges: Sequence[float | None]) -> list[float | None]:
    """Return the busy time per step in each time bucket.

    :param steps: mean time of a step, seconds; None without a step
    :param exchanges: mean time of a measured exchange, seconds; None without one, which counts like the rank's median
    """
    usual = median_of(exchanges) or 0.0
    waits = [usual if one is None else one for one in exchanges]
    return [None if step is None else max(0.0, step - wait) for step, wait in zip(steps, waits, strict=True)]


def slow_ranks(paces: Mapping[int, Pace]) -> list[int]:
    """Return the ranks that are slow, slowest first.

    A rank is slow when its median and most of its moments exceed those of the gang by a clear margin, and each rank has
    done enough steps.

    :param paces: rank -> its pace, all with the same time buckets; ranks without a step are left out
    """
    if any(pace.steps < STEPS_LEAST for pace in paces.values()):
        return []
    busy = median_of([pace.busy_s for pace in paces.values()])
    step = median_of([pace.step_s for pace in paces.values()])
    if not busy or not step:
        return []
    slow = [
        rank
        for rank, pace in paces.items()
        if pace.busy_s > SLOW_RATIO * busy and pace.busy_s - busy >= SLOW_COST * step and _is_mostly_slow(rank, paces)
    ]
    return sorted(slow, key=lambda rank: -paces[rank].busy_s)


def _is_mostly_slow(rank: int, paces: Mapping[int, Pace]) -> bool:
    """Return whether a rank is slow in most of the moments that all ranks have measured."""
    columns = zip(*(pace.moments for pace in paces.values()), strict=True)
    whole = [index for index, column in enumerate(columns) if None not in column]
    if len(whole) < MOMENTS_LEAST:
        return False
    slow = 0
    for index in whole:
        middle = median_of([pace.moments[index] for pace in paces.values()]) or 0.0
        slow += (paces[rank].moments[index] or 0.0) > SLOW_RATIO * middle
    return slow >= SLOW_MOMENTS * len(whole)
