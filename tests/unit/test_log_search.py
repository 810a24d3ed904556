"""Lines, levels, times and searches of logs whose bytes may be anything."""

from __future__ import annotations

import re
import struct
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.logs.chunks import cut
from airflow_provider_dtrain.core.logs.clock import offsets_between, samples_of, time_of, within
from airflow_provider_dtrain.core.logs.query import LogQuery, in_span, line_starts, may_match, with_level, with_text
from airflow_provider_dtrain.core.logs.text import LogLevel, count_lines, levels_of, lines_of
from airflow_provider_dtrain.engine.logs.expression import ExpressionLateError, ExpressionSearch
from airflow_provider_dtrain.errors import UserError

HOSTILE = st.lists(
    st.one_of(
        st.sampled_from(
            [b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\x1b[31m", b"\x1b]0;", b"\x07", b"\x1b", b"\x85", b"a"]
        ),
        st.binary(max_size=8),
    ),
    max_size=30,
).map(b"".join)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@given(HOSTILE)
def test_any_bytes_have_as_many_texts_as_lines_and_line_starts(content: bytes) -> None:
    lines = lines_of(content)
    assert len(lines) == count_lines(content) == len(line_starts(content, 7)) == len(levels_of(lines))
    assert not any("\n" in line for line in lines)


@given(HOSTILE, st.integers(1, 9))
def test_chunks_are_the_content_and_begin_at_lines_unless_a_line_is_longer(content: bytes, most: int) -> None:
    chunks = cut(content, most)
    assert b"".join(chunks) == content
    assert all(0 < len(chunk) <= most for chunk in chunks)
    for chunk in chunks[:-1]:
        assert chunk.endswith(b"\n") or (len(chunk) == most and b"\n" not in chunk)


def test_a_line_is_what_a_terminal_would_leave_of_it() -> None:
    content = b"\x1b[1;31mred\x1b[0m\r\n 10%\r 55%\r100%\n\x1b]0;title\x07end\n\x1b]0;no end\nx\0y\xff\xfe\n"
    assert lines_of(content) == ["red", "100%", "end", "\x1b]0;no end", "x\0y\ufffd\ufffd"]


def test_a_line_of_a_megabyte_and_a_million_escapes_are_read_in_time() -> None:
    begin = time.thread_time()
    assert [len(line) for line in lines_of(b"x" * 2**20)] == [2**20]
    assert lines_of(b"\x1b]" * 2**19 + b"\x1b[" * 2**19)[0].count("\x1b") > 2**19
    assert levels_of(["[rank0]: " + "E" * 2**20]) == [None]
    assert time.thread_time() - begin < 5.0


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-27 21:51:24,123 ERROR trainer: loss is nan", "error"),
        ("[rank3]: RuntimeError: CUDA out of memory", "error"),
        ("[rank3]:[W1127 21:51:24.1 ProcessGroup.cpp:1] Warning: slow", "warning"),
        ("[E1127 21:51:24.1 ProcessGroupNCCL.cpp:616] Watchdog", "error"),
        ("W1127 21:51:24.123456 1 x.py:3] careful", "warning"),
        ("INFO:root:begin", "info"),
        ("DEBUG x", "debug"),
        ("/x.py:3: UserWarning: deprecated", "warning"),
        ("dtrain: rank 0 lr is too low", "error"),
        ("no error was found", None),
        ("epoch 3: loss 0.25", None),
        ("x" * 200 + " ERROR", None),
    ],
)
def test_the_level_of_a_line_is_where_logging_and_torch_write_it(line: str, level: str | None) -> None:
    assert levels_of([line]) == [level]


LEVELLED = st.sampled_from([
    "2026 ERROR x", "W1127 21:51:24.1 1 x] y", "[E1127 21:51:24.1 x", "a.b.MyError", "KeyboardInterrupt",
    "warning: z", "x: UserWarning: y", "Traceback (most recent call last):", "  frame",
    "error: z", "Fatal Python error: x", "dtrain: x",
])  # fmt: skip
LINES = st.lists(st.one_of(LEVELLED, st.text(max_size=5)), max_size=6)


@given(LINES, st.sampled_from(LogLevel), st.sampled_from(["", "x", "ERROR", "é"]))
def test_a_part_is_skipped_only_if_no_line_of_it_matches(lines: list[str], level: LogLevel, text: str) -> None:
    content = "\n".join(lines).encode()
    query = LogQuery(text=text, level=level)
    found = lines_of(content)
    if with_level(found, with_text(found, query), level):
        assert may_match(content, query)


def test_all_lines_of_a_traceback_are_errors() -> None:
    lines = ["ok", "Traceback (most recent call last):", '  File "t.py", line 1', "    f()", "MyProblem: no", "ok"]
    assert levels_of(lines) == [None, *["error"] * 4, None]
    ranked = [f"[rank1]: {line}" for line in lines]
    assert levels_of(ranked) == [None, *["error"] * 4, None]
    assert with_level(lines, [0, 2, 5], LogLevel.WARNING) == [2]


def clock_file(*records: tuple[int, float]) -> bytes:
    return b"".join(struct.pack("<Qd", *one) for one in records)


def test_times_come_from_the_sizes_of_the_log_on_the_clock_of_this_machine() -> None:
    samples = samples_of(clock_file((10, 105.0), (30, 107.0)) + b"half a record", 5.0)
    assert samples == [(10, 100.0), (30, 102.0)]
    assert [time_of(samples, offset) for offset in (0, 9, 10, 29, 30)] == [at(100), at(100), at(102), at(102), None]
    assert offsets_between(samples, at(101), None) == (10, 30)
    assert offsets_between(samples, None, at(101)) == (0, 10)
    assert offsets_between(samples, at(103), None) is None
    assert within(samples, 0, 10) == [(10, 100.0)]
    assert within(samples, 5, 20) == samples
    assert within(samples, 10, 11) == [(30, 102.0)]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.floats(allow_nan=True, allow_infinity=True)), max_size=20))
def test_a_clock_file_that_a_rank_has_changed_gives_rising_sizes_and_times(records: list[tuple[int, float]]) -> None:
    samples = samples_of(clock_file(*records), 1.5)
    assert samples == sorted(samples)
    assert len({size for size, _ in samples}) == len(samples)
    for size, _ in samples:
        assert time_of(samples, size - 1) is not None


def test_a_search_in_time_has_the_lines_that_were_written_then() -> None:
    content = b"first\nsecond\nthird\nfourth\n"
    samples = [(6, 100.0), (13, 101.0), (19, 102.0)]
    starts = line_starts(content, 0)
    assert in_span(LogQuery(since=at(101)), starts, samples) == range(1, 3)
    assert in_span(LogQuery(until=at(101)), starts, samples) == range(2)
    assert in_span(LogQuery(since=at(200)), starts, samples) == range(0)
    assert in_span(LogQuery(text="x"), starts, ()) == range(4)


def test_text_ignores_case_and_an_expression_is_searched_line_by_line() -> None:
    lines = ["Loss 0.5", "acc 1", "loss"]
    assert with_text(lines, LogQuery(text="LOSS")) == [0, 2]
    assert with_text(lines, LogQuery(text=r"^loss$", is_regex=True)) == [2]
    assert with_text(lines, LogQuery(text=r"0\.5\s+acc", is_regex=True)) == []
    with pytest.raises(re.error):
        with_text(lines, LogQuery(text="(", is_regex=True))


# -- the process of an expression ------------------------------------------------------------------
def test_a_process_finds_the_lines_of_each_part() -> None:
    with ExpressionSearch(r"b\d", 20.0) as search:
        assert search.indices(b"a1\nb2\nb\nb3\n") == [1, 3]
        assert search.indices(b"") == []
        assert search.indices(b"\xff\0b9") == [0]


def test_an_expression_that_takes_exponential_time_is_ended() -> None:
    begin = time.monotonic()
    with ExpressionSearch(r"^(a+)+$", 1.5) as search, pytest.raises(ExpressionLateError):
        search.indices(b"a" * 60 + b"b")
    assert time.monotonic() - begin < 15.0
    assert search._process.returncode == -9


@pytest.mark.parametrize("expression", ["(", "(?P<a>x)(?P<a>y)", "a{99999999999}"])
def test_an_expression_that_is_not_valid_is_refused_with_the_reason(expression: str) -> None:
    with ExpressionSearch(expression, 20.0) as search, pytest.raises(UserError, match="is not valid: "):
        search.indices(b"x")
