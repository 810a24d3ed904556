"""Hyperparameters that a table of trials shows, from the name that Airflow shows for the task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from airflow_provider_dtrain.resources.trials import TrialSummary
from airflow_provider_dtrain.terminal.trials import hparams_text


@pytest.mark.parametrize(
    ("name", "shown"), [("3 | lr=0.1, units=8", "lr=0.1, units=8"), ("train", ""), ("13 | lr=0.1", ""), ("3 | ", "")]
)
def test_a_trial_without_differing_hyperparameters_shows_none(name: str, shown: str) -> None:
    assert hparams_text(cast(TrialSummary, SimpleNamespace(number=3, name=name))) == shown
