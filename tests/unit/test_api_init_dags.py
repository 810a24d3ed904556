"""The DAG that starts experiments: reasons why a user cannot start one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.api.init_dags import DAG_ID, DagState, starting, trigger
from airflow_provider_dtrain.dags import DAG_ID as WRITTEN
from airflow_provider_dtrain.errors import ConflictError

pytestmark = pytest.mark.airflow


def test_the_dag_is_the_one_that_init_writes() -> None:
    assert DAG_ID == WRITTEN


@pytest.mark.parametrize(
    ("dag", "may_trigger", "words"),
    [
        (DagState(exists=False), True, "airflow dtrain init"),
        (DagState(exists=True, is_broken=True), True, "import errors"),
        (DagState(exists=True, is_paused=True), True, "airflow dags unpause dtrain_experiment"),
        (DagState(exists=True), False, "You may not trigger"),
    ],
)
def test_the_first_obstacle_is_named_with_its_remedy(dag: DagState, may_trigger: bool, words: str) -> None:
    found = starting(dag, may_trigger=may_trigger)
    assert found.may_trigger is False
    assert words in found.hint


def test_a_user_with_the_right_may_start_experiments() -> None:
    found = starting(DagState(exists=True), may_trigger=True)
    assert (found.may_trigger, found.hint) == (True, "")


@pytest.mark.parametrize("dag", [None, SimpleNamespace(params={"config": ""})])
def test_another_dag_of_the_same_name_is_not_triggered_because_it_would_ignore_the_configuration(
    monkeypatch: pytest.MonkeyPatch, dag: object
) -> None:
    monkeypatch.setattr("airflow.models.serialized_dag.SerializedDagModel.get_dag", lambda dag_id: dag)
    with pytest.raises(ConflictError, match="run: airflow dtrain init"):
        trigger({"config": {"config_id": 1}, "payload": None}, "ann")
