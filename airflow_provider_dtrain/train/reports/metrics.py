"""Reports of metrics, from the training loop to the events file."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import LimitError, MetricError, NonFiniteLossError
from airflow_provider_dtrain.train.reports.builtin_metrics import Counts
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.experiment_loggers import Loggers
from airflow_provider_dtrain.train.reports.reducers import number
from airflow_provider_dtrain.train.reports.timings import RankTimings
from airflow_provider_dtrain.train.values import Metrics

log = logging.getLogger(__name__)

#: Longest time that reports wait for the next write when they are not averaged over the ranks, seconds.
FLUSH_AFTER_S = 1.0

#: Metrics of one report, and characters of a name. The control side rejects more than this.
METRICS_LIMIT, NAME_LIMIT = 1000, 256

#: Decimals of a number of epochs.
EPOCH_DIGITS: Final = 6
if TYPE_CHECKING:
    #: step, epoch, unix time, metrics
    Report = tuple[int, float | None, float, Metrics]


class Reporter:
    """Collects reports at low cost and writes them in groups.

    A value on the CPU is read at once; a value on a GPU is kept as a tensor and read when the group is written, so
    the training loop never waits for the device.

    :param average: write the mean over all ranks; False: rank 0's own values
    :param fail_on_nan: raise when a metric whose name ends in ``loss`` is NaN
    """

    def __init__(
        self,
        distributed: Distributed,
        writer: EventWriter,
        *,
        average: bool = True,
        fail_on_nan: bool = True,
        timings: RankTimings | None = None,
    ) -> None:
        self._distributed = distributed
        self._writer = writer
        self._timings = timings or RankTimings()
        self._rank = distributed.get_rank()
        self._average = average and distributed.get_size() > 1
        self._fail_on_nan = fail_on_nan
        self._pending: list[Report] = []
        self._next_flush = 0.0
        self._warned: set[str] = set()
        #: Copies of what rank 0 writes.
        self.loggers = Loggers()
        #: Set once the loop takes steps, so that all ranks soon synchronize. Before that, rank 0 writes its own values.
        self.is_synchronized = False

    def report(self, step: int, metrics: Mapping[str, Any], epoch: float | None) -> None:
        """Add one report of this rank.

        :param epoch: number of trained epochs, with a fraction
        :raises MetricError: a value is not a number
        :raises LimitError: there are too many metrics, or a name is too long
        :raises NonFiniteLossError: a loss is NaN
        """
        now = time.time()
        check_names(metrics)
        held = {name: _hold(name, value) for name, value in metrics.items()}
        if self._fail_on_nan:
            self._refuse_nan(step, held)
        self._pending.append((step, epoch, now, held))
        if now >= self._next_flush and not (self._average and self.is_synchronized):
            self.flush()

    def flush(self) -> None:
        """Write the reports of this rank without the other ranks. Only rank 0 writes."""
        self._next_flush = time.time() + FLUSH_AFTER_S
        self._write(self._take())

    def synchronize(self, vote: int, counts: Counts) -> tuple[int, Counts]:
        """Write the mean of all ranks' reports. Return the largest of their votes, and their counts together.

        Called by all ranks at the same point of the loop. Without means over the ranks, those of this rank count for
        all.
        """
        if not self._average:
            self.flush()
            return self._distributed.largest(vote), counts.times(self._distributed.get_size())
        mine = self._take()
        before = time.perf_counter()
        answers: list[tuple[int, list[Report], Counts]] = self._distributed.allgather((vote, mine, counts))
        self._timings.add("reduce_metrics", time.perf_counter() - before)
        if self._rank == 0:
            self._write(average_reports([reports for _, reports, _ in answers]))
        return max(vote for vote, *_ in answers), functools.reduce(Counts.joined, (Counts(*one) for *_, one in answers))

    def record(self, step: int, metrics: Mapping[str, float], epoch: float | None) -> None:
        """Write built-in metrics of rank 0. They are a group of their own, beside reports and validations."""
        if metrics:
            self.loggers.log(step, metrics, "builtin/")
            self._writer.write("builtin", {"step": step, "metrics": metrics, **epoch_field(epoch)})

    def mean(self, step: int, metrics: Mapping[str, Any], weight: float) -> dict[str, float]:
        """Return the weighted mean of each metric over the ranks that have it. Called by all ranks."""
        mine = self.numbers(step, metrics)
        before = time.perf_counter()
        parts = self._distributed.allgather((float(weight), mine))
        self._timings.add("reduce_metrics", time.perf_counter() - before)
        return weighted_mean(parts)

    def numbers(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return this rank's metrics as plain numbers.

        :raises LimitError: there are too many metrics, or a name is too long
        """
        check_names(metrics)
        held = {name: _hold(name, value) for name, value in metrics.items()}
        return self._settle([(step, None, 0.0, held)])[0][3]

    def json_safe(self, metrics: Mapping[str, float]) -> dict[str, float | None]:
        """Return the metrics, with None for NaN and infinities, which JSON lacks. Log each such name once."""
        safe: dict[str, float | None] = {}
        for name, value in metrics.items():
            finite = math.isfinite(value)
            safe[name] = value if finite else None
            if not finite and name not in self._warned:
                self._warned.add(name)
                log.warning("Metric %s is %s; it is recorded as null. This is logged once per metric.", name, value)
        return safe

    def _take(self) -> list[Report]:
        pending = self._pending
        self._pending = []
        return self._settle(pending)

    def _settle(self, reports: Sequence[Report]) -> list[Report]:
        """Return the reports with every tensor read, in one copy from the device."""
        waiting = [(held, name) for *_, held in reports for name, value in held.items() if type(value) is not float]
        if waiting:
            import torch

            before = time.perf_counter()
            device = waiting[0][0][waiting[0][1]].device
            numbers = [held[name].reshape(()).to(device, torch.float64) for held, name in waiting]
            values = torch.stack(numbers).tolist()
            self._timings.add("from_device", time.perf_counter() - before)
            for (held, name), value in zip(waiting, values):
                held[name] = value
        if self._fail_on_nan and waiting:
            for step, _, _, held in reports:
                self._refuse_nan(step, held)
        return list(reports)

    def _refuse_nan(self, step: int, held: Mapping[str, Any]) -> None:
        for name, value in held.items():
            if type(value) is float and value != value and name.lower().endswith("loss"):
                raise NonFiniteLossError(name, step, self._rank)

    def _write(self, reports: Iterable[Report]) -> None:
        if self._rank != 0:
            return
        events = []
        for step, epoch, at, metrics in reports:
            safe = self.json_safe(metrics)
            self.loggers.log(step, safe)
            events.append((at, "report", {"step": step, "metrics": safe, **epoch_field(epoch)}))
        self._writer.write_all(events)


def epoch_field(epoch: float | None) -> dict[str, float]:
    """Return the field of a report that gives the number of trained epochs, none if it is unknown."""
    return {} if epoch is None else {"epoch": round(epoch, EPOCH_DIGITS)}


def check_names(metrics: Mapping[str, Any]) -> None:
    """Raise when a report has more metrics, or other names, than the control side accepts.

    :raises LimitError: gives the limit and the value
    :raises MetricError: a name has characters that cannot be printed
    """
    if len(metrics) > METRICS_LIMIT:
        raise LimitError(f"A report must have at most {METRICS_LIMIT:,} metrics, got {len(metrics):,}.")
    for name in metrics:
        if not 0 < len(name) <= NAME_LIMIT:
            raise LimitError(
                f"The name of a metric must have 1 to {NAME_LIMIT} characters, got {len(name):,} in '{name[:40]}...'."
            )
        if not name.isprintable():
            raise MetricError(
                f"The name of a metric must consist of printable characters, got {name!r}. Remove line breaks, tabs "
                "and control characters from it."
            )


def _hold(name: str, value: Any) -> Any:
    """Return a float, or a tensor of one element that no other code changes."""
    if type(value) is float:
        return value
    is_on_gpu = getattr(value, "is_cuda", False) and value.numel() == 1
    # A sharded tensor is read at once: it has no common form with the others.
    if is_on_gpu and not (hasattr(value, "to_local") or value.is_complex()):
        return value.detach().clone()
    return number(name, value)


def average_reports(per_rank: Sequence[Sequence[Report]]) -> list[Report]:
    """Return one report per step: the mean over the ranks that reported it, at their earliest time.

    :param per_rank: each rank's reports, in their order; a step may occur more than once
    """
    groups: dict[tuple[int, int], list[Report]] = {}
    for reports in per_rank:
        seen: dict[int, int] = {}
        for report in reports:
            step = report[0]
            seen[step] = seen.get(step, 0) + 1
            groups.setdefault((step, seen[step]), []).append(report)
    merged = []
    for (step, _), group in groups.items():
        metrics = weighted_mean([(1.0, metrics) for *_, metrics in group])
        merged.append((step, group[0][1], min(report[2] for report in group), metrics))
    return merged


def weighted_mean(parts: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the weighted mean of each metric over the parts that have it. NaN if all weights are 0."""
    if len(parts) == 1 and parts[0][0]:
        return dict(parts[0][1])  # w * x / w is not always x
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for weight, metrics in parts:
        for name, value in metrics.items():
            # A part of 0 samples counts nothing, even if its mean is NaN.
            sums[name] = sums.get(name, 0.0) + (weight * value if weight else 0.0)
            weights[name] = weights.get(name, 0.0) + weight
    return {name: sums[name] / weights[name] if weights[name] else math.nan for name in sums}
