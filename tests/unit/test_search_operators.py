"""Structure of a DAG with searches before a run, and the names of its trials."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, AssetAlias
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_dtrain.core.search.names import MAX_CHARS, trial_name
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import MAP_INDEX_TEMPLATE, TrialOperator
from airflow_provider_dtrain.task_groups import ExperimentGroup, experiment

SPACE = {"lr": {"type": "log", "minval": -4, "maxval": -1}, "bs": {"type": "categorical", "vals": [1]}, "epochs": 8}


def dag(**options: Any) -> tuple[DAG, ExperimentGroup]:
    with DAG("searched", schedule=None) as made:
        group = experiment("search.yaml", **options)
    return made, group


def test_an_experiment_is_a_plan_mapped_trials_and_a_best_one() -> None:
    made, group = dag(deferrable=True)
    tasks = made.task_dict
    below = {name: sorted(task.downstream_task_ids) for name, task in tasks.items()}
    assert below == {
        "experiment.plan": ["experiment.best", "experiment.trial"],
        "experiment.trial": ["experiment.best"],
        "experiment.best": [],
    }
    trial = tasks["experiment.trial"]
    assert isinstance(trial, MappedOperator)
    assert trial.partial_kwargs["deferrable"] is True
    assert trial.retries == 3, "as one trial has"
    assert tasks["experiment.best"].trigger_rule == "all_done"
    assert group.best is tasks["experiment.best"]
    assert group.output.operator is group.best  # type: ignore[attr-defined]


def test_a_dag_is_the_same_at_every_parse() -> None:
    first, second = (json.dumps(DagSerialization.to_dict(dag(name="one")[0]), sort_keys=True) for _ in range(2))
    assert first == second


def test_a_group_can_be_wired_and_there_may_be_several() -> None:
    with DAG("searched", schedule=None) as made:
        first = experiment("a.yaml", name="a", group_id="first")
        second = experiment({"name": "b"}, group_id="second")
        first >> second
    assert made.task_dict["first.best"].downstream_task_ids == {"second.plan"}
    DagSerialization.from_dict(DagSerialization.to_dict(made))


@pytest.mark.parametrize(
    ("config", "name", "known"),
    [
        ({"name": "digits"}, None, "digits"),
        ({"name": "digits"}, "mine", "mine"),
        ("digits.yaml", "mine", "mine"),
        ("digits.yaml", None, None),
        ({"name": "{{ params.name }}"}, None, None),
        ({"entrypoint": "python x.py"}, None, None),
    ],
)
def test_airflow_sees_the_alias_when_the_dag_file_says_the_name(config: Any, name: Any, known: str | None) -> None:
    with DAG("searched", schedule=None) as made:
        experiment(config, name=name)
    outlets = made.task_dict["experiment.best"].outlets
    assert outlets == ([AssetAlias(f"dtrain-best-{known}")] if known else [])


def test_only_mapped_trials_are_named_after_their_hyperparameters() -> None:
    with DAG("searched", schedule=None) as made:
        plan = PlanTrialsOperator(task_id="plan", config="search.yaml")
        TrialOperator.partial(task_id="mapped").expand(trial=plan.output)
        TrialOperator.partial(task_id="own", map_index_template="{{ 1 }}").expand(trial=plan.output)
        TrialOperator(task_id="alone", config="one.yaml")
        SelectBestTrialOperator(task_id="best", plan=plan.output)
    found = {name: made.task_dict[name].map_index_template for name in ("mapped", "own", "alone")}  # type: ignore[union-attr]
    assert found == {"mapped": MAP_INDEX_TEMPLATE, "own": "{{ 1 }}", "alone": None}


@pytest.mark.parametrize(
    ("trial", "name"),
    [
        ({"number": 3, "hparams": {"lr": 0.1}, "search_id": 1, "name": "3 | lr=0.1"}, "3 | lr=0.1"),
        ({"number": 3, "hparams": {"lr": 3e-4, "bs": 256}}, "3 | bs=256 lr=3e-4"),
        ({"hparams": {"lr": 1.0}}, "lr=1.0"),
        ({"number": 0, "hparams": {}, "name": "number 0"}, "number 0"),
        (None, ""),
    ],
)
def test_a_task_knows_the_name_of_its_trial(trial: dict[str, Any] | None, name: str) -> None:
    assert TrialOperator(task_id="trial", config={}, trial=trial).map_index_name == name


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"lr": 0.000312345, "bs": 256, "epochs": 8}, "3 | bs=256 lr=3.12e-4"),
        ({"lr": 1e-06, "bs": True, "epochs": 8}, "3 | bs=true lr=1e-6"),
        ({"lr": 0.0, "bs": "adam", "epochs": 8}, "3 | bs=adam lr=0.0"),
        ({"lr": 123456.0, "bs": [1, 2], "epochs": 8}, "3 | bs=[1,2] lr=1.23e5"),
        (None, "3 | not drawn yet"),
    ],
)
def test_a_name_has_what_differs_between_trials(values: dict[str, Any] | None, name: str) -> None:
    assert trial_name(3, values, SPACE) == name


def test_values_of_one_name_in_two_groups_keep_their_groups() -> None:
    space = {"a": {"lr": SPACE["lr"], "x": 1}, "b": {"lr": SPACE["lr"]}}
    assert trial_name(0, {"a": {"lr": 0.1, "x": 1}, "b": {"lr": 0.2}}, space) == "0 | a.lr=0.1 b.lr=0.2"
    assert trial_name(0, {"a": {"b": 1}, "a.b": 2}) == '0 | b=1 "a.b"=2'
    assert trial_name(0, {"a": {"b": 1}, "b": 3, "net.lr": 2}) == "0 | a.b=1 b=3 net.lr=2"


def test_a_name_fits_into_the_column_of_airflow() -> None:
    assert len(trial_name(0, {f"name{number}": "x" * 100 for number in range(100)})) == MAX_CHARS


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("trial", [None, {"number": 0, "hparams": {}}, {"number": 3, "hparams": {"lr": 0.1}}])
def test_the_name_of_a_mapped_task_is_text_in_every_dag(is_native: bool, trial: dict[str, Any] | None) -> None:
    task = TrialOperator(task_id="trial", config={}, trial=trial)
    dag = DAG("any", schedule=None, render_template_as_native_obj=is_native)
    template = dag.get_template_env().from_string(MAP_INDEX_TEMPLATE)
    name = template.render(task=task, ti=SimpleNamespace(map_index=3))
    assert isinstance(name, str), "Airflow asks for its length"
    assert name in {"trial 3", "3 | lr=0.1"}
