"""A rank whose cleanup waits in a collective after an error, before the first step, is named with that error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.watchdog import RankReport, judge
from airflow_provider_dtrain.engine.attempt.watchdog import GangWatchdog
from airflow_provider_dtrain.errors import RankHangsError
from airflow_provider_dtrain.hosts.wire import ProgressFrame
from airflow_provider_dtrain.supervisor.files.progress_page import read_page
from airflow_provider_dtrain.train.process import heartbeat

ERROR = "KeyError: 'label'"


def waiting(number: int, **changes: Any) -> RankReport:
    """A rank that has rested in a collective of the program for some seconds, before the first step."""
    values: dict[str, Any] = {"silent_s": 0.5, "still_s": 30.0, "idle_s": 9.0, "phase": "compute", "held_s": 9.0}
    return RankReport(rank=number, host=f"h{number}", **{**values, **changes})


GANG = [waiting(0), waiting(1, raised=ERROR), waiting(2)]


def test_the_rank_that_handles_an_error_is_behind() -> None:
    (behind,) = judge(GANG).behind
    assert (behind.report.rank, behind.why, behind.kind, behind.for_s) == (1, "raised", "user", 9.0)
    assert f"rank 1 on h1 waits in a collective after {ERROR}, for 9 s" in behind.text


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"idle_s": 0.0}), (0, {"held_s": 0.0}), (0, {"held_s": 3.0}), (1, {"raised": ""}), (1, {"held_s": 0.0}),
        (1, {"idle_s": 1.0}), (2, {"state": "R", "idle_s": 0.0}),
    ],
)  # fmt: skip
def test_no_rank_is_named_while_one_works_or_is_not_in_a_collective(number: int, changes: dict[str, Any]) -> None:
    gang = [replace(one, **changes) if one.rank == number else one for one in GANG]
    assert judge(gang).behind == ()


def test_nothing_is_claimed_without_the_reports_of_all_ranks_or_of_one_rank_alone() -> None:
    assert judge(GANG, complete=False).behind == ()
    assert judge([GANG[1]]).behind == ()


def test_the_gang_is_ended_after_hang_timeout_with_the_error_as_its_cause() -> None:
    watchdog = GangWatchdog(["h0", "h1", "h2"], 8.0, logging.getLogger("test"))
    error = None
    for beat in range(3):
        for one in GANG:
            watchdog.take(one.host, ProgressFrame(run="r", boottime_s=float(beat), ranks=(one,)))
        error = watchdog.check()
        if beat == 1:
            named_at, behind = watchdog.named[1]
            watchdog.named[1] = named_at - 60.0, behind
    assert isinstance(error, RankHangsError)
    assert (error.rank, error.host, error.cause_kind) == (1, "h1", "exception")
    assert str(error).startswith(f"Rank 1 on host 'h1' cannot end after {ERROR}: its cleanup waits since ")
    patient = GangWatchdog(["h0", "h1", "h2"], 600.0, logging.getLogger("test"))
    for beat in range(3):
        for one in GANG:
            patient.take(one.host, ProgressFrame(run="r", boottime_s=float(beat), ranks=(one,)))
        assert patient.check() is None
    assert 1 in patient.named


def in_file(name: str, check: Callable[[], None], error: BaseException | None = None) -> None:
    """Call a function from code of a file, which handles an error meanwhile."""
    names: dict[str, Any] = {}
    exec(compile("def call(check):\n    check()\n", name, "exec"), names)  # noqa: S102
    if error is None:
        names["call"](check)
        return
    try:
        raise error
    except BaseException:
        names["call"](check)


def seen_by_a_thread(name: str, error: BaseException | None = None) -> tuple[bool, str]:
    found: list[tuple[bool, str]] = []

    def check() -> None:
        thread = threading.Thread(target=lambda: found.append(heartbeat.main_thread()))
        thread.start()
        thread.join()

    in_file(name, check, error)
    return found[0]


COLLECTIVE = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


def test_the_heart_sees_the_collective_and_the_error_of_the_main_thread() -> None:
    assert seen_by_a_thread(COLLECTIVE) == (True, "")
    assert seen_by_a_thread(COLLECTIVE, KeyError("label")) == (True, ERROR)
    assert seen_by_a_thread("/home/me/train.py", KeyError("label")) == (False, ERROR)
    assert heartbeat.main_thread() == (False, "")


class RudeError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error",
    [RudeError(), ValueError("x" * 10**6), ValueError('"\\' * 500), ValueError("\0\x1b[31m\u202e\ud800\n" * 99)],
)
def test_a_page_with_any_error_can_be_read(tmp_path: Path, error: Exception) -> None:
    here = heartbeat.Here()
    here.steps = lambda: 2**62
    here.collectives = lambda: 2**62
    here.now = ("exchange", "x" * 60)
    heart = heartbeat.Heart(here, tmp_path / "progress" / "0")
    for _ in range(2):
        in_file(COLLECTIVE, lambda: _from_thread(heart.beat), error)
    page = read_page(str(tmp_path / "progress" / "0"), heartbeat.boottime() + 9.0)
    assert page["raised"].startswith(type(error).__name__)
    assert page["raised"].isprintable()
    assert 9.0 <= page["held_s"] < 60.0
    here.started = True
    heart.beat()
    page = read_page(str(tmp_path / "progress" / "0"), heartbeat.boottime())
    assert (page["held_s"], page["raised"]) == (0.0, "")


def _from_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_reading_the_main_thread_costs_little() -> None:
    begin = time.process_time()
    for _ in range(1000):
        heartbeat.main_thread()
    # Once a second, and only before the first step.
    assert (time.process_time() - begin) / 1000 < 0.001
