"""The events file of a rank."""

from __future__ import annotations

import json
import zlib

from airflow_provider_dtrain.train.events import EventWriter, encode_event


def lines_of(path):
    """Return the events of the lines whose checksum fits."""
    events = []
    for line in path.read_bytes().splitlines():
        checksum, _, body = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(body):
            events.append(json.loads(body))
    return events


def test_a_line_is_checksum_blank_json_newline():
    line = encode_event(7, 1.5, "report", {"step": 1})
    body = b'{"seq":7,"at":1.5,"kind":"report","step":1}'
    assert line == b"%08x %s\n" % (zlib.crc32(body), body)


def test_the_control_side_reads_what_a_rank_writes():
    from airflow_provider_dtrain.core.events import parse_events

    data = encode_event(1, 1.0, "init", {"device": "cpu"}) + encode_event(2, 2.0, "result", {"value": {"ö": [1, None]}})
    assert [event["seq"] for event in parse_events(data)] == [1, 2]


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
