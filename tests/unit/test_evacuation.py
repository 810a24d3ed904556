"""The time at which a gang leaves a host, and the deadline of a command."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dtrain.core.scheduling.evacuation import Drain, Resumption, ask_at, due
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.arguments import deadline
from airflow_provider_dtrain.terminal.control import deadline_of

BY = datetime(2026, 1, 31, 22, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("gang", "kills", "before_s"),
    [
        pytest.param(Resumption(uses_library=True), False, 3600.0, id="timeout"),
        pytest.param(Resumption(has_checkpoint=True, timeout_s=90.0), False, 90.0, id="own-timeout"),
        pytest.param(Resumption(has_checkpoint=True, cost_s=200.0), False, 400.0, id="twice-the-cost"),
        pytest.param(Resumption(has_checkpoint=True, cost_s=1.0), False, 60.0, id="a-minute-at-least"),
        pytest.param(Resumption(has_checkpoint=True, cost_s=1.0, timeout_s=5.0), False, 5.0, id="short-timeout"),
        pytest.param(Resumption(preemptible=True), False, 3600.0, id="declared"),
        pytest.param(Resumption(), False, None, id="plain"),
        pytest.param(Resumption(), True, 0.0, id="plain-killed"),
        pytest.param(Resumption(preemptible=False, has_checkpoint=True), False, None, id="refuses"),
        pytest.param(Resumption(preemptible=False, uses_library=True), True, 0.0, id="refuses-killed"),
    ],
)
def test_a_gang_is_asked_before_the_deadline_by_its_margin(
    gang: Resumption, kills: bool, before_s: float | None
) -> None:
    at = ask_at(Drain(host="a", by=BY, kills=kills), gang)
    assert at == (None if before_s is None else BY - timedelta(seconds=before_s))


def test_of_several_hosts_the_earliest_deadline_counts() -> None:
    gang = Resumption(has_checkpoint=True, timeout_s=60.0)
    early, late = Drain(host="b", by=BY), Drain(host="a", by=BY + timedelta(hours=1))
    assert due([late, early], gang, BY - timedelta(seconds=61)) is None
    assert due([late, early], gang, BY - timedelta(seconds=60)) == early
    assert due([late], gang, BY) is None


def test_a_deadline_is_a_time_of_the_day_an_absolute_time_or_a_length() -> None:
    now = datetime.now(UTC)
    assert abs((deadline("2h") - now).total_seconds() - 7200) < 60
    assert deadline("2026-01-31T22:00+00:00") == BY
    for text in ("00:00", "23:59"):
        at = deadline(text)
        assert at.strftime("%H:%M") == text
        assert timedelta(0) < at - now <= timedelta(days=1, hours=1)


@pytest.mark.parametrize("text", ["25:00", "tonight", "", "2026-13-01", "-5m", "9" * 20])
def test_another_text_is_no_deadline(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a deadline must be a time"):
        deadline(text)


def test_a_command_has_one_deadline() -> None:
    with pytest.raises(UsageError, match="--now and --by"):
        deadline_of(argparse.Namespace(now=True, by=BY, kill_at_deadline=False))
    with pytest.raises(UsageError, match="--kill-at-deadline"):
        deadline_of(argparse.Namespace(now=False, by=None, kill_at_deadline=True))
    found = deadline_of(argparse.Namespace(now=False, by=BY, kill_at_deadline=True))
    assert found is not None
    assert (found.by, found.kills) == (BY, True)
    assert deadline_of(argparse.Namespace(now=False, by=None, kill_at_deadline=False)) is None
