"""Goals that the searcher sets for a trial: a metric, and an end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.durations import UNITS, Geometry, Length, Position
from airflow_provider_dtrain.train.errors import MissingMetricError, SetupError

log = logging.getLogger(__name__)


class Goal:
    """Section ``searcher`` of the configuration, as far as a trial follows it.

    :param searcher: the section; empty off-cluster
    """

    def __init__(self, searcher: Mapping[str, Any]) -> None:
        self.metric: str | None = searcher.get("metric")
        self.smaller_is_better: bool = searcher.get("smaller_is_better", True)
        self._decides = searcher.get("name", "single") != "single"
        self._warned = self._warned_of_epochs = False
        #: Whether :meth:`reached` checks the length. False: the trainer checks it.
        self.counts = True
        #: Longest training of the trial; None when ``time_metric`` limits it, or the configuration does not.
        self.max_length = Length.parse(searcher.get("max_length"), "searcher.max_length")
        self.max_time: float | None = searcher.get("max_time")
        self.time_metric: str | None = searcher.get("time_metric")
        if self.max_time is not None and self.time_metric in UNITS:
            self.max_length = Length(str(self.time_metric), int(self.max_time), "searcher.max_time")
            self.max_time = None

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Check that validation reports the searcher's metric.

        :raises MissingMetricError: it does not, and the searcher compares trials. ``single`` only logs a warning, once
        """
        if self.metric is None or self.metric in metrics:
            return
        message = (
            f"searcher.metric is {self.metric!r}, but validation reports {', '.join(sorted(metrics)) or 'nothing'}. "
            "Report a metric of that name, or change searcher.metric."
        )
        if self._decides:
            raise MissingMetricError(message)
        if not self._warned:
            self._warned = True
            log.warning("%s Without it, no checkpoint can be the best one.", message)

    def check_epochs(self, *, is_asked: bool) -> None:
        """Check that the length is not in epochs, of which a loop of the script's own has given no number.

        :param is_asked: the searcher decides at some lengths. Otherwise only a warning is logged, once
        :raises SetupError: the searcher would never be asked
        """
        if not self.counts or self.max_length is None or self.max_length.unit != "epochs":
            return
        message = (
            f"{self.max_length.name} counts epochs, and the number of finished epochs is unknown. Pass it: "
            "ctx.report_validation(step, metrics, epoch=3), use ctx.epochs, or give the length in batches."
        )
        if is_asked:
            raise SetupError(message)
        if not self._warned_of_epochs:
            self._warned_of_epochs = True
            log.warning("%s Until then, the script itself ends the training.", message)

    def time_is_up(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether ``time_metric`` has reached ``max_time``.

        :raises MissingMetricError: validation does not report ``time_metric``
        """
        if self.max_time is None:
            return False
        if self.time_metric is None:
            raise SetupError("searcher.max_time needs searcher.time_metric. Set it to the metric that max_time limits.")
        if self.time_metric not in metrics:
            raise MissingMetricError(
                f"searcher.time_metric is {self.time_metric!r}, but validation reports "
                f"{', '.join(sorted(metrics)) or 'nothing'}. Report it, or use searcher.max_length."
            )
        value = metrics[self.time_metric]
        return value is not None and value >= self.max_time

    def epochs(self) -> int:
        """Return the length of training in epochs.

        :raises SetupError: the length is not given in epochs
        """
        length = self.max_length
        if length is None or length.unit != "epochs":
            given = f"in {length.unit}" if length else "not given"
            raise SetupError(
                f"ctx.epochs() without a count takes searcher.max_length in epochs, which is {given}. Give a count, "
                "or set searcher.max_length: {epochs: 10}."
            )
        return length.count

    def reached(self, position: Position, metrics: Mapping[str, Any], global_batch: int | None) -> bool:
        """Return whether a script at this position must end.

        :param global_batch: samples per batch, all ranks together
        """
        length = self.max_length if self.counts else None
        if length is not None and length.distance(position, Geometry(global_batch, 1)) <= 0:
            return True
        return self.time_is_up(metrics)

    def units(self, position: Position, metrics: Mapping[str, Any], records_per_epoch: int | None = None) -> int:
        """Return the length that a trial has trained, in the whole units that the searcher counts in.

        :param records_per_epoch: size of an epoch, if the configuration gives it
        """
        if self.max_time is not None:
            time = metrics.get(self.time_metric or "")
            return int(time) if isinstance(time, (int, float)) else 0
        unit = self.max_length.unit if self.max_length is not None else "batches"
        if unit == "epochs":
            return position.records // records_per_epoch if records_per_epoch else position.epoch
        return position.records if unit == "records" else position.batches

    def improves(self, value: float | None, best: float | None) -> bool:
        """Return whether a value of the metric is better than the best so far."""
        if value is None or value != value:
            return False
        return best is None or (value < best if self.smaller_is_better else value > best)


def epochs_done(progress: Progress) -> int:
    """Return the number of complete epochs. The current one counts when every pass through its data is over.

    Without ``ctx.loader``, it counts from its first validation on, which most programs run at its end.
    """
    if progress.in_epochs and not progress.has_loader:
        return progress.epoch + 1
    return progress.epoch + (1 if progress.has_loader and progress.is_over else 0)


def epochs_trained(progress: Progress) -> float:
    """Return the number of trained epochs, with the share of the first loader's data in the current one.

    Without ``ctx.loader``, and in data of unknown length, the current epoch counts nothing until it is complete.
    """
    if not progress.has_loader:
        return progress.epoch + (1 if progress.is_whole else 0)
    if progress.ended:
        return progress.epoch + 1
    if not progress.passes:
        return progress.epoch
    first = progress.passes[0]
    if not (first.is_open or progress.is_stopping) or first.finished:
        return progress.epoch + 1
    return progress.epoch + (min(1.0, first.samples / first.length) if first.length else 0.0)
