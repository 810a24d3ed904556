"""Progress of a running trial, from its configuration and its reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from airflow_provider_dtrain.core.search.expected_end import LONGEST

#: Units of training in which a length is comparable with reports.
UNITS: Final = ("batches", "records", "epochs")


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """Place of a trial at one of its reports."""

    #: Batches.
    step: int
    #: Number of trained epochs. A whole one of training may also be the index of the epoch. None: unknown.
    epoch: float | None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The reports of an attempt that tell its progress."""

    first: ProgressReport
    latest: ProgressReport
    #: Latest validation of the trial; None: there was none. A program usually validates at the end of an epoch.
    validation: ProgressReport | None


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """Trained and planned length of a trial."""

    #: In units; of epochs the begun ones.
    done: int
    #: None: the configuration names no length that is comparable with reports.
    total: int | None
    #: ``batches``, ``records`` or ``epochs``; ``shards`` of a batch inference.
    unit: str
    #: From 0 to 1; None without a total.
    share: float | None
    #: From the speed of this attempt; None: there are too few reports.
    expected_end: datetime | None


@dataclass(frozen=True, kw_only=True)
class TrialLength:
    """Length and batch size of a trial, as its configuration gives them."""

    unit: str
    total: int | None
    #: Records per batch, all ranks together; None: unknown.
    global_batch: int | None
    #: Size of an epoch; None: unknown.
    records_per_epoch: int | None

    @classmethod
    def of(cls, searcher: Any, global_batch: Any, records_per_epoch: Any) -> TrialLength:
        """Return the plan of a trial.

        :param searcher: section of the configuration
        :param global_batch: hyperparameter ``global_batch_size``
        """
        length = _length(searcher if isinstance(searcher, Mapping) else {})
        unit, total = ("batches", None) if length is None else length
        return cls(
            unit=unit,
            total=total,
            global_batch=_positive(global_batch),
            records_per_epoch=_positive(records_per_epoch),
        )

    def batches(self, validation: ProgressReport | None) -> float | None:
        """Return the planned number of batches, None when it cannot be estimated.

        :param validation: latest validation, which ends an epoch
        """
        if self.total is None or self.unit == "batches":
            return self.total
        if self.unit == "records":
            return None if self.global_batch is None else self.total / self.global_batch
        if self.records_per_epoch is not None and self.global_batch is not None:
            return self.total * self.records_per_epoch / self.global_batch
        if validation is None or not validation.epoch:
            return None
        return self.total * validation.step / validation.epoch


def progress_of(plan: TrialLength, reports: Reports | None, now: datetime) -> TrialProgress:
    """Return the progress of a running trial.

    :param reports: of its running attempt; None: it has reported nothing yet
    """
    if reports is None:
        share = None if plan.total is None else 0.0
        return TrialProgress(done=0, total=plan.total, unit=plan.unit, share=share, expected_end=None)
    share = _share(plan, reports, reports.latest)
    done = _done(plan, reports)
    return TrialProgress(
        done=reports.latest.step if done is None else done,
        total=None if done is None else plan.total,
        unit="batches" if done is None else plan.unit,
        share=share,
        expected_end=_expected_end(_share(plan, reports, reports.first), share, reports, now),
    )


def mean_share(running: Iterable[TrialProgress]) -> float | None:
    """Return the mean of the shares that are known, None while none is."""
    shares = [one.share for one in running if one.share is not None]
    return sum(shares) / len(shares) if shares else None


def _length(searcher: Mapping[str, Any]) -> tuple[str, int] | None:
    given = searcher.get("max_length")
    if isinstance(given, Mapping):
        counts = {unit: _positive(given.get(unit)) for unit in UNITS}
        return next(((unit, count) for unit, count in counts.items() if count is not None), None)
    unit, limit = searcher.get("time_metric"), _positive(searcher.get("max_time"))
    return (str(unit), limit) if unit in UNITS and limit is not None else None


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _done(plan: TrialLength, reports: Reports) -> int | None:
    """Return the trained length in units of the planned one, None if it is unknown."""
    if plan.total is None:
        return None
    if plan.unit == "batches":
        return reports.latest.step
    if plan.unit == "records":
        return None if plan.global_batch is None else reports.latest.step * plan.global_batch
    epoch = reports.latest.epoch
    if epoch is None:
        batches = plan.batches(reports.validation)
        epoch = None if batches is None else reports.latest.step / batches * plan.total
    return None if epoch is None else min(plan.total, int(epoch) + 1)


def _share(plan: TrialLength, reports: Reports, report: ProgressReport) -> float | None:
    """Return the share of the planned length that is trained at a report."""
    if plan.total is None:
        return None
    batches = plan.batches(reports.validation)
    share = None if batches is None else report.step / batches
    if plan.unit == "epochs" and report.epoch is not None:
        # Epochs count whatever the number of their batches.
        least, most = report.epoch / plan.total, (report.epoch + 1) / plan.total
        share = least if share is None or report.epoch % 1 else min(max(share, least), most)
    return None if share is None else min(max(share, 0.0), 1.0)


def _expected_end(begun: float | None, share: float | None, reports: Reports, now: datetime) -> datetime | None:
    """Return the expected end at the mean speed between two reports.

    A host's clock may run backwards or ahead, so an end in the past is now.
    """
    passed_s = (reports.latest.at - reports.first.at).total_seconds()
    if begun is None or share is None or share <= begun or passed_s <= 0:
        return None
    left_s = (1.0 - share) / (share - begun) * passed_s
    if left_s > LONGEST.total_seconds():
        return None
    return max(now, min(now, reports.latest.at) + timedelta(seconds=left_s))
