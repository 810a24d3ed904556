"""Sentences about ends that no rank caused: who or which host, when, where, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain import errors
from airflow_provider_dtrain.engine.attempt.end_place import (
    ended_by_airflow,
    ended_by_time_limit,
    killed_by_user,
    where_text,
    with_ranks,
)
from airflow_provider_dtrain.engine.attempt.outcome import Failure


def view(ranks: dict[str, list[int]], *, granted: bool = True, started: bool = True, is_external: bool = False) -> Any:
    plans = {host: {"ranks": [{"rank": rank} for rank in own]} for host, own in ranks.items()}
    return SimpleNamespace(
        plan={"plans": plans},
        placement={host: tuple(own) for host, own in ranks.items()},
        granted_at=granted or None,
        started_at=started or None,
        is_external=is_external,
        trial_id=7,
    )


TWO = {"gpu-2": [2, 3], "gpu-1": [0, 1]}


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (view(TWO), "while its 4 ranks ran on 'gpu-1', 'gpu-2'"),
        (view({"a": [0]}), "while its 1 rank ran on 'a'"),
        (view({f"h{number}": [number] for number in range(6)}), "ran on 'h0', 'h1', 'h2', 'h3' and 2 more hosts"),
        (view(TWO, started=False), "before its ranks were started"),
        (view({}, granted=False, started=False), "while it waited for slots"),
    ],
)
def test_the_place_of_an_end_names_time_hosts_and_ranks(of: Any, text: str) -> None:
    found = where_text(of)
    assert re.match(r"at \d\d:\d\d:\d\d UTC, ", found)
    assert found.endswith(text)


@pytest.mark.parametrize(
    ("error", "kind", "parts"),
    [
        (killed_by_user(view(TWO), "ann"), "killed_by_user", ("killed by ann at ", "Clear its task to run it again.")),
        (ended_by_airflow(view(TWO)), "task_ended", ("killed by Airflow at ", "audit log")),
        (ended_by_time_limit(view(TWO)), "time_limit", ("execution_timeout has passed", "Raise execution_timeout")),
    ],
)
def test_ends_by_users_and_limits_have_a_kind_and_say_what_to_do(error: Any, kind: str, parts: tuple[str, ...]) -> None:
    stored = Failure.of(error)
    assert stored.cause_kind == kind
    for part in (*parts, "'gpu-1', 'gpu-2'"):
        assert part in stored.message
    assert "\n" not in stored.message


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("HostSilentError", "Probe it: airflow dtrain hosts probe gpu-2"), ("HostLostError", "journal of that host")],
)
def test_a_lost_host_is_named_with_its_ranks_and_the_next_step(kind: str, advice: str) -> None:
    lost = getattr(errors, kind)("gpu-2", "Host 'gpu-2' was restarted while the run was on it.\nmore")
    found = with_ranks(view(TWO), lost)
    head, rest = str(found).split("\n")
    assert head.startswith("Host 'gpu-2' was restarted while the run was on it; ranks 2 and 3 ran there. ")
    assert advice in head
    assert (rest, type(found), found.cause_kind) == ("more", type(lost), lost.cause_kind)


def test_of_a_lost_node_of_a_cluster_its_job_is_the_next_step() -> None:
    lost = errors.HostSilentError("gpu-2", "Host 'gpu-2' is silent.")
    assert "See its job: airflow dtrain trials describe 7" in str(with_ranks(view(TWO, is_external=True), lost))


def test_other_errors_and_hosts_without_ranks_stay_as_they_are() -> None:
    other = errors.RunEndedError("The run ended.")
    assert with_ranks(view(TWO), other) is other
    assert "ran there" not in str(with_ranks(view(TWO), errors.HostLostError("gpu-9", "Host 'gpu-9' is gone.")))


KINDS = {
    "HostUnreachableError": "host_silent", "HostSilentError": "host_silent", "HostLostError": "host_lost",
    "SlotsTakenError": "slots_taken", "ProcessStuckError": "stopped", "MaxRuntimeError": "time_limit",
    "ExecutionTimeoutError": "time_limit", "RunEndedError": "run_ended", "TrialKilledError": "killed_by_user",
    "TaskEndedError": "task_ended", "UnplaceableError": "unplaceable", "ImageError": "image",
    "EnvironmentBuildError": "environment", "EnvironmentTimeoutError": "environment",
    "EnvironmentMissingError": "environment", "ConfigError": "configuration", "InvalidHPError": "hyperparameters",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_each_end_has_its_kind_and_the_documentation_lists_it(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    assert getattr(errors, name).cause_kind == KINDS[name]
    assert f"`{KINDS[name]}`" in text
