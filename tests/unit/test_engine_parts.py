"""The parts of the engine that need neither store nor hosts."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_dtrain import errors
from airflow_provider_dtrain.core.lifecycle.rank_exits import RankExit
from airflow_provider_dtrain.engine.attempt.gang import Gang, GangEnd
from airflow_provider_dtrain.engine.attempt.graceful_stop import GiveWay
from airflow_provider_dtrain.engine.attempt.max_runtime import max_runtime_over
from airflow_provider_dtrain.engine.attempt.outcome import Failure, Outcome
from airflow_provider_dtrain.engine.attempt.teardown import cause
from airflow_provider_dtrain.engine.attempt.xcom_result import plain
from airflow_provider_dtrain.engine.logs.task_log import Housekeeping, TaskLog


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
        ("airflow_provider_dtrain.train.errors.OtherRunError: other code", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.StateError: a lock", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.CheckpointError: no space", errors.RankFailedError),
        ("airflow_provider_dtrain.train.errors.InputError: the input is empty", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.SchemaError: other types", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.FolderInUseError: by run t2.1.4", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.UnusableFolderError: denied", errors.TrainingRefusedError),
        ("airflow_provider_dtrain.train.errors.WeightsError: another model", errors.TrainingRefusedError),
        (
            "airflow_provider_dtrain.train.errors.LeaderFailedError: Rank 0 failed in a call that only rank 0 runs: "
            "InputError: the input is empty",
            errors.TrainingRefusedError,
        ),
        (
            "airflow_provider_dtrain.train.errors.LeaderFailedError: Rank 0 failed in a call that only rank 0 runs: "
            "OSError: InputError: no",
            errors.RankFailedError,
        ),
        ("airflow_provider_dtrain.train.errors.OutputFolderError: no space left", errors.RankFailedError),
        ("airflow_provider_dtrain.train.errors.InputUnavailableError: timed out", errors.RankFailedError),
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


def left(rank: int, code: int = 1, *, at: float = 1.0, message: str = "boom", signal: bool = False) -> RankExit:
    return RankExit(
        rank=rank, host=f"h{rank}", exit_code=code, at=at, error={"message": message, "traceback": message},
        sent_signal=signal,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "error", "kind"),
    [
        ("orphaned", errors.RunEndedError, "platform"),
        ("prepare_timeout", errors.RunEndedError, "platform"),
        ("fenced", errors.RunEndedError, "platform"),
        ("timeout", errors.ExecutionTimeoutError, "user"),
        ("stopped", errors.HostLostError, "infra"),
    ],
)
def test_ranks_that_we_sent_a_signal_have_not_failed(reason: str, error: type, kind: str) -> None:
    found = cause(GangEnd(exits=[left(0, -15, signal=True), left(1, -9, signal=True)], ended={"h0": reason}))
    assert type(found) is error
    assert found.kind == kind


@pytest.mark.parametrize(
    ("end", "gave_way"),
    [
        (GangEnd(), True),
        (GangEnd(exits=[left(0, 0)]), True),
        (GangEnd(exits=[left(0, 0)], ended={"h0": "completed"}), True),
        (GangEnd(exits=[left(0, 0), left(1, -15, signal=True)], ended={"h0": "completed", "h1": "stopped"}), True),
        (GangEnd(exits=[left(0, 0), left(1, 0)]), False),
        (GangEnd(ended={"h0": "completed", "h1": "completed"}), False),
        (GangEnd(ended={"h0": "completed", "h1": "completed"}, left_early=True), True),
    ],
)
def test_ranks_of_which_nothing_is_known_have_not_finished(end: GangEnd, gave_way: bool) -> None:
    view: Any = SimpleNamespace(placement={"h0": [0], "h1": [0]})
    stop = GiveWay(cast("Any", None), Gang(view=view, run_name="r", end=end), timeout_s=10.0)
    assert end.has_finished(view) is (not gave_way or end.left_early)
    assert stop.gave_way() is end.left_early
    stop.reason = "the job ends"
    assert stop.gave_way() is gave_way


def test_a_rank_that_failed_by_itself_is_the_cause_whatever_ended_the_rest() -> None:
    end = GangEnd(exits=[left(0, -15, signal=True), left(1)], ended={"h0": "stopped", "h1": "failed"})
    found = cause(end)
    assert isinstance(found, errors.RankFailedError)
    assert "Rank 1" in str(found)


def test_a_lost_host_is_the_cause_and_not_the_ranks_that_lost_their_peer() -> None:
    lost = errors.HostLostError("h0", "Host 'h0' was restarted.")
    aftermath = left(1, message="RuntimeError: Connection closed by peer [10.0.0.1]:1234")
    assert cause(GangEnd(exits=[aftermath], lost={"h0": lost})) is lost
    failed = left(1, message="ValueError: mine")
    assert isinstance(cause(GangEnd(exits=[failed, aftermath], lost={"h0": lost})), errors.RankFailedError)


def test_a_rank_that_waited_for_rank_0_is_not_the_cause() -> None:
    waited = left(1, at=1.0, message="LeaderFailedError: Rank 0 failed in a call that only rank 0 runs")
    found = cause(GangEnd(exits=[waited, left(0, at=2.0, message="OSError: no space")]))
    assert isinstance(found, errors.RankFailedError)
    assert found.rank == 0


WAITED = "LeaderFailedError: Rank 0 failed in a call that only rank 0 runs: InputError: the input is empty"


def test_rank_0_is_the_cause_also_if_its_supervisor_had_ended_it_after_its_error() -> None:
    refused = left(0, -15, at=3.0, message="InputError: the input is empty", signal=True)
    found = cause(GangEnd(exits=[left(1, at=1.0, message=WAITED), left(2, at=2.0, message=WAITED), refused]))
    assert isinstance(found, errors.RankFailedError)
    assert (found.rank, str(found).splitlines()[0]) == (
        0,
        "Rank 0 on host 'h0' failed first (signal 15 at 00:00:03 UTC): InputError: the input is empty",
    )


def test_a_rank_that_waited_names_the_error_of_rank_0_if_that_one_left_no_record() -> None:
    ended = left(0, -15, at=3.0, message="killed by SIGTERM", signal=True)
    found = cause(GangEnd(exits=[left(1, message=WAITED), ended]))
    assert isinstance(found, errors.RankFailedError)
    assert (found.rank, "InputError: the input is empty" in str(found)) == (1, True)


def test_the_leader_of_a_rank_that_waited_for_its_host_is_on_its_host() -> None:
    words = "LeaderFailedError: Local rank 0 of this host (host 1 of the gang) failed in local_leader_first: OSError: x"

    def on(host: str, rank: int, message: str) -> RankExit:
        return dataclasses.replace(left(rank, message=message, signal=message != words), host=host)

    gang = [on("a", 0, "ValueError: the signal"), on("b", 2, "OSError: x"), on("b", 3, words)]
    assert isinstance(found := cause(GangEnd(exits=gang)), errors.RankFailedError)
    assert (found.rank, found.host) == (2, "b")


def test_the_first_failure_is_by_the_control_sides_clock_also_when_the_events_were_read_back() -> None:
    end = GangEnd()
    exits = {"ahead": (3600.0, 3700.0), "right": (0.0, 101.0)}
    for rank, (host, (offset_s, at)) in enumerate(exits.items()):
        end.note(host, {"kind": "exit", "rank": rank, "exit_code": 1, "at": at, "error": {"message": host}}, offset_s)
    assert isinstance(found := cause(end), errors.RankFailedError)
    assert found.host == "ahead"


def test_what_the_control_side_ended_has_its_reason() -> None:
    over = max_runtime_over(60.0)
    end = GangEnd(exits=[left(0, message="ValueError: interrupted")], over=over)
    assert end.failed
    assert cause(end) is over
    assert "max_runtime (60 s)" in str(over)


def test_values_for_xcom_have_no_nan_and_no_foreign_types() -> None:
    assert plain({"a": float("nan"), "b": [float("inf"), 1.5], 3: {"c": object}}) == {
        "a": None,
        "b": [None, 1.5],
        "3": {"c": str(object)},
    }


def test_work_for_another_trial_is_for_developers_and_has_its_name(caplog: pytest.LogCaptureFixture) -> None:
    log = TaskLog(Housekeeping(logging.getLogger("test"), {"trial_id": 7}), None)
    with caplog.at_level(logging.INFO):
        log.warning("Host '%s' answers", "a")
        log.error("Host '%s' answers", "a")
        log.event("Host '%s' answers", "a", is_warning=True)
        log.flush()
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG):
        log.info("Host '%s' answers", "a")
    assert [record.getMessage() for record in caplog.records] == ["Trial 7: Host 'a' answers"]


def test_one_exit_of_each_rank_is_kept() -> None:
    end = GangEnd()
    for code in (1, *[0] * 1000):
        end.note("h0", {"kind": "exit", "rank": 3, "exit_code": code, "at": 1.0, "log_tail": "x" * 60_000}, 0.0)
    assert [one.exit_code for one in end.exits] == [1]
