"""Flame graphs of traces: sums by caller, hostile files, and the trace that PyTorch writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.trace_flames import DEPTH_MOST, NODES_MOST, FlameGraph, FlameTrack, flame_graph
from airflow_provider_dtrain.errors import UserError


def span(name: str, ts: float, dur: float, tid: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, **fields}


def graph(*events: Any) -> FlameGraph:
    return flame_graph([json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()], is_packed=False)


def rows(track: FlameTrack) -> list[tuple[str, str | None, float, float, int]]:
    return [
        (one.name, None if one.parent is None else track.nodes[one.parent].name, one.total_us, one.self_us, one.calls)
        for one in track.nodes
    ]


def test_calls_are_added_up_by_their_callers() -> None:
    found = graph(
        span("step", 0, 100),
        span("forward", 0, 40),
        span("mm", 5, 10),
        span("mm", 20, 10),
        span("backward", 50, 50),
        span("mm", 60, 30),
        span("step", 100, 50),
        span("forward", 100, 50),
    )
    (track,) = found.tracks
    assert rows(track) == [
        ("step", None, 150, 10, 2),
        ("forward", "step", 90, 70, 2),
        ("mm", "forward", 20, 20, 2),
        ("backward", "step", 50, 20, 1),
        ("mm", "backward", 30, 30, 1),
    ]
    assert (found.span_us, found.events, track.total_us, track.left_out) == (150, 8, 150, 0)


def test_the_numbered_steps_of_the_profiler_are_one_name() -> None:
    (track,) = graph(span("ProfilerStep#7", 0, 5), span("ProfilerStep#8", 5, 5), span("x#8", 10, 1)).tracks
    assert {one.name: one.calls for one in track.nodes} == {"ProfilerStep": 2, "x#8": 1}


def test_threads_come_before_streams_of_gpus() -> None:
    found = graph(
        span("k", 0, 500, tid=7, pid=0, cat="kernel"), span("a", 0, 10, tid=1), span("b", 0, 20, tid="thread <2>")
    )
    assert [(one.name, one.is_gpu) for one in found.tracks] == [
        ("process 7, thread thread <2>", False),
        ("process 7, thread 1", False),
        ("GPU 0, stream 7", True),
    ]


def test_an_event_that_outlasts_its_caller_is_cut() -> None:
    (track,) = graph(span("a", 0, 10), span("b", 5, 10), span("c", 12, 1)).tracks
    assert rows(track) == [("a", None, 10, 5, 1), ("b", "a", 5, 5, 1), ("c", None, 1, 1, 1)]


def test_short_and_many_names_are_left_out_and_counted() -> None:
    (track,) = graph(
        span("long", 0, 1e6), span("short", 1, 1), *(span(f"n{n}", 2e6 + n, 1) for n in range(5000))
    ).tracks
    assert [one.name for one in track.nodes] == ["long"]
    assert track.left_out == 5001
    (track,) = graph(*(span(f"n{n}", 10 * n, 10) for n in range(1990))).tracks
    assert (len(track.nodes) <= NODES_MOST, len(track.nodes) + track.left_out) == (True, 1990)


def test_a_deep_stack_ends_at_a_limit() -> None:
    (track,) = graph(*(span(f"f{n}", n, 2000 - 2 * n) for n in range(900))).tracks
    assert len(track.nodes) == DEPTH_MOST


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"traceEvents": 1}',
        b'{"traceEvents": [1]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"traceEvents":[{"ts":"x"}]}',
    ],
)
def test_a_file_that_is_no_trace_is_an_error_of_the_user(content: bytes) -> None:
    with pytest.raises(UserError):
        flame_graph([content], is_packed=False)


def test_values_that_no_profiler_writes_break_nothing() -> None:
    odd = [
        span("a", -1e30, 1),
        span("b", 0, -5),
        {"ph": "X"},
        {"ph": "M", "name": "process_name"},
        span("x" * 9000, 0, 1),
    ]
    found = graph(*odd)
    assert "x" * 300 in {one.name for track in found.tracks for one in track.nodes}


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b"{}" * 5000)[:-12]], ids=["empty", "other", "cut"])
def test_an_archive_that_is_damaged_is_refused(content: bytes) -> None:
    with pytest.raises(UserError, match="unpacked"):
        flame_graph([content], is_packed=True)


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.core.trace_flames.TRACE_BYTES", 4 << 20)
    with pytest.raises(UserError, match="Download it"):
        flame_graph([gzip.compress(bytes(64 << 20))], is_packed=True)


@pytest.mark.torch
def test_the_trace_that_pytorch_writes_has_the_functions_of_the_program(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import profile, record_function

    with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with record_function("my step"):
                torch.ones(64, 64) @ torch.ones(64, 64)
    path = tmp_path / "rank0.pt.trace.json.gz"
    profiler.export_chrome_trace(str(path))
    found = flame_graph([path.read_bytes()], is_packed=True)
    nodes = [(track, one) for track in found.tracks for one in track.nodes]
    (track, step) = next((track, one) for track, one in nodes if one.name == "my step")
    assert (step.calls, step.parent) == (3, None)
    product = next(one for one in track.nodes if one.name == "aten::matmul")
    assert (product.calls, track.nodes[product.parent or 0].name) == (3, "my step")
    assert product.total_us <= step.total_us
