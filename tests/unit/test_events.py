"""Events files: what a damaged or forged line does."""

from __future__ import annotations

import json
import zlib

import pytest

from airflow_provider_dtrain.core.events import CorruptEventError, parse_events


def line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def event(**fields: object) -> bytes:
    return line(json.dumps({"seq": 1, "at": 2.0, "kind": "report", **fields}).encode())


def test_whole_lines_come_back_in_order() -> None:
    events = parse_events(event(step=1) + event(seq=2, step=2))
    assert [found["step"] for found in events] == [1, 2]


def test_nothing_is_no_event() -> None:
    assert parse_events(b"") == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (event()[:-1], "middle of a line"),
        (b"00000000 {}\n", "checksum"),
        (line(b"{nonsense"), "line 1"),
        (line(b"[1]"), "not an event"),
        (line(b'{"seq":"1","at":1,"kind":"x"}'), "not an event"),
        (line(b'{"seq":1,"at":1,"kind":"x","deep":' + b"[" * 20 + b"]" * 20 + b"}"), "not an event"),
    ],
)
def test_anything_else_is_refused_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(CorruptEventError, match=words):
        parse_events(data)
