"""Links from task instances to pages survive the serialization of a DAG, and never fail a task."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_dtrain.get_provider_info import get_provider_info
from airflow_provider_dtrain.links import pages
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.sensors.experiment import ExperimentSensor
from airflow_provider_dtrain.sensors.gang import GangSensor


def test_links_of_single_and_mapped_tasks_survive_serialization() -> None:
    with DAG("linked", schedule=None) as dag:
        plan = PlanTrialsOperator(task_id="plan", config={"name": "x"})
        TrialOperator.partial(task_id="trial").expand(trial=plan.output)
        TrialOperator(task_id="alone", config={"name": "x"})
        SelectBestTrialOperator(task_id="best", plan=plan.output)
        GangSensor(task_id="gang", slots=2)
        ExperimentSensor(task_id="wait", experiment=1)
    found = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    links = {task.task_id: sorted(task.operator_extra_link_dict) for task in found.tasks}
    both = ["Experiment page", "Trial page"]
    assert links == {
        "plan": ["Experiment page"], "trial": both, "alone": both, "best": both, "gang": ["Queue page"], "wait": both,
    }  # fmt: skip
    keys = {link.xcom_key for task in found.tasks for link in task.operator_extra_link_dict.values()}
    assert keys == {"_link_TrialLink", "_link_ExperimentLink", "_link_QueueLink"}


def test_the_provider_info_names_every_link() -> None:
    named = get_provider_info()["extra-links"]
    classes = [getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in named]
    assert {cls.__name__ for cls in classes} == {"TrialLink", "ExperimentLink", "QueueLink"}


class Task(SimpleNamespace):
    """A task with the links that a test notes."""


@pytest.fixture
def task() -> Any:
    return Task(log=SimpleNamespace(debug=lambda *words: None))


def test_noted_pages_can_be_stored_at_once_and_are_stored_again_at_the_end(task: Any) -> None:
    pushed: dict[str, str] = {}
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))}
    pages.note_pages(task, trial_id=7)
    pages.store_pages(task, context)
    pages.note_pages(task, experiment_id=3)
    assert pushed == {"_link_TrialLink": "plugin/dtrain/trials/7"}
    assert pages.TrialLink().get_link(task, ti_key=None) == "plugin/dtrain/trials/7"  # type: ignore[arg-type]
    assert pages.ExperimentLink().get_link(task, ti_key=None) == "plugin/dtrain/experiments/3"  # type: ignore[arg-type]
    assert pages.QueueLink().get_link(task, ti_key=None) == ""  # type: ignore[arg-type]


def test_a_task_that_resumes_sends_only_the_links_of_its_user_again(task: Any) -> None:
    own = SimpleNamespace(name="Report")
    task.operator_extra_links = (pages.TrialLink(), own)
    pages.keep_pages(task)
    assert task.operator_extra_links == (own,)


def test_a_link_that_airflow_does_not_take_fails_nothing(task: Any) -> None:
    def refuse(**values: object) -> None:
        raise RuntimeError("no")

    pages.note_pages(task, trial_id=7)
    pages.store_pages(task, {"ti": SimpleNamespace(xcom_push=refuse)})  # type: ignore[typeddict-item]
    assert pages.TrialLink().get_link(task, ti_key=None) == "plugin/dtrain/trials/7"  # type: ignore[arg-type]


def test_a_task_of_several_trials_leads_to_the_list_of_trials(task: Any) -> None:
    pages.note_pages(task, experiment_id=3, has_several=True)
    assert pages.TrialLink().get_link(task, ti_key=None) == "plugin/dtrain/experiments/3?tab=trials"  # type: ignore[arg-type]
    assert pages.ExperimentLink().get_link(task, ti_key=None) == "plugin/dtrain/experiments/3"  # type: ignore[arg-type]
