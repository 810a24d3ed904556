"""Errors of tracebacks as Python itself prints them, with the user's own frames apart."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.lifecycle.raised_errors import MOST_ERRORS, MOST_FRAMES, raised_errors

PROGRAMS = {
    "plain": (
        """
        import json
        def take(text):
            return json.loads(text)
        take("{")
        """,
        ("json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes", ["take", ""]),
    ),
    "chained": (
        """
        def fail():
            raise KeyError("label")
        try:
            fail()
        except KeyError as error:
            raise RuntimeError("no label\\nin this batch") from error
        """,
        ("RuntimeError: no label\nin this batch", [""]),
    ),
    "syntax": ("x = (1,\n", ("SyntaxError: '(' was never closed", [""])),
    "recursion": (
        """
        def again(depth):
            return again(depth + 1)
        again(0)
        """,
        ("RecursionError: maximum recursion depth exceeded", ["again", "again", "again", ""]),
    ),
    "without_message": ("assert False", ("AssertionError", [""])),
}


def printed(folder: Path, program: str) -> str:
    """Return what a real Python prints when a program in the folder of a run fails."""
    work = folder / "runs" / "s-t1.1.1" / "work"
    work.mkdir(parents=True)
    (work / "train.py").write_text(textwrap.dedent(program))
    ran = subprocess.run(
        [sys.executable, str(work / "train.py")], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_traceback_of_python_gives_the_error_and_the_users_frames(tmp_path: Path, name: str) -> None:
    program, (text, functions) = PROGRAMS[name]
    output = printed(tmp_path, program)
    if name == "syntax":
        # The interpreter prints no header for the file that it starts.
        output = f"Traceback (most recent call last):\n{output}"
    first = raised_errors(f"some line before\n{output}")[0]
    assert first.text.startswith(text)
    assert [frame.function for frame in first.frames] == functions
    assert {frame.file for frame in first.frames} == {"train.py"}
    assert first.library_frames == (output.count("/json/") if name == "plain" else 0)
    if name == "plain":
        assert first.frames[0].code == "return json.loads(text)"


def test_the_error_that_ended_the_program_comes_first_and_then_its_cause(tmp_path: Path) -> None:
    found = raised_errors(printed(tmp_path, PROGRAMS["chained"][0]))
    assert [one.text.partition("\n")[0] for one in found] == ["RuntimeError: no label", "KeyError: 'label'"]
    assert [frame.function for frame in found[1].frames] == ["fail", ""]


def test_a_text_without_a_traceback_has_no_errors() -> None:
    assert raised_errors("") == raised_errors("Killed\n") == raised_errors('  File "a.py", line 3, in f\n') == []


def test_lists_are_bounded() -> None:
    frames = "".join(f'  File "/home/me/a.py", line {number}, in f\n    x\n' for number in range(1000))
    one = f"Traceback (most recent call last):\n{frames}KeyError: 1\n"
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n".join([one] * 20)
    found = raised_errors(chain)
    assert len(found) == MOST_ERRORS
    assert len(found[0].frames) == MOST_FRAMES
    assert found[0].frames[0].line == 999


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):" * 50_000, "Traceback (most recent call last):\n" + "  File \"" * 100_000,
        "Traceback (most recent call last):\n" + '  File "x", line 1, in f\n' * 50_000,
        "Traceback (most recent call last):\n" + "E: " + "x" * 1_000_000,
    ],
    ids=range(4),
)  # fmt: skip
def test_any_text_is_read_soon(text: str) -> None:
    begin = time.process_time()
    found = raised_errors(text)
    assert time.process_time() - begin < 2.0
    assert len(json.dumps([one.text for one in found])) < 20_000
