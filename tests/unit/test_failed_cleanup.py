"""A rank whose cleanup waits in a collective after an error is named with that error."""

from __future__ import annotations

import logging
import sys
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


#: In the middle of a training: gloo counts the barrier of the cleanup twice, so the other ranks are behind by numbers.
LATER = [
    replace(one, started=True, steps=20, collectives=43 if one.raised else 42, what="its training loop") for one in GANG
]


@pytest.mark.parametrize("changes", [{}, {"collectives": 42}, {"collectives": 0}, {"steps": 19}, {"steps": 21}])
def test_a_cleanup_after_some_steps_is_named_and_not_the_ranks_that_wait(changes: dict[str, Any]) -> None:
    gang = [replace(one, **changes) if one.raised else one for one in LATER]
    assert [(one.report.rank, one.why) for one in judge(gang).behind] == [(1, "raised")]
    in_backward = {"phase": "exchange", "what": "the gradient exchange", "held_s": 0.0}
    gang = [one if one.raised else replace(one, **in_backward) for one in gang]
    assert [(one.report.rank, one.why) for one in judge(gang).behind] == [(1, "raised")]


def test_an_error_that_all_ranks_handle_names_none_of_them() -> None:
    assert judge([replace(one, raised=ERROR) for one in LATER]).behind == ()


def test_ranks_that_rest_in_different_collectives_of_the_program_are_not_behind_each_other() -> None:
    gang = [replace(one, raised="") for one in LATER]
    assert judge(gang).behind == ()
    gang = [replace(one, still_s=61.0, idle_s=61.0, held_s=61.0) for one in gang]
    assert [one.why for one in judge(gang).behind] == ["together"] * 3


def test_before_the_first_step_a_gang_that_rests_in_collectives_for_a_minute_is_named_as_a_whole() -> None:
    gang = [replace(one, raised="", idle_s=61.0, held_s=61.0) for one in GANG]
    assert [one.why for one in judge(gang).behind] == ["together"] * 3
    # The first backward pass of a distributed model is native code.
    different = [replace(gang[0], phase="exchange", what="the gradient exchange", held_s=0.0, still_s=61.0), *gang[1:]]
    assert [one.why for one in judge(different).behind] == ["together"] * 3
    for changes in ({"held_s": 59.0}, {"idle_s": 1.0}, {"phase": "wait"}, {"held_s": 0.0}):
        assert judge([replace(gang[0], **changes), *gang[1:]]).behind == (), changes
    assert judge([replace(different[0], still_s=59.0), *gang[1:]]).behind == ()


def test_nothing_is_claimed_without_the_reports_of_all_ranks_or_of_one_rank_alone() -> None:
    assert judge(GANG, complete=False).behind == ()
    assert judge([GANG[1]]).behind == ()


@pytest.mark.parametrize(
    ("text", "kind"), [(ERROR, "exception"), ("OutOfMemoryError: CUDA out of memory. Tried to", "device_memory")]
)
def test_the_gang_is_ended_after_hang_timeout_with_the_error_as_its_cause(text: str, kind: str) -> None:
    gang = [replace(one, raised=text) if one.raised else one for one in GANG]
    watchdog = GangWatchdog(["h0", "h1", "h2"], 8.0, logging.getLogger("test"))
    error = None
    for beat in range(3):
        for one in gang:
            watchdog.take(one.host, ProgressFrame(run="r", boottime_s=float(beat), ranks=(one,)))
        error = watchdog.check()
        if beat == 1:
            named_at, behind = watchdog.named[1]
            watchdog.named[1] = named_at - 60.0, behind
    assert isinstance(error, RankHangsError)
    assert (error.rank, error.host, error.cause_kind) == (1, "h1", kind)
    assert str(error).startswith(f"Rank 1 on host 'h1' cannot end after {text}: its cleanup waits since ")
    patient = GangWatchdog(["h0", "h1", "h2"], 600.0, logging.getLogger("test"))
    for beat in range(3):
        for one in gang:
            patient.take(one.host, ProgressFrame(run="r", boottime_s=float(beat), ranks=(one,)))
        assert patient.check() is None
    assert 1 in patient.named


def in_file(name: str, check: Callable[[], None], error: BaseException | None = None) -> None:
    """Call a function in a thread while this thread waits in native code that code of a file has called.

    :param error: this thread handles it meanwhile
    """
    names: dict[str, Any] = {}
    exec(compile("def call(wait):\n    wait()\n", name, "exec"), names)  # noqa: S102
    over = threading.Lock()
    over.acquire()
    main = threading.main_thread().ident or 0

    def check_and_end() -> None:
        end = time.monotonic() + 30
        while sys._current_frames()[main].f_code.co_filename != name and time.monotonic() < end:
            pass
        try:
            check()
        finally:
            over.release()

    thread = threading.Thread(target=check_and_end)
    thread.start()
    try:
        if error is not None:
            raise error
    except BaseException:
        names["call"](over.acquire)
    else:
        names["call"](over.acquire)
    thread.join()


def seen_by_a_thread(name: str, error: BaseException | None = None) -> tuple[bool, str]:
    found: list[tuple[bool, str]] = []
    in_file(name, lambda: found.append(heartbeat.main_thread()), error)
    return found[0]


LIBRARY = "/venv/lib/python3.12/site-packages/torch/distributed"
COLLECTIVE = f"{LIBRARY}/distributed_c10d.py"


def test_the_heart_sees_the_collective_and_the_error_of_the_main_thread() -> None:
    assert seen_by_a_thread(COLLECTIVE) == (True, "")
    assert seen_by_a_thread(COLLECTIVE, KeyError("label")) == (True, ERROR)
    assert seen_by_a_thread("/home/me/train.py", KeyError("label")) == (False, ERROR)
    assert seen_by_a_thread(f"{LIBRARY}/checkpoint/filesystem.py") == (False, ""), "it writes a file"
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
        in_file(COLLECTIVE, heart.beat, error)
    page = read_page(str(tmp_path / "progress" / "0"), heartbeat.boottime() + 9.0)
    assert page["raised"].startswith(type(error).__name__)
    assert page["raised"].isprintable()
    assert 9.0 <= page["held_s"] < 60.0


def test_after_the_first_step_the_main_thread_is_read_only_without_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = heartbeat.Here()
    here.started = True
    heart = heartbeat.Heart(here, tmp_path / "progress" / "0")
    monkeypatch.setattr(heartbeat, "main_thread", lambda: (True, ERROR))

    def page_after_beat() -> tuple[float, str]:
        heart.beat()
        page = read_page(str(tmp_path / "progress" / "0"), heartbeat.boottime() + 9.0)
        return page["held_s"] > 0, page["raised"]

    for moves in range(1, 4):
        here.moves = moves
        assert page_after_beat() == (False, "")
    assert page_after_beat() == (True, ERROR)
    here.moves += 1
    assert page_after_beat() == (False, "")


def test_reading_the_main_thread_costs_little() -> None:
    begin = time.process_time()
    for _ in range(1000):
        heartbeat.main_thread()
    # Once a second, and only while the rank makes no progress.
    assert (time.process_time() - begin) / 1000 < 0.001
