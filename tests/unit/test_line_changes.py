"""Unified differences: git applies them, and the cost of hostile texts is below the limit."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.line_changes import CONTEXT, LineComparison

TEXTS = st.lists(st.sampled_from(["a", "b", "", "  c", "é\t"]), max_size=14).map("\n".join)
BOTH = st.tuples(TEXTS, TEXTS, st.booleans(), st.booleans()).map(
    lambda one: (one[0] + "\n" * one[2], one[1] + "\n" * one[3])
)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=BOTH)
def test_git_makes_the_second_text_of_the_first_one(tmp_path: Path, texts: tuple[str, str]) -> None:
    before, after = texts
    found = LineComparison().changes(before, after)
    assert found is not None
    assert (found.lines == []) == (before == after)
    # git takes an empty file for one that does not exist.
    if before in ("", after) or after == "":
        return
    (tmp_path / "f").write_bytes(before.encode())
    patch = "\n".join(["--- a/f", "+++ b/f", *found.lines, ""])
    done = subprocess.run(
        ["git", "apply", "-p1", "--whitespace=nowarn", "-"], cwd=tmp_path, input=patch.encode(), capture_output=True
    )
    assert done.returncode == 0, (done.stderr, patch)
    assert (tmp_path / "f").read_bytes() == after.encode()


def test_a_change_in_a_long_text_shows_its_place_with_three_lines_around_it() -> None:
    before = [f"line {number}" for number in range(1, 2001)]
    after = [*before]
    after[999] = "other"
    found = LineComparison().changes("\n".join(before) + "\n", "\n".join(after) + "\n")
    assert found is not None
    assert (found.added, found.removed, len(found.lines)) == (1, 1, 2 * CONTEXT + 3)
    assert found.lines[0] == "@@ -997,7 +997,7 @@"
    assert found.lines[4:6] == ["-line 1000", "+other"]


def test_a_text_without_a_newline_at_its_end_says_so() -> None:
    found = LineComparison().changes("a\n", "a")
    assert found is not None
    assert found.lines == ["@@ -1 +1 @@", "-a", "+a\n\\ No newline at end of file"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x\n" * 60_000, "y\n" + "x\n" * 30_000 + "z\nx\ny\n"),
        ("".join(f"{n % 97}\n" for n in range(20_000)), "".join(f"{n % 89}\n" for n in range(20_000))),
        ("".join(f"c{n}\nu{n}\n" for n in range(20_000)), "".join(f"c{n}\nv{n}\n" for n in range(20_000))),
    ],
)
def test_texts_that_are_costly_to_compare_are_refused_at_once(before: str, after: str) -> None:
    began = time.process_time()
    assert LineComparison().changes(before, after) is None
    assert time.process_time() - began < 2


def test_the_limit_of_work_holds_for_all_texts_together() -> None:
    comparison = LineComparison(work_most=200)
    old, new = "a\nb\nc\n", "a\nx\nc\n"
    results = [comparison.changes(old, new) for _ in range(20)]
    assert results[0] is not None
    assert results[-1] is None
