"""Comparison of recorded weights: which records count, and which difference is the first."""

from __future__ import annotations

from itertools import count

import pytest

from airflow_provider_dtrain.core.lifecycle.weight_comparison import (
    WeightRecord,
    compare,
    comparison_text,
    differing_tensor,
    names_record,
)

_IDS = count(1)


def record(step: int, digest: str, *, kind: str = "weights", rank: int = 0, attempt: int = 1) -> WeightRecord:
    return WeightRecord(event_id=next(_IDS), kind=kind, attempt=attempt, rank=rank, step=step, digest=digest)


def steps(digests: str, **more: int) -> list[WeightRecord]:
    """Return records of steps from 1 on, each with one letter as its digest."""
    return [record(number, digest, kind="step_weights", **more) for number, digest in enumerate(digests, 1)]


def test_the_first_step_that_differs_is_found_wherever_later_ones_differ_too() -> None:
    found = compare(steps("abcdef"), steps("abxyzf"))
    assert found.first is not None
    assert (found.steps, found.first.original.step, found.first.original.digest) == (6, 3, "c")


def test_a_step_is_named_before_the_checkpoint_of_the_same_step_and_an_earlier_checkpoint_before_both() -> None:
    both = compare([*steps("ab"), record(2, "b")], [*steps("ax"), record(2, "x")]).first
    assert both is not None
    assert (both.original.kind, both.original.step) == ("step_weights", 2)
    earlier = compare([record(1, "a"), *steps("ab")[1:]], [record(1, "x"), *steps("ax")[1:]]).first
    assert earlier is not None
    assert (earlier.original.kind, earlier.original.step) == ("weights", 1)


def test_of_steps_that_an_attempt_took_again_the_latest_counts() -> None:
    # The first attempt went on to step 4 with other weights, and ended without a checkpoint of steps 3 and 4.
    resumed = [record(number, digest, kind="step_weights", attempt=2) for number, digest in ((3, "c"), (4, "d"))]
    found = compare([*steps("abxy"), *resumed], steps("abcd"))
    assert (found.first, found.steps, found.steps_left) == (None, 4, 0)


def test_a_run_that_was_started_again_in_the_same_attempt_counts_with_its_latest_records() -> None:
    found = compare([*steps("xy"), *steps("ab")], steps("ab"))
    assert (found.first, found.steps) == (None, 2)


def test_steps_that_other_ranks_recorded_are_not_compared() -> None:
    two = [record(1, "a"), record(1, "b", rank=1)]
    found = compare(two, [record(1, "a")])
    assert (found.is_empty, found.checkpoints_left, found.first) == (True, 1, None)
    different = compare(two, [record(1, "a"), record(1, "x", rank=1)])
    assert different.first is not None
    assert different.first.original.rank == 1


def test_checkpoints_are_compared_with_checkpoints_and_steps_with_steps() -> None:
    found = compare([record(1, "a")], steps("a"))
    assert (found.is_empty, found.checkpoints_left, found.steps_left) == (True, 1, 1)


def test_the_names_are_those_of_the_first_record_of_the_same_attempt_and_rank() -> None:
    records = [*steps("a", rank=1), *steps("ab"), *steps("cd", attempt=2)]
    assert names_record(records, records[-1]) is records[-2]
    assert names_record(records, records[2]) is records[1]


@pytest.mark.parametrize(
    ("names", "other", "result"),
    [
        (["a", "b", "c"], ["a", "b", "c"], ("b", 2)),
        (["a", "b", "c"], ["a", "b", "x"], (None, 0)),
        ([], [], (None, 0)),
        (["a"], ["a"], (None, 0)),
    ],
)
def test_the_first_tensor_that_differs_is_named_if_both_have_the_same_names(names, other, result) -> None:
    assert differing_tensor("0" * 24, "0" * 8 + "1" * 16, names, other) == result


def test_the_text_names_rank_and_number_and_says_what_was_not_compared() -> None:
    found = compare([record(5, "a", rank=1), record(6, "a", rank=1)], [record(5, "x", rank=1)])
    text = comparison_text(found, "0.weight", 3, original=1, again=2, is_gpu=False)
    assert text == (
        "The weights of trial 2 differ from those of trial 1, first at the checkpoint of step 5 on rank 1, in tensor "
        "0.weight and 2 more. 1 checkpoint and 0 steps were compared, 1 that only one of the trials has were not."
    )
