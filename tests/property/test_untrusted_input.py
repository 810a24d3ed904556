"""Arbitrary bytes and arbitrary JSON to every parser of what a host sends: only the typed refusals come out."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.event_log import _FIELDS, EventSource, read_lines
from airflow_provider_dtrain.core.quotas import Quota, QuotaLimits, Usage
from airflow_provider_dtrain.engine.attempt.event_intake import read
from airflow_provider_dtrain.engine.attempt.gang import GangEnd
from airflow_provider_dtrain.errors import HostError
from airflow_provider_dtrain.hosts.channel.answers import _ANSWERS, check_answer
from airflow_provider_dtrain.hosts.channel.archive_reader import unpack_plain
from airflow_provider_dtrain.hosts.channel.errors import refusal
from airflow_provider_dtrain.hosts.channel.transfer import _reason, tar_start
from airflow_provider_dtrain.hosts.channel.window import FlowWindow
from airflow_provider_dtrain.hosts.transport.base import Completed
from airflow_provider_dtrain.hosts.wire import (
    Frame,
    FrameReader,
    GreetingRefusedError,
    Hello,
    ProgressFrame,
    WireError,
    find_hello,
    parse_line,
)
from tests.support.budgets import budget

QUICK = settings(max_examples=budget(60), deadline=None, suppress_health_check=list(HealthCheck))
RANK, SUPERVISOR = EventSource(0, frozenset({0, 1})), EventSource(None, frozenset({0, 1}))

#: Arbitrary texts, and texts that parsers may fail on.
TEXTS = st.sampled_from(["\ud800", "\x00", "\x1b[31m", "\u202e", "..", "a://b", "x" * 5000]) | st.text(max_size=20)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**30, 2**63, -1, 1e308, True, False])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | NUMBERS | TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)
#: Fragments of JSON that no library would write.
ODD = st.sampled_from(
    [b"[" * 50_000, b'{"a":' * 20_000, b"1e999999", b"9" * 50_000, b"NaN", b'"\\ud800"', b"\xff\xfe[1]", b'{"a":1', b""]
)


def document_of(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names) | TEXTS, VALUES, max_size=8)


def event_line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


KINDS = sorted([*_FIELDS, "gap", "custom"])
FIELDS = sorted({name for fields in _FIELDS.values() for name in fields})
EVENTS = st.builds(
    lambda more, kind, seq, at: {**more, "kind": kind, "seq": seq, "at": at},
    document_of(FIELDS), st.sampled_from(KINDS) | VALUES, st.just(1) | VALUES, st.just(5.0) | VALUES,
)  # fmt: skip
LINES = st.one_of(
    EVENTS.map(as_json).map(event_line), ODD.map(event_line), st.binary(max_size=60), st.just(b"\n"),
)  # fmt: skip
FILES = st.lists(LINES, max_size=6).map(b"".join)


@QUICK
@given(FILES)
def test_events_files(data: bytes) -> None:
    for source in (RANK, SUPERVISOR):
        lines = list(read_lines(data, source))
        assert sum(line.size for line in lines) == len(data)
        end = GangEnd()
        for line in lines:
            if line.event is not None:
                json.dumps(line.event, allow_nan=False).encode()
                end.note("h", {"rank": 0, **line.event}, 0.0)
        assert source.rank is None or not (end.ended or end.exits)


@QUICK
@given(FILES, st.integers(0, 5))
def test_frames_of_events_become_events_and_gaps_that_cover_them(data: bytes, limit: int) -> None:
    quota = Quota(QuotaLimits(events=limit, checkpoints=1, metric_rows=2, metric_names=2), Usage())
    frame = Frame(t="data", run="r", stream="rank0.events", offset=7, data=data)
    batch = read(frame, RANK, quota).batch
    for one in batch:
        json.dumps(one, allow_nan=False).encode()
    gaps = [one for one in batch if one["kind"] == "gap"]
    assert all(one["offset"] >= 7 and one["offset"] + one["bytes"] <= frame.end for one in gaps)


WIRE_NAMES = [
    "t", "re", "ok", "run", "stream", "offset", "bytes", "epoch", "skip_bytes", "reason", "boottime_s", "runs", "ranks",
    "rank", "state", "supervisor_stopped_s", "protocol", "machine_id", "boot_id", "pid_ns", "uid", "python",
    "executable", "state_dir", "hostname", "wall_s", "stores", "pid1_start_time", "error", "code", "message",
]  # fmt: skip
WIRE = document_of(WIRE_NAMES)
HELLO = {
    "protocol": 1, "machine_id": "m", "boot_id": "b", "pid_ns": 1, "uid": 0, "python": "3", "executable": "x",
    "state_dir": "/s", "boottime_s": 1.0, "hostname": "h",
}  # fmt: skip


@QUICK
@given(st.lists(WIRE.map(as_json) | ODD | st.binary(max_size=60), max_size=5), st.integers(1, 50))
def test_frames(lines: list[bytes], piece: int) -> None:
    reader, window, data = FrameReader(), FlowWindow(), b"\n".join([*lines, b""])
    try:
        for start in range(0, len(data), max(piece, len(data) // 50)):
            for document, raw in reader.feed(data[start : start + max(piece, len(data) // 50)]):
                window.take(Frame.parse({"t": "data", **document}, raw))
    except WireError as error:
        str(error).encode()


@pytest.mark.parametrize("good", [{}, HELLO])
@QUICK
@given(more=WIRE)
def test_greetings(good: dict[str, Any], more: dict[str, Any]) -> None:
    try:
        Hello.parse(as_json({**good, **more}))
    except (WireError, GreetingRefusedError) as error:
        str(error).encode()


@QUICK
@given(st.binary(max_size=50) | ODD, ODD | WIRE.map(as_json))
def test_greetings_behind_noise(noise: bytes, body: bytes) -> None:
    try:
        find_hello(noise + b"DTRAIN/1 " + body + b"\n")
    except (WireError, GreetingRefusedError) as error:
        str(error).encode()


@QUICK
@given(WIRE, st.lists(WIRE | VALUES, max_size=3))
def test_progress_reports(document: dict[str, Any], ranks: list[Any]) -> None:
    for one in ({}, {"run": "r", "boottime_s": 1.0, "ranks": ranks}):
        try:
            line = parse_line(as_json({**document, **one}))
            ProgressFrame.parse(line, "h")
        except WireError as error:
            str(error).encode()


@pytest.mark.parametrize("cmd", sorted(_ANSWERS))
@settings(QUICK, max_examples=budget(25))
@given(data=st.data())
def test_answers(cmd: str, data: st.DataObject) -> None:
    names = sorted(_ANSWERS[cmd].__annotations__)
    try:
        answer = parse_line(as_json(data.draw(document_of([*names, "code", "message"]))))
        assert isinstance(refusal("h", cmd, answer), HostError)
        check_answer(cmd, answer)
    except WireError as error:
        str(error).encode()


@QUICK
@given(st.binary(max_size=200) | ODD, st.binary(max_size=50) | WIRE.map(as_json))
def test_the_reason_of_a_failed_command(output: bytes, errors: bytes) -> None:
    reason = _reason(Completed(exit_code=1, stdout=output, stderr=errors))
    assert isinstance(refusal("h", "fetch", reason), HostError)
    tar_start(output)


def archive(members: list[tuple[str, bytes, bytes, int]]) -> bytes:
    """Return an archive with arbitrary headers."""
    target = io.BytesIO()
    for name, kind, content, size in members:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size if size >= 0 else len(content), name
        target.write(info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")[-512:])
        target.write(content.ljust(-(-len(content) // 512) * 512, b"\0"))
    return target.getvalue() + bytes(1024)


NAMES = st.sampled_from(["a", "a/b", "../x", "/etc/x", "a/../../x", "", ".", "x" * 90]) | st.text("ab/.", max_size=12)
MEMBERS = st.tuples(
    NAMES, st.sampled_from([bytes([c]) for c in b"01234567LKxgSXVMN\0"]), st.binary(max_size=600),
    st.sampled_from([-1, -1, 0, 1, 513, 1 << 30, (1 << 33) - 1]),
)  # fmt: skip


@QUICK
@given(st.lists(MEMBERS, max_size=5).map(archive) | st.binary(max_size=2000))
def test_archives(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "inside"
        inside.mkdir()
        try:
            unpack_plain(io.BytesIO(data), inside, limit_bytes=10_000, limit_files=5)
        except (tarfile.TarError, OSError) as error:
            str(error).encode("utf-8", "surrogateescape")
        assert [path.name for path in Path(folder).iterdir()] == ["inside"]


WORST: list[tuple[str, bytes]] = [
    ("lists", b"[" + b"[]," * 340_000 + b"[]]"), ("objects", b"[" + b"{}," * 340_000 + b"{}]"),
    ("deep", b"[" * (1 << 20)), ("numbers", b"[" + b"1.5," * 250_000 + b"1]"),
    ("keys", b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b"}"),
]  # fmt: skip


@pytest.mark.nightly("line-lists-body0", "line-objects-body1")
@pytest.mark.parametrize(("name", "body"), WORST)
@pytest.mark.parametrize("parser", ["event", "line"])
def test_the_worst_mebibyte_stays_within_bounded_memory(name: str, body: bytes, parser: str) -> None:
    parse: Callable[[], Any] = {
        "event": lambda: list(read_lines(event_line(b'{"seq":1,"at":1,"kind":"x","v":' + body + b"}"), RANK)),
        "line": lambda: _refused(lambda: parse_line(b'{"v":' + body + b"}")),
    }[parser]
    tracemalloc.start()
    try:
        parse()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 96 << 20, f"{peak >> 20} MiB"


def _refused(parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except WireError:
        return None
