"""Events files: every line becomes an event or a refusal with its place and reason."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import pytest

from airflow_provider_dtrain.core.event_log import (
    LINE_LIMIT_BYTES,
    METRICS_LIMIT,
    EventSource,
    read_lines,
)
from airflow_provider_dtrain.supervisor.limits import WINDOW
from airflow_provider_dtrain.train.reports import events as written

RANK0 = EventSource(0, frozenset({0, 1}))
SUPERVISOR = EventSource(None, frozenset({0, 1}))


def line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def event(kind: str = "custom", **fields: Any) -> bytes:
    return line(json.dumps({"seq": 1, "at": 2.0, "kind": kind, **fields}).encode())


def refusal(data: bytes, source: EventSource = RANK0) -> str:
    """Return why the only line was refused."""
    (found,) = read_lines(data, source)
    assert found.event is None
    assert (found.start, found.size) == (0, len(data))
    return f"{found.code}: {found.reason}"


def test_whole_lines_come_back_in_order() -> None:
    found = list(read_lines(event(step=1) + event(seq=2, step=2), RANK0))
    assert [one.event and one.event["step"] for one in found] == [1, 2]


def test_nothing_is_no_event() -> None:
    assert list(read_lines(b"", RANK0)) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (event()[:-1], "unfinished"),
        (b"00000000 {}\n", "corrupt: checksum"),
        (b"\n", "corrupt: checksum"),
        (b"\xff\xfe\x00\n", "corrupt: checksum"),
        (line(b"{nonsense"), "invalid: not valid JSON"),
        (line(b"[1]"), "invalid: not a JSON object"),
        (line(b"\xff{}"), "invalid: not valid JSON"),
        (line(b"[" * 100_000), "nested 100,000 levels"),
        (line(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "nested 50,000 levels"),
        (line(b'{"seq":1,"at":1,"kind":"x","deep":' + b"[" * 20 + b"]" * 20 + b"}"), "nested 21 levels"),
        (line(b'{"seq":1,"at":1,"kind":"x","many":[' + b"1," * 400_000 + b"1]}"), "400,00. values"),
        (line(b'{"seq":1,"at":1,"kind":"x","n":1e999999}'), "beyond the range of a float"),
        (line(b'{"seq":1,"at":1,"kind":"x","n":' + b"9" * 100_000 + b"}"), "integer of 100,000 digits"),
        (line(b'{"seq":1,"at":1,"kind":"x","n":NaN}'), "NaN is not a JSON number"),
        (line(b'{"seq":1,"at":1,"kind":"x","n":-Infinity}'), "-Infinity is not a JSON number"),
        (line(b'{"seq":"1","at":1,"kind":"x"}'), "valid seq or at"),
        (line(b'{"seq":-1,"at":1,"kind":"x"}'), "valid seq or at"),
        (line(b'{"seq":true,"at":1,"kind":"x"}'), "valid seq or at"),
        (line(b'{"seq":1,"kind":"x"}'), "valid seq or at"),
        (line(b'{"seq":1,"at":1e18,"kind":"x"}'), "valid seq or at"),
        (line(b'{"seq":1,"at":1}'), "valid kind"),
        (line(b'{"seq":1,"at":1,"kind":"\\u001b[31m"}'), "valid kind"),
        (event("x" * LINE_LIMIT_BYTES), "bytes; at most 1,048,576 are accepted"),
    ],
)
def test_anything_else_is_refused_with_its_place(data: bytes, words: str) -> None:
    assert re.search(words, refusal(data)), refusal(data)


def test_a_refused_line_leaves_the_lines_around_it_as_they_are() -> None:
    found = list(read_lines(event(step=1) + b"garbage\n" + event(step=3), RANK0))
    assert [one.event and one.event["step"] for one in found] == [1, None, 3]
    assert found[1].start == len(event(step=1))


GOOD: dict[str, dict[str, Any]] = {
    "report": {"step": 1, "metrics": {"loss": 0.5, "nan": None}, "epoch": 0.5},
    "validation": {"step": 1, "metrics": {"loss": 1}},
    "builtin": {"step": 1, "metrics": {"gradient_norm": 1, "gradient_norm_8": None}, "epoch": None},
    "checkpoint": {
        "step": 1, "path": "c", "size_bytes": 5, "sha256": "a" * 64, "metrics": {"loss": 1.0}, "removed": ["b"],
    },
    "rung": {"rung": 0, "units": 5, "metric": None, "step": 3},
    "weights": {"step": 3, "digest": "ab" * 32, "tensors": "01234567" * 2, "names": ["0.weight", "0.bias"]},
    "step_weights": {"step": 3, "digest": "ab" * 32, "tensors": "01234567" * 256, "names": None},
    "result": {"value": [1, {"a": None}]},
    "returned": {"json": "[1]", "part": 0, "parts": 1},
    "stopped": {"step": None},
    "invalid_hp": {"reason": "too large"},
    "init": {
        "device": "cpu", "backend": None, "torch": "2.13", "python": "3.12.1", "executable": "/usr/bin/python3",
        "cuda": "12.8", "cudnn": "9.10.2", "nccl": "2.27.3",
    },
    "timings": {"batches": 5, "names": {"train_batch": {"count": 1}}},
    "shards": {
        "total": 9, "missing": 4, "rows": None, "rows_done": 50, "location": "s3://b/o", "batch_size": 64,
        "resumed": True, "finished": "0-3,7",
    },
    "shard_started": {"shard": 3, "label": "part-3.parquet rows 0-9", "tries": 1},
    "shard_done": {
        "shard": 3, "rows": 10, "rows_bad": 1, "bad_rows": [[7, "a.jpg", "no image"]], "bytes": 99, "part": "p",
        "sha256": "a" * 64, "seconds": 0.5,
    },
    "shard_failed": {"shard": 3, "label": "part-3", "error": "poison", "tries": 3, "is_final": True},
    "shard_skipped": {"shard": 3, "label": "part-3", "error": "poison"},
    "manifest": {
        "location": "/out", "rows": 90, "rows_bad": 0, "shards": 9, "bytes": 999, "skipped": [{"shard": 3}],
        "sha256": "a" * 64, "schema": {"label": "int64"},
    },
}  # fmt: skip
OF_SUPERVISOR: dict[str, dict[str, Any]] = {
    "prepared": {"port": 5},
    "started": {"ranks": [{"rank": 0, "pid": 7}]},
    "exit": {"rank": 1, "exit_code": -9, "error": {"message": "m"}, "log_tail": "x", "sent_signal": False},
    "ended": {"reason": "lost", "cause": "reboot", "first_failure": 1},
}
WRONG: list[Any] = ["0", -1, True, 1.5, [1], {"a": []}, [[]], "x" * (1 << 17), {"x" * 300: 1}, 2**63]
#: What is right for a field although it is in WRONG.
ALSO_RIGHT = {"metric": (-1, 1.5, 2**63), "epoch": (-1, 1.5, 2**63), "exit_code": (-1,), "sent_signal": (True,),
              "value": WRONG, "json": ("0", "x" * (1 << 17)), "device": ("0",), "backend": ("0",), "torch": ("0",),
              "python": ("0",), "executable": ("0",), "cuda": ("0",), "cudnn": ("0",), "nccl": ("0",),
              "reason": ("0",), "cause": ("0",), "path": ("0",), "sha256": ("0",), "log_tail": ("0",),
              "metrics": (), "removed": (), "error": ("0",), "location": ("0",), "label": ("0",), "part": ("0",),
              "finished": ("0",),
              "resumed": (True,), "is_final": (True,), "seconds": (-1, 1.5, 2**63), "skipped": ([1], [[]])}  # fmt: skip


@pytest.mark.parametrize(("source", "kinds"), [(RANK0, GOOD), (SUPERVISOR, OF_SUPERVISOR)])
def test_events_of_every_kind_are_read(source: EventSource, kinds: dict[str, dict[str, Any]]) -> None:
    for kind, fields in kinds.items():
        (found,) = read_lines(event(kind, **fields), source)
        assert found.event is not None, (kind, found.reason)


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [(source, kind, name) for source, kinds in ((RANK0, GOOD), (SUPERVISOR, OF_SUPERVISOR))
     for kind, fields in kinds.items() for name in fields],
)  # fmt: skip
def test_a_wrong_type_in_any_field_of_any_kind_is_refused_by_name(source: EventSource, kind: str, name: str) -> None:
    fields = (GOOD | OF_SUPERVISOR)[kind]
    for wrong in WRONG:
        if any(wrong is right or (type(wrong) is type(right) and wrong == right) for right in ALSO_RIGHT.get(name, ())):
            continue
        assert f"an event '{kind}' whose '{name}' is" in refusal(event(kind, **{**fields, name: wrong}), source), wrong


def test_a_rank_writes_no_builtin_metric_of_another_name() -> None:
    assert "whose 'metrics' is of type dict" in refusal(event("builtin", step=1, metrics={"loss": 1.0}))


@pytest.mark.parametrize("kind", ["report", "validation", "builtin", "checkpoint", "rung", "returned"])
def test_a_missing_field_is_refused(kind: str) -> None:
    assert "is missing" in refusal(event(kind))


@pytest.mark.parametrize("kind", [*OF_SUPERVISOR, "gap"])
def test_a_rank_cannot_write_what_only_a_supervisor_or_the_store_writes(kind: str) -> None:
    assert "which rank 0 may not write" in refusal(event(kind, **OF_SUPERVISOR.get(kind, {})))


@pytest.mark.parametrize("kind", [*GOOD, "gap"])
def test_a_supervisor_cannot_write_what_only_ranks_write(kind: str) -> None:
    assert "which a supervisor may not write" in refusal(event(kind, **GOOD.get(kind, {})), SUPERVISOR)


@pytest.mark.parametrize("rank", [2, -1, "0", None, True])
def test_the_exit_of_a_rank_that_the_host_does_not_have_is_refused(rank: Any) -> None:
    assert "whose 'rank' is" in refusal(event("exit", rank=rank, exit_code=0), SUPERVISOR)


def test_a_report_of_too_many_metrics_is_refused() -> None:
    many = {f"m{number}": 1.0 for number in range(METRICS_LIMIT + 1)}
    assert "whose 'metrics' is of type dict" in refusal(event("report", step=1, metrics=many))


def test_a_supervisor_writes_no_kinds_of_its_own() -> None:
    assert "an event 'custom', which a supervisor may not write" in refusal(event(x="y" * 900_000), SUPERVISOR)


@pytest.mark.parametrize("name", ["\x1b[2J", "loss\nFAKE LINE", "\u202eloss"])
def test_the_name_of_a_metric_is_printable(name: str) -> None:
    assert "whose 'metrics' is of type dict" in refusal(event("validation", step=1, metrics={name: 1.0}))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("digest", "ab" * 31), ("digest", "AB" * 32), ("digest", "\u0661" * 64), ("digest", "ab" * 32 + "\n"),
        ("tensors", "0123456"), ("tensors", ""), ("tensors", "01234567" * 257), ("tensors", "0123456\n"),
        ("names", ["\x1b[2J"]), ("names", ["0.weight\nFAKE LINE"]), ("names", ["a" * 257]), ("names", ["a"] * 257),
    ],
)  # fmt: skip
def test_digests_of_weights_have_their_form_and_their_names_are_printable(name: str, wrong: Any) -> None:
    assert f"whose '{name}' is" in refusal(event("weights", **{**GOOD["weights"], name: wrong}))


def test_text_that_no_database_takes_is_replaced() -> None:
    (found,) = read_lines(event(**{"a\x00": ["x\ud800y\x00", {"b": "\udfff"}], "emoji": "😀"}), RANK0)
    assert found.event is not None
    assert found.event["a\ufffd"] == ["x\ufffdy\ufffd", {"b": "\ufffd"}]
    assert found.event["emoji"] == "😀"


def test_hosts_ranks_and_the_control_side_agree_on_the_longest_line() -> None:
    assert LINE_LIMIT_BYTES == WINDOW == written.LINE_LIMIT_BYTES


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("manifest", {"skipped": [0] * 101}),
        ("manifest", {"schema": {f"c{number}": "int64" for number in range(4097)}}),
        ("manifest", {"shards": 10_000_000}),
        ("shard_started", {"shard": 10_000_000}),
        ("shard_started", {"label": "x" * 1025}),
        ("shard_failed", {"error": "x" * 4097}),
        ("shard_done", {"bad_rows": [[7, "a.jpg", "no image"]] * 21}),
        ("shard_done", {"bad_rows": [[7, "a.jpg"]]}),
        ("shard_done", {"bad_rows": [["7", "a.jpg", "no image"]]}),
        ("shard_done", {"bad_rows": [[7, "x" * 1025, "no image"]]}),
    ],
)
def test_events_of_shards_are_bounded(kind: str, more: dict[str, Any]) -> None:
    assert f"an event '{kind}' whose '{next(iter(more))}' is" in refusal(event(kind, **{**GOOD[kind], **more}))
