"""Questions at rungs, and valid answers. No torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.train.durations import Position
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.search.rungs import FILE, RungQuestions
from airflow_provider_dtrain.train.search.stop_criteria import Goal
from tests.support.event_lines import lines_of


def rungs(folder: Path, units: Any = (1, 1, 4), *, timeout_s: float = 0.0) -> RungQuestions:
    return RungQuestions(units, EventWriter(folder / "events"), folder, timeout_s=timeout_s)


def asked(folder: Path) -> list[tuple[int, int]]:
    return [(event["rung"], event["units"]) for event in lines_of(folder / "events")]


def test_each_rung_is_asked_about_once_and_only_the_highest_that_was_reached(tmp_path: Path) -> None:
    it = rungs(tmp_path, (2, 4, 8))
    for units in (1, 2, 3, 9, 9, 4):
        it.reach(units, 0.5, units)
    assert asked(tmp_path) == [(0, 2), (2, 9)]


def test_rungs_of_one_length_are_one_question(tmp_path: Path) -> None:
    rungs(tmp_path).reach(1, 0.5, 1)
    assert asked(tmp_path) == [(1, 1)]


def test_the_question_is_on_the_disk_before_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    rungs(tmp_path).reach(1, 0.5, 1)
    assert synced == [(tmp_path / "events").stat().st_size]


def test_off_cluster_nobody_is_asked(tmp_path: Path) -> None:
    it = RungQuestions((1, 2), EventWriter(tmp_path / "events"), None)
    it.reach(2, 0.5, 2)
    assert it.units == ()
    assert not it.poll()
    assert asked(tmp_path) == []


@pytest.mark.parametrize(("answers", "ended", "is_answered"), [
    ({"1": "continue"}, False, True), ({"1": "stop"}, True, True), ({"0": "stop"}, True, True),
    ({"1": "complete"}, True, True), ({"0": "continue"}, False, False), ({"2": "stop"}, False, False),
    ({"1": "dance"}, False, False), ({}, False, False), (["stop"], False, False), ("stop", False, False),
])  # fmt: skip
def test_an_answer_is_one_to_this_question_or_an_end_below_it(
    tmp_path: Path, answers: Any, ended: bool, is_answered: bool
) -> None:
    it = rungs(tmp_path, (1, 2, 4))
    (tmp_path / FILE).write_text(json.dumps(answers))
    it.reach(2, 0.5, 2)
    assert it.poll() == ended
    (tmp_path / FILE).write_text('{"1":"stop"}')
    assert it.poll() == (ended or not is_answered), "a rank with an answer does not poll again"


@pytest.mark.parametrize(("searcher", "units"), [
    ({"max_length": {"batches": 100}}, 30), ({"max_length": {"records": 100}}, 240), ({"max_length": {"epochs": 9}}, 3),
    ({"max_time": 100, "time_metric": "records"}, 240), ({"max_time": 100, "time_metric": "tokens"}, 7), ({}, 30),
])  # fmt: skip
def test_lengths_are_counted_as_the_searcher_counts_them(searcher: dict[str, Any], units: int) -> None:
    position = Position(batches=30, records=240, epoch=3)
    assert Goal(searcher).units(position, {"tokens": 7.9}) == units


def test_a_time_metric_that_is_not_finite_reaches_no_rung() -> None:
    assert Goal({"max_time": 100, "time_metric": "tokens"}).units(Position(), {"tokens": None}) == 0


def test_an_epoch_is_what_records_per_epoch_says() -> None:
    goal = Goal({"max_length": {"epochs": 9}})
    assert goal.units(Position(records=240, epoch=3), {}, 100) == 2


def test_a_loop_that_does_not_count_epochs_is_refused_where_the_searcher_counts_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goal = Goal({"max_length": {"epochs": 9}})
    with pytest.raises(SetupError, match=r"searcher.max_length counts epochs.*report_validation\(.*epoch=3\)"):
        goal.check_epochs(is_asked=True)
    for _ in range(2):
        goal.check_epochs(is_asked=False)
    assert caplog.text.count("the number of finished epochs is unknown") == 1
    for other in (Goal({"max_length": {"batches": 9}}), Goal({"max_time": 9, "time_metric": "tokens"}), Goal({})):
        other.check_epochs(is_asked=True)
    goal.counts = False
    goal.check_epochs(is_asked=True)


@pytest.mark.parametrize("value", ["abc", [1, "2"], [True], {"1": 2}])
def test_rungs_that_are_no_numbers_are_refused_by_name(tmp_path: Path, value: Any) -> None:
    (tmp_path / "context.json").write_text(json.dumps({"rungs": value}))
    with pytest.raises(SetupError, match="rungs of DTRAIN_CONTEXT"):
        RankEnvironment.read({"DTRAIN_CONTEXT": str(tmp_path / "context.json")})
