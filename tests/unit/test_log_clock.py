"""The clock of a rank's log on a host: sizes at known times, in a file of limited size."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_dtrain.core.logs.clock import samples_of
from airflow_provider_dtrain.supervisor.run import log_clock
from airflow_provider_dtrain.supervisor.run.log_clock import LogClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test changes."""
    time = [1000.0]
    monkeypatch.setattr(log_clock.time, "time", lambda: time[0])
    return time


def test_a_clock_has_a_record_for_each_growth(tmp_path: Path, now: list[float]) -> None:
    clock = LogClock(str(tmp_path))
    clock.note()
    (tmp_path / "log").write_bytes(b"12345")
    for _ in range(3):
        now[0] += 1
        clock.note()
    (tmp_path / "log").write_bytes(b"1234567")
    now[0] += 1
    clock.note()
    assert samples_of((tmp_path / "clock").read_bytes(), 0.0) == [(5, 1001.0), (7, 1004.0)]


def test_a_full_clock_keeps_every_second_record_and_writes_half_as_often(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_clock, "CLOCK_RECORDS", 8)
    clock = LogClock(str(tmp_path))
    for size in range(1, 201):
        now[0] += 1
        (tmp_path / "log").write_bytes(b"x" * size)
        clock.note()
        assert (tmp_path / "clock").stat().st_size <= 8 * log_clock.RECORD.size
    (tmp_path / "log").write_bytes(b"x" * 500)
    clock.note(is_last=True)
    samples = samples_of((tmp_path / "clock").read_bytes(), 0.0)
    assert samples[-1] == (500, now[0])
    assert all(at_s - size == 1000.0 for size, at_s in samples[:-1])
    assert samples[0][0] < 100


def test_a_clock_that_a_rank_has_replaced_by_a_link_or_a_pipe_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "log").write_bytes(b"x")
    (tmp_path / "clock").symlink_to(victim)
    LogClock(str(tmp_path)).note()
    assert victim.read_bytes() == b"mine"
    (tmp_path / "clock").unlink()
    (tmp_path / "clock").mkdir()
    LogClock(str(tmp_path)).note()
