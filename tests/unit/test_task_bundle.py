"""Airflow's bundle of a task, which is a plug-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.hooks.tasks import task_facts
from airflow_provider_dtrain.resources.provenance import DagBundle


def bundle_of(**more: Any) -> DagBundle | None:
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "max_tries": 0}
    context: Any = {"ti": SimpleNamespace(**names, **more), "dag": SimpleNamespace(fileloc="/dags/d.py")}
    return task_facts(context).bundle


def current(version: str | None) -> Any:
    return SimpleNamespace(name="git", version=None, get_current_version=lambda: version)


def fails() -> str:
    raise OSError("the repository is away")


@pytest.mark.parametrize(
    ("bundle", "version"),
    [
        # Airflow keeps versions of it.
        (SimpleNamespace(name="git", version="abc", get_current_version=fails), "abc"),
        (current("def"), "def"),
        (current(None), None),
        (SimpleNamespace(name="git", version=None, get_current_version=fails), None),
    ],
)
def test_the_version_of_a_bundle_is_that_of_the_run_else_its_present_one(bundle: Any, version: str | None) -> None:
    assert bundle_of(bundle_instance=bundle) == DagBundle(name="git", version=version)


def test_a_context_without_a_bundle_has_none() -> None:
    assert bundle_of() is None
