"""Times of steps: the parts that add up to a step, the time that a rank itself needs, and slow ranks.

The ranks of a gang exchange gradients in each step, so all of them take as long as the slowest one. A slow rank is
recognized by its busy time: the step without the exchange, in which the faster ranks wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any

from airflow_provider_dtrain.core.series.metrics import TIMINGS

#: The excess of a slow rank is also at least this part of a step. A gang that mostly exchanges gradients has busy times
#: that differ much and cost little.
SLOW_COST = 0.1
#: DistributedDataParallel measures the exchanges of the first ten steps, in which ranks wait for the start of other
#: ranks: their time buckets do not count.
FIRST_STEPS = 10
#: Time buckets with a measured exchange that are compared, and the part of them in which a slow rank exceeds the share
#: of the rule. A single moment says little: a rank may write a checkpoint or wait for its data then.
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
class SlowRule:
    """Rule by which a rank is slow. Its defaults are those of ``profiling`` in a configuration."""

    #: Multiple of the other ranks' median busy time that a slow rank exceeds. Ranks on equal hosts differ by a few
    #: percent.
    share: float = 1.2
    #: Time over which its busy time must exceed it, seconds.
    after_s: float = 60.0


def slow_rule(profiling: Mapping[str, Any]) -> SlowRule:
    """Return the rule of a stored configuration.

    :param profiling: its section of this name; options that it lacks have their defaults
    """
    usual = SlowRule()
    return SlowRule(
        share=float(profiling.get("straggler_share", usual.share)),
        after_s=float(profiling.get("straggler_after", usual.after_s)),
    )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Pace of one rank."""

    #: Median times per step, seconds.
    step_s: float
    busy_s: float
    #: Busy time per step in each time bucket in which the rank has measured an exchange after its first steps,
    #: seconds; None in the others.
    moments: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of one rank with the other ranks of its gang."""

    #: Median busy time divided by the median of the other ranks.
    ratio: float
    #: Part of a step, 0 to 1, that the gang waits for this rank: the excess over the other ranks.
    cost: float
    #: Part of the compared moments, 0 to 1, in which the rank exceeds the share of the rule.
    slow_part: float
    #: Index of the time bucket from which it exceeds it; None: it never does.
    since: int | None
    is_slow: bool


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


def pace_of(
    steps: Sequence[float | None], exchanges: Sequence[float | None], counts: Sequence[int], before: int = 0
) -> Pace | None:
    """Return the pace of a rank from its time buckets, None without a step.

    :param steps: mean time of a step, seconds; None without a step
    :param exchanges: mean time of a measured exchange, seconds; None without one
    :param counts: number of steps
    :param before: number of its steps before the first bucket
    """
    busy = busy_times(steps, exchanges)
    step_s, busy_s = median_of(steps), median_of(busy)
    if step_s is None or busy_s is None:
        return None
    done = accumulate(counts, initial=before)
    next(done)
    columns = zip(busy, exchanges, done, strict=True)
    moments = [time if exchange is not None and count > FIRST_STEPS else None for time, exchange, count in columns]
    return Pace(step_s=step_s, busy_s=busy_s, moments=moments)


def ratios(paces: Mapping[int, Pace]) -> dict[int, float | None]:
    """Return each rank's busy time divided by the median of the other ranks, None without other ranks."""
    others = _medians_of_others({rank: pace.busy_s for rank, pace in paces.items()})
    return {rank: pace.busy_s / others[rank] if others.get(rank) else None for rank, pace in paces.items()}


def compare(paces: Mapping[int, Pace], rule: SlowRule, bucket_s: int) -> dict[int, Comparison]:
    """Compare each rank with the other ranks, in n log n of their number. {}: they were not measured for long enough.

    A rank is slow when its median and most of its moments exceed those of the other ranks by a clear margin, over the
    time of the rule.

    :param paces: rank -> its pace, all with the same time buckets; ranks without a step are left out
    :param bucket_s: length of a time bucket
    """
    columns = list(zip(*(pace.moments for pace in paces.values()), strict=True))
    whole = [index for index, column in enumerate(columns) if None not in column]
    if len(paces) < 2 or len(whole) < MOMENTS_LEAST or (whole[-1] - whole[0] + 1) * bucket_s < rule.after_s:
        return {}
    step = median_of([pace.step_s for pace in paces.values()])
    busy = _medians_of_others({rank: pace.busy_s for rank, pace in paces.items()})
    if not step or not all(busy.values()):
        return {}
    slow: dict[int, list[int]] = {rank: [] for rank in paces}
    for index in whole:
        moments = {rank: pace.moments[index] or 0.0 for rank, pace in paces.items()}
        others = _medians_of_others(moments)
        for rank, time in moments.items():
            if time > rule.share * others[rank]:
                slow[rank].append(index)
    found = {}
    for rank, pace in paces.items():
        part, cost = len(slow[rank]) / len(whole), (pace.busy_s - busy[rank]) / step
        exceeds = pace.busy_s > rule.share * busy[rank] and cost >= SLOW_COST and part >= SLOW_MOMENTS
        first = slow[rank][0] if slow[rank] else None
        ratio = pace.busy_s / busy[rank]
        found[rank] = Comparison(ratio=ratio, cost=cost, slow_part=part, since=first, is_slow=exceeds)
    return found


def slow_ranks(paces: Mapping[int, Pace], rule: SlowRule, bucket_s: int) -> list[int]:
    """Return the ranks that are slow by :func:`compare`, slowest first."""
    slow = [rank for rank, one in compare(paces, rule, bucket_s).items() if one.is_slow]
    return sorted(slow, key=lambda rank: -paces[rank].busy_s)


def _medians_of_others(values: Mapping[int, float]) -> dict[int, float]:
    """Return rank -> the median of the other ranks' values. {} with fewer than two ranks."""
    if len(values) < 2:
        return {}
    ordered = sorted(values, key=values.__getitem__)
    left = len(ordered) - 1
    low, high = (left - 1) // 2, left // 2

    def at(place: int, without: int) -> float:
        return values[ordered[place if place < without else place + 1]]

    return {rank: (at(low, place) + at(high, place)) / 2 for place, rank in enumerate(ordered)}
