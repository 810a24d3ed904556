"""Progress and expected end of a running trial from its reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.trial_text import progress_text
from airflow_provider_dtrain.core.search.trial_progress import (
    ProgressReport,
    Reports,
    TrialLength,
    TrialProgress,
    progress_of,
)

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def report(step: int, epoch: float | None = None, *, after_s: float = 0.0) -> ProgressReport:
    return ProgressReport(step=step, epoch=epoch, at=START + timedelta(seconds=after_s))


def found(
    length: Any,
    *reports: ProgressReport,
    validation: ProgressReport | None = None,
    batch: Any = None,
    size: Any = None,
    now_s: float = 100.0,
) -> TrialProgress:
    plan = TrialLength.of(length if "time_metric" in length else {"max_length": length}, batch, size)
    held = Reports(first=reports[0], latest=reports[-1], validation=validation) if reports else None
    return progress_of(plan, held, START + timedelta(seconds=now_s))


def test_a_trial_without_reports_has_done_nothing() -> None:
    one = found({"batches": 100})
    assert (one.done, one.total, one.share, one.expected_end) == (0, 100, 0.0, None)
    assert found({}).share is None


def test_batches_are_compared_with_the_planned_length() -> None:
    one = found({"batches": 1000}, report(100), report(300, after_s=100))
    assert (one.share, progress_text(one)) == (0.3, "300 of 1,000 batches (30 %)")
    assert one.expected_end == START + timedelta(seconds=100 + 350)


def test_the_speed_is_that_of_the_running_attempt() -> None:
    one = found({"batches": 1000}, report(900), report(950, after_s=100))
    assert one.expected_end == START + timedelta(seconds=200)


def test_records_need_the_size_of_a_batch() -> None:
    assert found({"records": 1000}, report(5), batch=20).share == 0.1
    one = found({"records": 1000}, report(5))
    assert (one.share, progress_text(one)) == (None, "5 batches")


def test_epochs_are_measured_by_the_size_of_the_data_or_by_the_latest_validation() -> None:
    assert found({"epochs": 4}, report(50, 0), batch=10, size=1000).share == pytest.approx(0.125)
    assert found({"epochs": 4}, report(150, 1), validation=report(100, 1)).share == pytest.approx(0.375)
    one = found({"epochs": 4}, report(90, 0))
    assert (one.share, progress_text(one)) == (0.0, "1 of 4 epochs (0 %)")


def test_a_report_inside_an_epoch_tells_its_share() -> None:
    one = found({"epochs": 4}, report(90, 0.25), validation=report(400, 2))
    assert (one.share, progress_text(one)) == (0.0625, "1 of 4 epochs (6 %)")


def test_reports_without_an_epoch_are_measured_by_the_latest_validation_that_has_one() -> None:
    one = found({"epochs": 20}, report(150), validation=report(100, 4.0))
    assert (one.share, progress_text(one)) == (pytest.approx(0.3), "7 of 20 epochs (30 %)")
    one = found({"epochs": 20}, report(150), validation=report(100))
    assert (one.share, progress_text(one)) == (None, "150 batches")


def test_the_share_stays_within_the_epoch_that_was_reported() -> None:
    assert found({"epochs": 4}, report(900, 1), validation=report(100, 1)).share == 0.5
    assert found({"epochs": 4}, report(900, 3), validation=report(100, 1)).share == 1.0


def test_a_trial_without_a_planned_length_shows_its_steps() -> None:
    one = found({}, report(100), report(300, after_s=100))
    assert (one.share, one.expected_end, progress_text(one)) == (None, None, "300 batches")
    assert found({"time_metric": "hours", "max_time": 3}, report(7)).total is None
    assert found({"time_metric": "batches", "max_time": 10}, report(7)).share == 0.7


@pytest.mark.parametrize(
    "length", [{"batches": "many"}, {"batches": True}, {"batches": -1}, {"batches": None}, [], "x"]
)
def test_a_length_that_is_no_number_is_no_length(length: Any) -> None:
    assert TrialLength.of({"max_length": length}, 1, 1).total is None


def test_clocks_that_run_backwards_or_ahead_give_no_end_in_the_past() -> None:
    assert found({"batches": 100}, report(1, after_s=50), report(2)).expected_end is None
    ahead = found({"batches": 100}, report(50, after_s=9000), report(75, after_s=9100))
    assert ahead.expected_end == START + timedelta(seconds=200)
    late = found({"batches": 100}, report(50), report(99, after_s=10), now_s=9000)
    assert late.expected_end == START + timedelta(seconds=9000)
    assert found({"batches": 2**63}, report(1), report(2, after_s=10)).expected_end is None
