"""The events file of a rank."""

from __future__ import annotations

import zlib

import pytest

from airflow_provider_dtrain.core.event_log import EventSource, read_lines
from airflow_provider_dtrain.train.errors import LimitError
from airflow_provider_dtrain.train.reports import events as train_events
from airflow_provider_dtrain.train.reports.events import LINE_LIMIT_BYTES, EventWriter, encode_event
from tests.support.event_lines import lines_of


def test_a_line_is_checksum_blank_json_newline():
    line = encode_event(7, 1.5, "report", {"step": 1})
    body = b'{"seq":7,"at":1.5,"kind":"report","step":1}'
    assert line == b"%08x %s\n" % (zlib.crc32(body), body)


def test_the_control_side_reads_what_a_rank_writes():
    data = encode_event(1, 1.0, "init", {"device": "cpu"}) + encode_event(2, 2.0, "result", {"value": {"ö": [1, None]}})
    found = read_lines(data, EventSource(0, frozenset({0})))
    assert [line.event["seq"] for line in found] == [1, 2]


def test_sequence_numbers_start_at_one_and_grow_by_one(tmp_path):
    writer = EventWriter(tmp_path / "events")
    for kind in ("init", "first_step", "report"):
        writer.write(kind, {})
    assert [(e["seq"], e["kind"]) for e in lines_of(tmp_path / "events")] == [
        (1, "init"), (2, "first_step"), (3, "report"),
    ]  # fmt: skip


def test_a_second_program_of_the_same_run_goes_on_with_the_sequence(tmp_path):
    first = EventWriter(tmp_path / "events")
    first.write("init", {})
    first.close()
    EventWriter(tmp_path / "events").write("init", {})
    assert [event["seq"] for event in lines_of(tmp_path / "events")] == [1, 2]


def test_a_torn_last_line_does_not_spoil_the_next_one(tmp_path):
    path = tmp_path / "events"
    path.write_bytes(encode_event(1, 1.0, "init", {}) + encode_event(2, 1.0, "report", {"step": 1})[:-9])
    EventWriter(path).write("report", {"step": 2})
    assert [(e["seq"], e.get("step")) for e in lines_of(path)] == [(1, None), (2, 2)]


def test_the_events_file_belongs_to_its_user_alone(tmp_path):
    EventWriter(tmp_path / "events").write("init", {})
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o600


def test_without_a_file_events_are_dropped():
    EventWriter(None).write("init", {})


def test_an_event_that_is_too_long_is_refused_with_limit_and_length(tmp_path):
    fits = "x" * (LINE_LIMIT_BYTES - len(encode_event(1, 1.0, "result", {"value": ""})))
    assert len(encode_event(1, 1.0, "result", {"value": fits})) == LINE_LIMIT_BYTES
    with pytest.raises(LimitError, match=r"'result' must have at most 1,048,576 bytes as JSON, got 1,048,577"):
        encode_event(1, 1.0, "result", {"value": fits + "x"})


def test_an_event_that_is_too_deep_is_refused_and_the_deepest_accepted_one_is_read():
    value = 1
    for _ in range(15):
        value = [value]
    (line,) = read_lines(encode_event(1, 1.0, "result", {"value": value, "also": []}), EventSource(0, frozenset({0})))
    assert line.event is not None
    with pytest.raises(LimitError, match="nested at most 15 levels deep"):
        encode_event(1, 1.0, "result", {"value": [value]})


def test_a_refused_event_leaves_the_sequence_and_the_file_as_they_were(tmp_path):
    writer = EventWriter(tmp_path / "events")
    with pytest.raises(LimitError):
        writer.write_all([(1.0, "init", {}), (2.0, "result", {"value": "x" * LINE_LIMIT_BYTES})])
    writer.write("init", {})
    assert [event["seq"] for event in lines_of(tmp_path / "events")] == [1]


def test_a_full_events_file_leaves_out_reports_and_keeps_what_an_end_needs(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(train_events, "FILE_LIMIT_BYTES", 300)
    writer = EventWriter(tmp_path / "events")
    for step in range(50):
        writer.write("report", {"step": step, "metrics": {"loss": 1.0}})
    writer.write("result", {"value": 1})
    kinds = [event["kind"] for event in lines_of(tmp_path / "events")]
    assert 1 < kinds.count("report") < 6
    assert kinds[-1] == "result"
    assert [event["seq"] for event in lines_of(tmp_path / "events")] == list(range(1, len(kinds) + 1))
    assert caplog.text.count("Report less often") == 1
