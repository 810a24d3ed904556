"""Next steps: each kind of failure has one, each command exists, and no step has an empty place."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from airflow_provider_dtrain import errors
from airflow_provider_dtrain.core.lifecycle import failure_steps
from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind
from airflow_provider_dtrain.core.lifecycle.failure_steps import NextStep, next_steps
from airflow_provider_dtrain.terminal.arguments import Group
from airflow_provider_dtrain.terminal.definition import commands

KINDS = [*CauseKind, "hang", "mismatch"]


def steps(**failure: Any) -> list[NextStep]:
    return next_steps(failure, trial_id=7, pool="gpus", has_ranks=True, baseline=3)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_cause_begins_with_what_to_do(kind: str) -> None:
    first = steps(cause_kind=str(kind), error="RankFailedError", host="gpu-1")[0]
    advice = CauseKind(kind).advice if kind in set(CauseKind) else ""
    assert first.text == advice or (not advice and first.page != "compare")


def test_each_key_is_a_kind_of_cause_or_a_class_of_an_error() -> None:
    for key in failure_steps._STEPS:
        assert key in KINDS or issubclass(getattr(errors, key), errors.DtrainError), key


@pytest.mark.parametrize("key", failure_steps._STEPS)
def test_each_command_exists(key: str) -> None:
    known = set()
    for one in commands():
        known |= {f"{one.name} {command.name}" for command in one.commands} if isinstance(one, Group) else {one.name}
    for step in steps(cause_kind=key, error=key, kind="infra", host="gpu-1"):
        if step.command is not None:
            words = shlex.split(step.command)
            assert words[:2] == ["airflow", "dtrain"]
            assert " ".join(words[2:4]) in known or words[2] in known, step.command


def test_a_step_for_a_host_that_is_not_known_is_left_out() -> None:
    named = steps(error="HostLostError", kind="infra", host="gpu-1")
    assert (named[0].command, named[0].page, named[0].host) == ("airflow dtrain hosts probe gpu-1", "cluster", "gpu-1")
    unnamed = steps(error="HostLostError", kind="infra", host=None)
    assert [one.page for one in unnamed] == ["compare", "log", "task_log"]
    assert not any("None" in f"{one.text} {one.command or ''}" for one in unnamed)


def test_logs_and_comparisons_are_offered_only_where_they_exist() -> None:
    found = next_steps({"error": "UnplaceableError"}, trial_id=7, pool="gpus", has_ranks=False, baseline=None)
    assert [one.page for one in found] == ["cluster", "config", "config", "task_log"]
    assert found[0].command == "airflow dtrain pools describe gpus"
