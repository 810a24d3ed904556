"""A resumed training ends as an unbroken one: for loops of any shape, with checkpoints anywhere, ended anywhere.

An example takes three runs of a small program, about 0.1 s. The examples of each change take about five seconds.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
from tests.support.budgets import budget  # noqa: E402
from tests.support.training_loops import (  # noqa: E402
    INNER,
    LIMITS,
    OUTER,
    SAVES,
    Loop,
    Trace,
    is_exact,
    is_exact_after_a_stop,
    run,
    warnings_of_training,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")]


@st.composite
def loops(draw: st.DrawFn, saves: tuple[str, ...] = SAVES) -> Loop:
    ranks = draw(st.sampled_from([1, 1, 2]))
    return Loop(
        outer=draw(st.sampled_from(OUTER)),
        inner=draw(st.sampled_from(INNER)),
        limit=draw(st.sampled_from(LIMITS)),
        saves=frozenset(draw(st.lists(st.sampled_from(saves), min_size=1, max_size=2))),
        every=draw(st.integers(1, 4)),
        epochs=draw(st.integers(1, 3)),
        batches=draw(st.integers(2, 3)),
        aggregation=draw(st.sampled_from([1, 1, 2])),
        ranks=ranks,
        # Ranks that are threads share the generators of the process.
        augments=ranks == 1 and draw(st.booleans()),
    )


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """Return a folder whose files need no disk, because the position of a checkpoint is tested here."""
    place = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="dtrain-resume-", dir=place if place.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def results(traces: list[Trace]) -> list[tuple[str, int]]:
    return [(trace.digest, trace.steps) for trace in traces]


def assert_equal(whole: list[Trace], resumed: list[Trace], *, exact: bool, told: list[str]) -> None:
    is_equal = results(resumed) == results(whole) and all(
        mine.random_digest in ("", theirs.random_digest) for mine, theirs in zip(resumed, whole, strict=True)
    )
    event(f"exact: {exact}, equal: {is_equal}")
    if exact:
        assert is_equal
    assert is_equal or told, "the program resumed in another way without a word"


def is_unknowable(loop: Loop, resumed: Trace) -> bool:
    """Return whether the program would have left its only epoch early, which nothing shows before."""
    return loop.epochs == 1 and loop.limit.startswith("break") and resumed.is_inside


def resumed(
    memory: Path, loop: Loop, ends: list[tuple[str, int]]
) -> tuple[list[Trace], list[list[Trace]], list[Trace], list[str]]:
    """Run a loop to its end, and once more with some ends. Return the traces of all runs, and what was logged.

    :param ends: kind of each end, and its place as a part of a thousand of the unbroken run's places
    """
    folder = Path(tempfile.mkdtemp(dir=memory))
    try:
        with warnings_of_training() as told:
            whole = run(loop, folder / "whole")
            places = whole[0].places
            broken = [run(loop, folder / "broken", **{kind: place * places // 1000}) for kind, place in ends]
            return whole, broken, run(loop, folder / "broken"), told
    finally:
        shutil.rmtree(folder)


EPOCH = {"epochs": 2, "batches": 3}
END = frozenset({"end"})


def is_usual(loop: Loop) -> bool:
    """Return whether a program saves at the end of a batch or epoch, and leaves no loop early."""
    return (
        loop.saves <= {"end", "tail"}
        and not loop.limit.startswith("break")
        and loop.outer != "while"
        and (loop.inner != "turns" or loop.outer == "epochs")
    )


@pytest.mark.nightly
@settings(max_examples=budget(160))
@given(loops(), st.lists(st.integers(0, 999), min_size=1, max_size=2))
# In the last batch of an epoch, in a loop of the library and in one of the program's own.
@example(Loop(saves=END, every=3, **EPOCH), [700])
@example(Loop(outer="range", saves=END, every=3, **EPOCH), [700])
# The loop is left by break, and the checkpoint follows it.
@example(Loop(limit="break before", saves=frozenset({"tail"}), **EPOCH), [700])
@example(Loop(outer="range", limit="break after", saves=frozenset({"tail"}), **EPOCH), [700])
# Two loaders side by side in a loop of the program's own, and one inside the other.
@example(Loop(outer="range", inner="zip", saves=END, **EPOCH), [300])
@example(Loop(inner="nested", saves=END, **EPOCH), [300])
# Before training, where a batch is loaded with random numbers.
@example(Loop(saves=frozenset({"head"}), augments=True, **EPOCH), [300])
# Between two loops of an epoch.
@example(Loop(inner="turns", saves=END, every=3, **EPOCH), [400])
def test_a_killed_training_resumes_as_an_unbroken_one(memory: Path, loop: Loop, kills: list[int]) -> None:
    whole, broken, again, told = resumed(memory, loop, [("kill_at", kill) for kill in kills])
    exact = all(is_exact(loop, killed[0], after[0]) for killed, after in zip(broken, [*broken[1:], again], strict=True))
    assume(not is_unknowable(loop, again[0]))
    assert_equal(whole, again, exact=exact, told=told)
    if is_usual(loop):
        assert [text for text in told if "not run again" not in text] == []


@settings(max_examples=budget(80))
@given(loops(tuple(place for place in SAVES if place != "middle")), st.integers(0, 999))
@example(Loop(saves=frozenset({"tail"}), **EPOCH), 300)
@example(Loop(inner="nested", saves=frozenset({"tail"}), **EPOCH), 300)
@example(Loop(inner="turns", saves=frozenset({"tail"}), **EPOCH), 100)
def test_a_stopped_training_resumes_as_an_unbroken_one(memory: Path, loop: Loop, stop: int) -> None:
    whole, _, again, told = resumed(memory, loop, [("stop_at", stop)])
    assume(not is_unknowable(loop, again[0]))
    assert_equal(whole, again, exact=is_exact_after_a_stop(loop, again[0]), told=told)
