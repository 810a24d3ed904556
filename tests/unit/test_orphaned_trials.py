"""Requests to trials without followers: each trial is one of its own."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.engine.attempt.runner import Superseded
from airflow_provider_dtrain.engine.upkeep import orphaned_trials
from airflow_provider_dtrain.errors import HostError, StaleWatchError


@pytest.fixture
def outcomes(monkeypatch):
    """Outcome of each trial: an error, or whether it had a request. The trials that were asked are ``outcomes[0]``."""
    found = {0: []}

    async def carry_out(_hook, trial_id):
        found[0].append(trial_id)
        if isinstance(found[trial_id], Exception):
            raise found[trial_id]
        return found[trial_id]

    monkeypatch.setattr(orphaned_trials, "_carry_out", carry_out)
    return found


def test_an_error_of_one_trial_keeps_the_request_from_no_other(outcomes):
    outcomes |= {1: True, 2: HostError("a", "it is off"), 3: ValueError("nonsense"), 4: True}
    with pytest.raises(HostError, match="it is off"):
        orphaned_trials.carry_out(None, [1, 2, 3, 4])
    assert outcomes[0] == [1, 2, 3, 4]


def test_trials_that_another_process_has_taken_over_are_left_out(outcomes):
    outcomes |= {1: StaleWatchError("another"), 2: True, 3: Superseded(), 4: False}
    assert orphaned_trials.carry_out(None, [1, 2, 3, 4]) == [2]
