"""The parts of the engine that need neither store nor hosts."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_dtrain import errors
from airflow_provider_dtrain.core.lifecycle import RankExit
from airflow_provider_dtrain.engine.finishing import cause
from airflow_provider_dtrain.engine.following import GangEnd
from airflow_provider_dtrain.engine.outcome import Failure, Outcome, plain
from airflow_provider_dtrain.engine.tasklog import TaskLog, clean


def test_an_outcome_travels_through_json_and_back() -> None:
    outcome = Outcome(state="errored", failure=Failure.of(errors.HostLostError("gpu-1", "Host 'gpu-1' was restarted.")))
    assert Outcome.from_dict(outcome.to_dict()) == outcome


@pytest.mark.parametrize(
    "error",
    [
        errors.RankFailedError(rank=3, host="b", exit_code=-9, traceback="boom"),
        errors.HostUnreachableError("a", "no way"),
        errors.UnplaceableError("never"),
    ],
)
def test_a_failure_becomes_an_exception_of_the_same_class_and_words(error: errors.DtrainError) -> None:
    rebuilt = Failure.of(error).exception()
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)
    assert rebuilt.kind == error.kind


def test_a_failure_cannot_name_a_class_outside_the_tree() -> None:
    forged = Failure(error="annotations", kind="user", message="x").exception()
    assert type(forged) is errors.DtrainError


@pytest.mark.parametrize(
    ("last_line", "error"),
    [
        ("airflow_provider_dtrain.train.errors.OptimizerError: no 'addam'", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.NonFiniteLossError: loss is NaN", errors.RankFailedError),
        ("mine.SetupError: no", errors.RankFailedError),
    ],
)
def test_what_the_library_refused_is_told_from_what_may_pass(last_line: str, error: type) -> None:
    left = RankExit(
        rank=0, host="a", exit_code=1, at=1.0, error={"message": "no", "traceback": f"Traceback\n{last_line}\n"}
    )
    assert type(cause(GangEnd(exits=[left]))) is error
    assert last_line in str(cause(GangEnd(exits=[left])))


def test_values_for_xcom_have_no_nan_and_no_foreign_types() -> None:
    assert plain({"a": float("nan"), "b": [float("inf"), 1.5], 3: {"c": object}}) == {
        "a": None,
        "b": [None, 1.5],
        "3": {"c": str(object)},
    }


def test_terminal_escapes_and_overwritten_progress_do_not_reach_the_task_log() -> None:
    assert clean("10%\r50%\r\x1b[31m100%\x1b[0m\x07 done\r") == "100% done"


def test_lines_are_logged_whole_also_when_they_come_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    log = TaskLog(logging.getLogger("test"), 1000)
    with caplog.at_level(logging.INFO):
        for piece in (b"one\ntw", b"o\nthr", "é".encode()[:1], "é".encode()[1:]):
            log.output(piece)
        log.flush()
    assert [record.getMessage() for record in caplog.records] == ["[rank 0] one", "[rank 0] two", "[rank 0] thré"]


@pytest.mark.parametrize(
    ("line", "logged"),
    [
        (b"[rank0]: Traceback (most recent call last):", "Traceback (most recent call last):"),
        (b'[rank0]:   File "train.py", line 1', '  File "train.py", line 1'),
        (b"[rank0]:[W1 ProcessGroup.cpp:1] Warning", "[W1 ProcessGroup.cpp:1] Warning"),
        (b"[rank1]: another rank", "[rank1]: another rank"),
        (b"see [rank0]: there", "see [rank0]: there"),
    ],
)
def test_the_prefix_that_torch_gives_rank_0_is_not_repeated(
    line: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = TaskLog(logging.getLogger("test"), 1000)
    with caplog.at_level(logging.INFO):
        log.output(line + b"\n")
    assert [record.getMessage() for record in caplog.records] == ["[rank 0] " + logged]


def test_a_flood_is_cut_and_the_cut_is_said(caplog: pytest.LogCaptureFixture) -> None:
    log = TaskLog(logging.getLogger("test"), 50)
    with caplog.at_level(logging.INFO):
        log.output(b"0123456789\n" * 10)
        log.flush()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) < 10
    assert "left out" in said[-1]
