"""A function's source and call as they travel, and what runs them on a host."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.event_log import EventSource, read_lines
from airflow_provider_dtrain.decorators._function import bind, check_function, read_function
from airflow_provider_dtrain.errors import FunctionError
from airflow_provider_dtrain.train.function import PIECE, RESULT_LIMIT_BYTES, ResultError, joined, result_json
from airflow_provider_dtrain.train.reports.events import encode_event

ROOT = Path(__file__).parents[2]
TABLE = {"a": 1}


def decorated(function: Any) -> Any:
    return function


@decorated
@decorated
def travels(count: int, *rest: float, table: dict[str, int] = TABLE, name: str = "x") -> dict[str, Any]:
    """Has hints, defaults and names that only this file knows."""
    import os

    text = """first
  second
third"""

    def inner(n):
        return sum(n * k for k in range(count)) + sum(rest)

    class Point:
        where = os.environ.get("RANK", "0")

    return {"inner": inner(2), "text": text, "table": table, "name": name, "rank": Point.where}


def raises(number):
    lines = ["a"]
    lines.append("b")
    raise ValueError(f"no number {number} in {lines}")


def countdown(n, step=1):
    return [n, *countdown(n - step)] if n > 0 else []


def run(function: Any, *args: Any, folder: Path, rank: int = 0, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run a function as a host does. Its events are in ``events``, its failure in ``error.json``."""
    source = read_function(function)
    place = folder / "dtrain_function"
    place.mkdir()
    (place / source.file_name).write_text(source.text)
    (place / "call.json").write_text(json.dumps(bind(function, args, kwargs)))
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "RANK": str(rank), "DTRAIN_EVENTS": str(folder / "events"),
        "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
    }  # fmt: skip
    command = [sys.executable, "-m", "airflow_provider_dtrain.train.function", f"dtrain_function/{source.file_name}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def returned(folder: Path) -> Any:
    lines = list(read_lines((folder / "events").read_bytes(), EventSource(0, frozenset({0}))))
    text = joined([line.event for line in lines if line.event is not None])
    assert text is not None
    return json.loads(text)


def test_a_function_runs_with_its_arguments_defaults_and_hints(tmp_path: Path) -> None:
    done = run(travels, 3, 0.5, folder=tmp_path, name="given")
    assert done.returncode == 0, done.stderr
    found = {"inner": 6.5, "text": "first\n  second\nthird", "table": {"a": 1}, "name": "given", "rank": "0"}
    assert returned(tmp_path) == found


@pytest.mark.parametrize("value", ['["a"] * 180_000', '"\\\\" * 520_000', '"\\"" * 520_000', '"é" * 170_000'])
def test_every_result_below_the_limit_arrives(tmp_path: Path, value: str) -> None:
    expected = eval(value)
    assert run(evaluates, value, folder=tmp_path).returncode == 0
    assert returned(tmp_path) == expected


def evaluates(text):
    return eval(text)


def test_a_result_above_the_limit_names_the_limit_and_its_size(tmp_path: Path) -> None:
    done = run(evaluates, '["a"] * 300_000', folder=tmp_path)
    assert done.returncode == 1
    assert "at most 1,048,576 bytes as JSON, this one of evaluates() has 1,500,000" in done.stderr


def test_only_whole_results_are_put_together() -> None:
    def piece(text: str, part: int, parts: int) -> dict[str, Any]:
        return {"json": text, "part": part, "parts": parts}

    assert joined([]) is None
    assert joined([{"json": "1"}]) == "1"
    assert joined([piece("a", 0, 2), piece("b", 1, 2)]) == "ab"
    assert joined([piece("a", 0, 2)]) is None
    assert joined([piece("a", 0, 3), piece("c", 2, 3)]) is None
    assert joined([piece("b", 1, 2), piece("x", 7, 2)]) is None
    assert joined([piece("old", 0, 1), piece("a", 0, 2), piece("b", 1, 2)]) == "ab"


def test_a_piece_fits_an_event_whatever_is_escaped_in_it() -> None:
    assert len(encode_event(1, 1.0, "returned", {"json": "\\" * PIECE, "part": 0, "parts": 1})) < 1 << 20


def test_only_rank_0_sends_a_result(tmp_path: Path) -> None:
    done = run(travels, 1, folder=tmp_path, rank=1)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "events").exists()


def test_a_function_may_call_itself_with_its_defaults(tmp_path: Path) -> None:
    assert run(countdown, 3, folder=tmp_path).returncode == 0
    assert returned(tmp_path) == [3, 2, 1]


def test_a_function_inside_a_block_keeps_its_texts_and_line_numbers() -> None:
    if True:

        @decorated
        def inside(x):
            text = """a
b"""
            return text, x

    source = read_function(inside)
    lines = source.text.splitlines()
    assert lines[inside.__code__.co_firstlineno].strip() == "def inside(x):"
    assert '"""a\nb"""' in source.text
    assert "@decorated" not in source.text


def test_an_exception_shows_the_lines_of_the_dag_file(tmp_path: Path) -> None:
    done = run(raises, 7, folder=tmp_path)
    assert done.returncode == 1
    line = raises.__code__.co_firstlineno + 3
    for text in (done.stderr, json.loads((tmp_path / "error.json").read_text())["traceback"]):
        assert f'test_function.py", line {line}, in raises' in text
        assert "raise ValueError(f" in text
        assert "ValueError: no number 7 in ['a', 'b']" in text
        assert "train/function.py" not in text, "only the user's own lines are shown"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"loss": [1.0, math.nan]}, r"train\(\) returned .*: result\['loss'\]\[1\] is nan.* Use None"),
        ({"seen": {1}}, r"result\['seen'\] is a set\. Allowed are numbers, .* list\(\)"),
        ({"when": date(2026, 1, 2)}, r"\['when'\] is a datetime.date"),
        ({1: 2}, "the key 1"),
        (b"bytes", "is a bytes"),
        ("x" * RESULT_LIMIT_BYTES, "must have at most 1,048,576 bytes as JSON, this one of train.. has 1,048,578"),
    ],
)
def test_a_result_that_is_no_json_is_an_error_that_says_where(value: Any, words: str) -> None:
    with pytest.raises(ResultError, match=words):
        result_json(value, "train")


def test_a_list_that_holds_itself_is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ResultError):
        result_json(value, "train")


def test_a_result_that_is_no_json_fails_the_rank(tmp_path: Path) -> None:
    def bad():
        return {"when": object()}

    done = run(bad, folder=tmp_path)
    assert done.returncode == 1
    told = json.loads((tmp_path / "error.json").read_text())
    assert told["message"].startswith("ResultError: bad() returned what cannot become an XCom: result['when'] is a")
    for text in (done.stderr, told["traceback"]):
        assert "Allowed are numbers, strings" in text
        assert "File " not in text, "no line of this package helps"


def closure() -> Any:
    rate, unused = 0.1, 2

    def uses():
        return rate

    return uses, unused


async def is_async():
    return 1


def yields():
    yield 1


def uses_global():
    return ROOT / json.dumps(TABLE)


def uses_nothing_known():
    return [undefined_name for _ in range(2)]  # noqa: F821


@functools.wraps(travels)
def wrapped(*args):
    return args


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (closure()[0], r"uses\(\) uses 'rate' of the enclosing function"),
        (is_async, r"is_async\(\) is async"),
        (yields, r"yields\(\) yields"),
        (uses_global, r"uses 'ROOT', 'TABLE', 'json' from outside"),
        (uses_nothing_known, "uses 'undefined_name' from outside"),
        (wrapped, "another decorator"),
        (lambda: 1, "a function defined with def"),
        (len, "a function defined with def"),
    ],
)
def test_a_function_that_cannot_travel_is_refused_by_name(function: Any, words: str) -> None:
    with pytest.raises(FunctionError, match=words):
        check_function(function)


def needs_two(first, second=2, *, third=date(2026, 1, 2)):
    return first, second, third


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'first'"),
        ((1, 2), {"fourth": 4}, "fourth"),
        (({"x": [{1}]},), {"third": None}, r"argument 'first'\['x'\]\[0\] is a set"),
        ((1,), {}, "argument 'third' is a datetime.date"),
    ],
)
def test_a_call_that_is_no_json_names_the_argument(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(FunctionError, match=words):
        bind(needs_two, args, kwargs)


def test_the_runner_reports_an_exit_code_of_its_own(tmp_path: Path) -> None:
    def leaves():
        import sys

        sys.exit(3)

    assert run(leaves, folder=tmp_path).returncode == 3
    assert not (tmp_path / "events").exists()
