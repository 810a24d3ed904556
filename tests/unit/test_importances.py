"""The importance of hyperparameters is computed seldom, and never for an older state than the last one."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.api import importances
from airflow_provider_dtrain.api.importances import Importances
from testbed.standalone import wait_until


@pytest.fixture
def computed(monkeypatch):
    """The numbers of trials of each computation."""
    found = []
    monkeypatch.setattr(importances, "importance", lambda _space, ended, **_: found.append(len(ended)))
    return found


def ask(of, version):
    of.start("experiment", version, (), list, smaller_is_better=True)


def test_a_new_version_is_computed_after_the_interval_and_not_before(computed, monkeypatch):
    of = Importances()
    ask(of, 1)
    wait_until(lambda: of._found["experiment"][1].done(), timeout_s=30, what="the first result")
    for version in (2, 3, 4):
        ask(of, version)
    assert len(computed) == 1
    monkeypatch.setattr(importances, "AGAIN_S", 0.0)
    ask(of, 5)
    wait_until(lambda: len(computed) == 2, timeout_s=30, what="the second result")


def test_the_oldest_experiments_are_forgotten(computed, monkeypatch):
    monkeypatch.setattr(importances, "KEPT", 2)
    of = Importances()
    for key in range(5):
        of.start(key, 1, (), list, smaller_is_better=True)
    assert len(of._found) == len(of._began) == 2
