"""Lengths of training under the names of ``determined.core.SearcherContext``."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.determined.refusals import refuse_worker
from airflow_provider_dtrain.train.determined.reports import TrainContext
from airflow_provider_dtrain.train.errors import NotOfferedError, SetupError

log = logging.getLogger(__name__)


class Unit(enum.Enum):
    """Units of lengths."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Ranks that iterate over the operations."""

    #: All ranks, in step.
    WorkersAskChief = "WORKERS_ASK_CHIEF"
    #: Rank 0, which tells the other ranks.
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """Request of the searcher: train up to a length, validate, and report.

    :param length: absolute, in units of ``searcher.max_length``
    """

    def __init__(self, ctx: CoreContext, reports: TrainContext, length: int) -> None:
        self._ctx = ctx
        self._reports = reports
        self._length = length
        #: :meth:`report_completed` was called.
        self.is_completed = False

    @property
    def length(self) -> int:
        """Length to which the trial is trained, counted from its start."""
        return self._length

    def report_progress(self, length: float) -> None:
        """Log the progress of the trial in the task log, at each further tenth. Called by rank 0.

        If ``searcher.max_length`` counts epochs, the next reports name this one.

        :param length: trained length, in units of ``searcher.max_length``
        """
        refuse_worker(self._ctx.rank, "op.report_progress")
        if self.is_completed and length != self._length:
            raise SetupError("op.report_progress must be called before op.report_completed.")
        self._reports.length = max(self._reports.length or 0, length)
        last = next(iter((self._ctx.max_length or {}).values()), self._length)
        self._reports.report_progress(min(1.0, max(0.0, length / last)))

    def report_completed(self, searcher_metric: Any) -> None:
        """Report the metric at this length, which the searcher compares. Called by rank 0, once.

        :param searcher_metric: value of ``searcher.metric``
        :raises MetricError: it is not a number
        """
        refuse_worker(self._ctx.rank, "op.report_completed")
        if self.is_completed:
            raise SetupError("op.report_completed must be called once per operation, and was called before.")
        self.is_completed = True
        self._reports.length = max(self._reports.length or 0, self._length)
        step = self._ctx.last_step
        name = (self._ctx.config.get("searcher") or {}).get("metric")
        if name is not None and not (self._reports.validated[0] == step and name in self._reports.validated[1]):
            self._reports.report_validation_metrics(step, {name: searcher_metric})
        self._ctx.report_length(step, self._length, searcher_metric)


class SearcherContext:
    """Operations of the searcher.

    :param rungs: lengths at which the searcher decides in this attempt
    """

    def __init__(self, ctx: CoreContext, reports: TrainContext, rungs: Sequence[int], *, on_cluster: bool) -> None:
        self._ctx = ctx
        self._reports = reports
        self._rungs = rungs
        self._on_cluster = on_cluster

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yield one operation per length at which the searcher decides, and one for ``searcher.max_length``.

        An attempt that resumes the trial has none for lengths at which the searcher has decided before. It ends when
        the searcher has ended the trial, or the trial must stop. Outside a trial, there is one operation of length 1.

        :param auto_ack: has no effect
        :raises NotOfferedError: the configuration has no ``searcher.max_length``
        :raises SetupError: an operation was not completed
        """
        mode = SearcherMode(searcher_mode)
        if mode is SearcherMode.ChiefOnly:
            refuse_worker(self._ctx.rank, "searcher.operations(SearcherMode.ChiefOnly)")
        # Validations inside the loop need not give the number of epochs.
        self._reports.length = self._reports.length or 0
        for length in self._lengths():
            operation = SearcherOperation(self._ctx, self._reports, length)
            yield operation
            if self._ctx.is_chief and not operation.is_completed:
                raise SetupError(
                    f"The operation of length {length} was not completed. Call op.report_completed(metric) on rank 0."
                )
            if self._must_end(mode):
                return

    def get_configured_units(self) -> Unit | None:
        """Return the unit of ``searcher.max_length``, or None without one."""
        unit = next(iter(self._ctx.max_length or {}), None)
        return Unit[unit.upper()] if unit is not None else None

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing, as in Determined."""

    def _lengths(self) -> list[int]:
        if self._ctx.max_length is None:
            if not self._on_cluster:
                log.info("Outside a trial, the searcher has one operation of length 1.")
                return [1]
            raise NotOfferedError(
                "searcher.operations() needs searcher.max_length, which the configuration does not give. Set it, or "
                "let the script decide how long it trains."
            )
        ((_, last),) = self._ctx.max_length.items()
        return [*sorted({length for length in self._rungs if length < last}), last]

    def _must_end(self, mode: SearcherMode) -> bool:
        step = self._ctx.last_step
        if mode is SearcherMode.ChiefOnly:
            return self._ctx.chief_should_stop(step)
        return self._ctx.should_stop(step, at_once=True)
