"""The metrics file of a program without the training library: its lines become events, bad ones are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.event_log import EventSource, read_lines
from airflow_provider_dtrain.supervisor.files.layout import Layout
from airflow_provider_dtrain.supervisor.run import metrics_file
from airflow_provider_dtrain.supervisor.run.metrics_file import MetricsFile

SEARCH = {"searcher": {"metric": "loss", "max_length": {"epochs": 8}}}


class World:
    """The folder of rank 0, its metrics file and their reader."""

    def __init__(self, root: Path, **context: Any) -> None:
        folder = Layout(str(root / "remote"), str(root / "state"), str(root / "locks")).run("t1.1.7")
        self.rank = Path(folder.file("rank0"))
        self.rank.mkdir(parents=True)
        self.run = self.rank.parent
        self.reader = MetricsFile(folder, str(self.rank), {"config": {}, "hparams": {}, "rungs": [], **context})

    def write(self, *lines: Any, end: str = "\n") -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        with open(self.rank / "metrics.jsonl", "a") as file:
            file.write("\n".join(texts) + end)

    def events(self) -> list[dict[str, Any]]:
        """Return the events as the control side reads them. It accepts all of them."""
        path = self.rank / "events"
        lines = list(read_lines(path.read_bytes() if path.exists() else b"", EventSource(0, frozenset({0}))))
        assert [line.reason for line in lines if line.event is None] == []
        return [line.event for line in lines if line.event is not None]

    def log(self) -> str:
        path = self.rank / "log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_training_and_validation_become_events_of_the_library(world: World) -> None:
    world.write({"step": 1, "metrics": {"loss": 0.5}, "epoch": 0}, {"step": 2, "validation": {"loss": 0.25, "n": 3}})
    world.reader.check()
    found = [(event["kind"], event["step"], event["metrics"], event["seq"]) for event in world.events()]
    assert found == [("report", 1, {"loss": 0.5}, 1), ("validation", 2, {"loss": 0.25, "n": 3}, 2)]
    world.reader.check()
    assert len(world.events()) == 2
    assert world.log() == ""


def test_lines_of_both_kinds_may_name_the_epoch(world: World) -> None:
    world.write({"step": 1, "metrics": {"a": 1}, "epoch": 0.5}, {"step": 2, "validation": {"a": 1}, "epoch": 1})
    for wrong in ("two", True, -1, None, [1]):
        world.write({"step": 3, "metrics": {"a": 1}, "epoch": wrong})
    world.write('{"step": 3, "metrics": {"a": 1}, "epoch": NaN}', '{"step": 3, "metrics": {"a": 1}, "epoch": 1e999}')
    world.reader.check()
    assert [event.get("epoch") for event in world.events()] == [0.5, 1, *[None] * 7]


def test_a_line_is_read_once_it_is_whole_and_the_last_one_at_the_end(world: World) -> None:
    world.write('{"step": 1, "metr', end="")
    world.reader.check()
    assert world.events() == []
    world.write('ics": {"a": 1}}', {"step": 2, "metrics": {"a": 2}}, end="")
    world.reader.check()
    assert [event["step"] for event in world.events()] == [1]
    world.reader.check(final=True)
    assert [event["step"] for event in world.events()] == [1, 2]


def test_values_that_json_lacks_are_recorded_as_null(world: World) -> None:
    world.write('{"step": 1, "metrics": {"a": NaN, "b": -Infinity, "c": 1e999, "d": null, "e": ' + "9" * 400 + "}}")
    world.reader.check()
    assert world.events()[0]["metrics"] == dict.fromkeys("abcde")


BAD = [
    ("no json", "it must be JSON"),
    ("[" * 20_000, "it must be JSON"),
    ("[1]", 'it must be an object with "step"'),
    ({"step": 1}, 'either "metrics" or "validation"'),
    ({"step": 1, "metrics": {"a": 1}, "validation": {"a": 1}}, 'either "metrics" or "validation"'),
    ({"step": -1, "metrics": {"a": 1}}, '"step" must be a whole number'),
    ({"step": True, "metrics": {"a": 1}}, '"step" must be a whole number'),
    ({"step": 1 << 60, "metrics": {"a": 1}}, '"step" must be a whole number'),
    ({"step": 1, "metrics": []}, '"metrics" must be an object'),
    ({"step": 1, "metrics": {}}, '"metrics" must be an object'),
    ({"step": 1, "validation": {str(i): 1 for i in range(1001)}}, "1 to 1,000 names"),
    ({"step": 1, "metrics": {"a\nb": 1}}, "printable characters"),
    ({"step": 1, "metrics": {"a" * 257: 1}}, "printable characters"),
    ({"step": 1, "metrics": {"a": "1"}}, "'a' must be a number"),
    ({"step": 1, "metrics": {"a": True}}, "'a' must be a number"),
    ({"step": 1, "metrics": {"a": 1}, "more": "x" * 70_000}, "a line may have at most 65,536 bytes"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named_in_the_log_and_the_next_one_counts(world: World, line: Any, words: str) -> None:
    world.write({"step": 1, "metrics": {"a": 1}}, line, {"step": 3, "metrics": {"a": 1}})
    world.reader.check()
    assert [event["step"] for event in world.events()] == [1, 3]
    assert f"dtrain: DTRAIN_METRICS: Line 2 is ignored: {words}" in world.log() or words in world.log()
    assert world.log().count("\n") == 1


def test_the_number_of_named_lines_and_of_read_bytes_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write(*["bad"] * 1000)
    world.reader.check()
    assert world.log().count("is ignored") == metrics_file.NAMED_LIMIT
    assert "Further lines like this are not named." in world.log()
    monkeypatch.setattr(metrics_file, "READ_IN_ALL", 5000)
    monkeypatch.setattr(metrics_file, "READ_AT_ONCE", 1000)
    world.write(*[{"step": step, "metrics": {"a": 1}} for step in range(1000)])
    world.reader.check(final=True)
    assert 0 < len(world.events()) < 100
    assert world.log().count("The rest is not read") == 1


def test_an_endless_line_costs_no_memory_and_is_named_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_file, "READ_AT_ONCE", 100_000)
    world.write("x" * 1_000_000, {"step": 2, "metrics": {"a": 1}})
    world.reader.check(final=True)
    assert [event["step"] for event in world.events()] == [2]
    assert world.log().count("a line may have at most") == 1


def test_the_file_of_a_program_that_uses_the_library_is_not_read(world: World) -> None:
    (world.rank / "events").write_bytes(b"")
    world.write({"step": 1, "metrics": {"a": 1}})
    world.reader.check()
    world.reader.check(final=True)
    assert (world.rank / "events").read_bytes() == b""
    assert world.log().count("Call ctx.report instead") == 1


def test_a_link_is_not_followed(world: World, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"step": 1, "metrics": {"a": 1}}\n')
    (world.rank / "metrics.jsonl").symlink_to(tmp_path / "secret")
    world.reader.check(final=True)
    assert world.events() == []


@pytest.mark.parametrize(
    ("searcher", "line", "units"),
    [
        ({"max_length": {"epochs": 8}}, {"epoch": 4}, 4),
        ({"max_length": {"epochs": 8}}, {"epoch": 3.9999999}, 4),
        ({"max_length": {"batches": 8}}, {}, 5),
        ({"max_length": {"records": 8}}, {"records": 6}, 6),
        ({"max_length": {"records": 800}}, {}, 50),
        ({"max_time": 9, "time_metric": "minutes"}, {}, 7),
        ({"max_time": 9, "time_metric": "epochs"}, {"epoch": 3}, 3),
    ],
)
def test_a_validation_asks_the_searcher_in_the_unit_of_the_search(
    tmp_path: Path, searcher: dict[str, Any], line: dict[str, Any], units: int
) -> None:
    config = {"searcher": {"metric": "loss", **searcher}}
    world = World(tmp_path, config=config, rungs=[4, 2], hparams={"global_batch_size": 10})
    world.write({"step": 5, "validation": {"loss": 0.5, "minutes": 7.9}, **line})
    world.reader.check()
    asked = [event for event in world.events() if event["kind"] == "rung"]
    assert [(one["rung"], one["units"], one["metric"], one["step"]) for one in asked] == [
        (0 if units < 4 else 1, units, 0.5, 5)
    ]


def test_each_rung_is_asked_about_once_and_a_validation_that_cannot_take_part_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, config=SEARCH, rungs=[2, 4])
    for epoch in (1, 2, 3, 4, 5):
        world.write({"step": 10 * epoch, "validation": {"loss": 1.0}, "epoch": epoch})
    world.write({"step": 60, "validation": {"loss": 1.0}}, {"step": 70, "validation": {"error": 1.0}, "epoch": 7})
    world.reader.check()
    assert [event["units"] for event in world.events() if event["kind"] == "rung"] == [2, 4]
    assert len([event for event in world.events() if event["kind"] == "validation"]) == 7
    assert 'Line 6 takes no part in the search: the search counts epochs, so a validation needs "epoch"' in world.log()
    assert "Line 7 takes no part in the search: a validation needs the metric 'loss'" in world.log()


def test_only_a_stop_at_a_rung_that_was_asked_about_ends_the_program(tmp_path: Path) -> None:
    world = World(tmp_path, config=SEARCH, rungs=[2, 4])
    (world.run / "decisions.json").write_text('{"0": "stop"}')
    assert not world.reader.is_stopped()
    world.write({"step": 2, "validation": {"loss": 1.0}, "epoch": 2})
    world.reader.check()
    assert world.reader.is_stopped()
    for told in ('{"0": "continue", "1": "stop"}', '{"0": "complete"}', "[", "{}"):
        (world.run / "decisions.json").write_text(told)
        assert not world.reader.is_stopped()


@pytest.mark.parametrize("context", [{}, {"config": None}, {"config": {"searcher": []}, "rungs": "x", "hparams": 3}])
def test_a_context_without_a_search_asks_nothing(tmp_path: Path, context: dict[str, Any]) -> None:
    world = World(tmp_path, **context)
    world.write({"step": 2, "validation": {"loss": 1.0}})
    world.reader.check()
    assert [event["kind"] for event in world.events()] == ["validation"]
