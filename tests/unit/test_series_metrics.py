"""Figures about a trial, from what was reported and measured."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dtrain.core.lifecycle.current_branch import current_branch


@dataclass(frozen=True)
class Row:
    attempt: int
    step: int
    group: str = "training"


def rows(attempt: int, *steps: int, group: str = "training") -> list[Row]:
    return [Row(attempt, step, group) for step in steps]


def test_one_attempt_is_shown_as_it_is() -> None:
    found = [*rows(1, 1, 2, 3), *rows(1, 3, group="validation")]
    assert current_branch(found) == found


def test_steps_that_were_taken_again_are_shown_once() -> None:
    # The second attempt began at the checkpoint of step 20.
    first, second = rows(1, 10, 20, 30, 40), rows(2, 30, 40, 50)
    found = current_branch(sorted([*first, *second], key=lambda row: row.step))
    assert [(row.attempt, row.step) for row in found] == [(1, 10), (1, 20), (2, 30), (2, 40), (2, 50)]


def test_what_the_abandoned_branch_reached_beyond_the_new_one_is_left_out() -> None:
    found = current_branch([*rows(1, 10, 20, 30, 40), *rows(1, 40, group="validation"), *rows(2, 15, 25)])
    assert [(row.attempt, row.step) for row in found] == [(1, 10), (2, 15), (2, 25)]


def test_a_third_attempt_that_starts_earlier_replaces_both() -> None:
    found = current_branch([*rows(1, 1, 2, 3, 4), *rows(2, 4, 5), *rows(3, 2, 3)])
    assert [(row.attempt, row.step) for row in found] == [(1, 1), (3, 2), (3, 3)]


def test_several_reports_of_one_step_and_attempt_stay() -> None:
    found = rows(1, 5, 5)
    assert current_branch(found) == found
