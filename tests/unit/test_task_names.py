"""Names of task instances: what the trial is, and how it ended, in one short line whatever user code has named."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.search.names import (
    MAX_CHARS,
    ended_name,
    length_text,
    metric_text,
    reached_text,
    trial_name,
)
from airflow_provider_dtrain.core.search.value_text import value_text
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from tests.support.budgets import budget

HOSTILE = "<img src=x onerror=alert(1)>\n\x1b[31m" + "x" * 10_000


def test_a_trial_that_differs_in_nothing_has_the_name_of_its_task() -> None:
    space = {"lr": {"type": "const", "val": 0.1}}
    assert trial_name(0, {"lr": 0.1}, space, task=("train", -1)) == "train"
    assert trial_name(3, {}, None, task=("trial", 3)) == "trial[3]"
    assert trial_name(3, {"lr": 0.1}, None, task=("trial", 3)) == "3 | lr=0.1"
    assert trial_name(3, {}, None) == "number 3"


def test_a_name_ends_with_the_result() -> None:
    name = trial_name(5, {"lr": 3e-4})
    assert ended_name(name, metric_text("accuracy", 0.9137)) == "5 | lr=3e-4 -> accuracy 0.914"
    assert ended_name(name, "") == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_metric_that_is_no_number_is_called_that(value: float | None) -> None:
    assert metric_text("loss", value) == "loss without a finite value"


#: Choices of which each two differ.
CHOICES = [
    None, True, False, 1, 1.0, 0, 0.0, -1, -1.0, "1", "1.0", "true", "null", "None", "yes", "", "resnet", '"resnet"',
    [1, 2], [1.0, 2], "[1,2]", {"a": 1}, {"a": "1"}, "NaN", 1e20, 10**20, "1e+20",
]  # fmt: skip


def test_choices_that_differ_have_different_texts() -> None:
    assert len({value_text(value) for value in CHOICES}) == len(CHOICES)
    names = {trial_name(None, {"mixed": value}) for value in CHOICES}
    assert len(names) == len(CHOICES)
    assert [value_text(one) for one in (1, 1.0, "1", True, None, "resnet", [1, 2])] == [
        "1", "1.0", '"1"', "true", "null", "resnet", "[1,2]",
    ]  # fmt: skip


@settings(max_examples=budget(400))
@given(*[st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)] * 2)
def test_any_two_choices_of_json_have_different_texts(one: object, other: object) -> None:
    assert (value_text(one) == value_text(other)) == (json.dumps(one) == json.dumps(other))


def test_hostile_names_are_one_short_printable_line_that_keeps_the_result() -> None:
    name = ended_name(trial_name(5, {f"{HOSTILE}{number}": HOSTILE for number in range(50)}), "stopped at epoch 2")
    assert len(name) == MAX_CHARS
    assert name.endswith("… -> stopped at epoch 2")
    shown = ended_name("5", f"failed: {metric_text(HOSTILE, 0.5)}{HOSTILE}")
    assert len(shown) <= MAX_CHARS
    assert shown.isprintable()


def test_lengths_have_the_unit_of_the_search() -> None:
    epochs = {"max_length": {"epochs": 9, "batches": None}}
    assert [length_text(1, epochs), length_text(2000, epochs)] == ["1 epoch", "2,000 epochs"]
    assert reached_text(2, epochs) == "epoch 2"
    assert [reached_text(4, {"time_metric": "tokens"}), reached_text(1, None)] == ["4 tokens", "1 unit"]


def test_the_cause_of_a_failed_rank_comes_before_the_rank() -> None:
    words = "Rank 3 on host 'gpu-02' failed first (exit code 1): ValueError: cannot go on\nTraceback ...\nValueError"
    failure = Failure(error="RankFailedError", kind="user", message=words)
    assert failure.cause == "ValueError: cannot go on (rank 3 on host 'gpu-02' failed first (exit code 1))"
    assert str(failure.brief) == failure.cause
    other = Failure(error="HostError", kind="infra", message="Host 'a' does not answer.\nmore")
    assert other.cause == "Host 'a' does not answer."
