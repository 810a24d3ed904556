"""Errors of the provider as tasks of Airflow raise them."""

from __future__ import annotations

import traceback

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dtrain.errors import HostError, UnplaceableError
from airflow_provider_dtrain.hooks.tasks import failing_at_once


def test_an_error_of_the_user_fails_the_task_at_once_and_has_one_traceback() -> None:
    with pytest.raises(AirflowFailException, match="No host has 9 slots") as raised, failing_at_once():
        raise UnplaceableError("No host has 9 slots.")
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1


def test_an_error_of_a_host_stays_what_it_is_so_that_airflow_tries_again() -> None:
    with pytest.raises(HostError) as raised, failing_at_once():
        raise HostError("a", "Host 'a' does not answer.")
    assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1
