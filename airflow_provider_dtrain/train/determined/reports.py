"""Metrics and messages under the names of ``determined.core.TrainContext`` and ``ProfilerContext``."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.determined.refusals import refuse, refuse_worker
from airflow_provider_dtrain.train.errors import InvalidHP, MetricError, NotOfferedError
from airflow_provider_dtrain.train.integrations.scalars import numbers_of

log = logging.getLogger(__name__)

_EVENT_FILES = (
    "Set tensorboard: true in the configuration for event files of all metrics, or write your own by "
    "airflow_provider_dtrain.train.integrations.tensorboard.SummaryWriter."
)
_LABELS = "Put it into the metadata of a checkpoint, or into the labels of the experiment."

#: Name of Determined -> remedy.
_INSTEAD = {
    "get_experiment_best_validation": (
        "An attempt does not read other trials. Keep the best value of the trial in the metadata of its checkpoints."
    ),
    "get_tensorboard_path": _EVENT_FILES,
    "upload_tensorboard_files": _EVENT_FILES,
    "set_metadata": _LABELS,
    "get_metadata": _LABELS,
}
#: Names under which reports give the number of trained epochs.
_EPOCHS = ("epochs", "epoch")


class EarlyExitReason(enum.Enum):
    """Reasons of ``report_early_exit``."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TrainContext:
    """Reports of rank 0."""

    def __init__(self, ctx: CoreContext) -> None:
        self._ctx = ctx
        self._left_out: set[str] = set()
        self._tenths = 0
        #: Finished length in units of ``searcher.max_length``, as far as the script has reported it.
        self.length: float | None = None
        #: Step and names of the latest validation.
        self.validated: tuple[int, frozenset[str]] = (-1, frozenset())

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Record training metrics. Called by rank 0.

        :param batch_metrics: not offered
        """
        if batch_metrics is not None:
            raise NotOfferedError(
                "report_training_metrics(batch_metrics=...) is not offered. Report each batch by a call of its own."
            )
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record validation metrics, which the searcher compares at its rungs. Called by rank 0.

        If ``searcher.max_length`` counts epochs, their finished number is the metric ``epochs``, or what the operation
        of the searcher has reported.

        :raises MetricError: a metric is None
        """
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics of a group. Called by rank 0.

        :param group: ``training``, ``validation``, or another name, which becomes a prefix of the metrics' names
        """
        refuse_worker(self._ctx.rank, f"train.report_metrics({group!r})")
        missing = next((name for name, value in metrics.items() if value is None), None)
        if group == "validation" and missing is not None:
            raise MetricError(f"Metric {missing!r} of a validation must be a number, got None.")
        numbers = self._numbers(metrics)
        if group == "validation":
            self.validated = steps_completed, frozenset(numbers)
            self._ctx.report_validation(steps_completed, numbers, average=False, epoch=self._epoch(numbers))
        elif group == "training":
            self._ctx.report(steps_completed, numbers, epoch=self._epoch(numbers))
        else:
            self._ctx.report(steps_completed, {f"{group}/{name}": value for name, value in numbers.items()})

    def report_progress(self, progress: float, is_raw: bool = False) -> None:
        """Log the progress of the trial in the task log, at each further tenth. Called by rank 0.

        If ``searcher.max_length`` counts epochs, and the script does not loop over ``searcher.operations()``, the next
        reports name the epoch that follows from it.

        :param progress: from 0 to 1
        :param is_raw: has no effect
        """
        refuse_worker(self._ctx.rank, "train.report_progress")
        if not 0 <= progress <= 1:
            raise MetricError(f"progress must be a number from 0 to 1, got {progress!r}.")
        total = (self._ctx.max_length or {}).get("epochs")
        if total is not None and self.length is None:
            self._ctx.set_epoch(progress * total)
        tenths = int(10 * progress + 1e-6)
        if tenths > self._tenths:
            self._tenths = tenths
            log.info("The script has done %d %% (step %d).", 10 * tenths, self._ctx.last_step)

    def set_status(self, status: str) -> None:
        """Log a status of the script in the task log."""
        log.info("Status of the script: %s", status)

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Raise :class:`InvalidHP`: a searcher then draws other hyperparameters.

        :raises InvalidHP: the reason is ``INVALID_HP``
        :raises NotOfferedError: it is another one
        """
        if EarlyExitReason(reason) is EarlyExitReason.INVALID_HP:
            raise InvalidHP("The script has reported EarlyExitReason.INVALID_HP.")
        raise NotOfferedError("report_early_exit(USER_REQUESTED_STOP) is not offered. End the script with exit code 0.")

    def __getattr__(self, name: str) -> Any:
        refuse("'TrainContext' object", "core_context.train", name, _INSTEAD)

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        numbers = numbers_of(metrics)
        for name in metrics:
            if name not in numbers and name not in self._left_out:
                self._left_out.add(name)
                log.warning(
                    "Metric %r is left out, because it is %s and not one number. This is logged once per metric.",
                    name,
                    type(metrics[name]).__name__,
                )
        return numbers

    def _epoch(self, numbers: Mapping[str, float]) -> float | None:
        """Return the number of trained epochs, as far as the script has reported it."""
        of_script = self.length if "epochs" in (self._ctx.max_length or {}) else None
        return next((numbers[name] for name in _EPOCHS if 0 <= numbers.get(name, -1) < math.inf), of_script)


class ProfilerContext:
    """System metrics, which the supervisor of each host samples for every trial."""

    def __init__(self, ctx: CoreContext) -> None:
        self._ctx = ctx

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Log that system metrics are sampled.

        :param sampling_interval: has no effect; ``profiling.sampling_interval_s`` of the configuration
        :param samples_per_report: has no effect
        :raises NotOfferedError: ``profiling`` is disabled
        """
        if not (self._ctx.config.get("profiling") or {}).get("enabled", True):
            raise NotOfferedError(
                "profiler.on() cannot switch profiling on in a running trial. Set profiling.enabled: true."
            )
        self._log_once(
            "System metrics are sampled from the start to the end of a trial, see profiling.sampling_interval_s."
        )

    def off(self) -> None:
        """Log that system metrics are sampled to the end of the trial."""
        self._log_once("profiler.off() has no effect. To sample no system metrics, set profiling.enabled: false.")

    def _log_once(self, message: str) -> None:
        if self._ctx.is_chief:
            log.info(message)
