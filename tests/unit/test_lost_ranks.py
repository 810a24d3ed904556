"""Errors of gloo, and the place of this rank."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.core.lifecycle.rank_exits import RankExit, first_failure
from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.errors import LostRankError
from airflow_provider_dtrain.train.process import heartbeat
from airflow_provider_dtrain.train.process.heartbeat import BACKWARD, CHECKPOINT, HERE, MESSAGE
from airflow_provider_dtrain.train.process.lost_ranks import error_of
from airflow_provider_dtrain.train.reports import failure

PAIR = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
TIMED_OUT = f"{PAIR}unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
CLOSED = f"{PAIR}pair.cc:553] Connection closed by peer [127.0.0.1]:17797. This is typically caused by a crash"


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.setattr(HERE, "now", BACKWARD)
    monkeypatch.setattr(HERE, "steps", lambda: 7)
    monkeypatch.setattr(HERE, "_failed", (0, heartbeat.START))


def raised(*places, text=TIMED_OUT):
    error = RuntimeError(text)
    with contextlib.suppress(RuntimeError), contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(HERE.at(place))
        raise error
    return error


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        ((), "the gradient exchange"),
        ((MESSAGE,), "an exchange of metrics"),
        ((CHECKPOINT, MESSAGE), "an exchange of metrics"),
        ((MESSAGE, CHECKPOINT), "a checkpoint"),
    ],
)
def test_the_innermost_place_of_the_error_is_named(places, shown):
    found = str(error_of(raised(*places), 3))
    assert found.startswith(
        f"Rank 3 waited for the other ranks in {shown}, after 7 steps, until its time-out (Timed out"
    )


def test_the_place_of_another_error_does_not_count():
    error = raised(MESSAGE)
    kept = raised(CHECKPOINT, text="another one")
    assert error_of(kept, 0) is None
    assert "in the gradient exchange" in str(error_of(error, 0))


@pytest.mark.parametrize(
    "error", [ValueError(TIMED_OUT), RuntimeError("a shape does not fit"), RuntimeError("Timed out waiting for a lock")]
)
def test_other_errors_stay_as_they_are(error):
    assert error_of(error, 0) is None


@pytest.mark.parametrize("text", [TIMED_OUT, CLOSED, CLOSED.replace("closed", "reset")])
def test_a_rank_that_was_left_is_never_the_cause_of_a_failure(text):
    left = error_of(raised(text=text), 0)
    exits = [
        RankExit(rank=0, exit_code=1, host="h", at=1.0, error={"message": f"LostRankError: {left}"}),
        RankExit(rank=1, exit_code=1, host="h", at=2.0, error={"message": "ValueError: of the program"}),
    ]
    assert first_failure(exits).rank == 1


def test_the_record_has_the_error_before_a_lost_rank_when_the_connections_are_closed(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setitem(failure._state, "path", path)
    monkeypatch.setitem(failure._state, "failed", False)
    monkeypatch.setattr(failure, "_latest", [0, ""])
    records = []
    context = SimpleNamespace(rank=0, abandon=lambda: records.append(json.loads(path.read_text())))
    try:
        try:
            {}["label"]
        finally:
            raise RuntimeError(TIMED_OUT)
    except RuntimeError as error:
        with pytest.raises(LostRankError):
            CoreContext.__exit__(context, type(error), error, None)
    assert records[0]["message"].startswith("LostRankError: Rank 0 waited")
    assert "KeyError: 'label'" in records[0]["traceback"]
