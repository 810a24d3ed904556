"""Import paths that other tools, DAGs, stored triggers and training scripts rely on, wherever the code is."""

from __future__ import annotations

import importlib

import pytest

PACKAGE = "airflow_provider_dtrain"
CORE = {
    "core.merge": ("merge_config", "merge_with_origins"),
    "core.config": ("ExperimentConfig",),
    "core.placement": ("place",),
    "core.resources": ("GangRequest", "Host", "Placement", "Unplaceable"),
    "core.search_space": ("grid", "sample"),
    "core.asha": ("rung_lengths", "brackets", "Rungs"),
    "errors": ("DtrainError", "UserError", "HostError"),
}
#: A task that was deferred by an earlier version has its trigger's path in Airflow's database.
TRIGGERS = {
    "triggers.trial": ("TrialTrigger",),
    "triggers.gang": ("GangTrigger",),
    "triggers.experiment": ("ExperimentTrigger",),
}
DAGS = {
    "operators.trial": ("TrialOperator",),
    "operators.config": ("RenderConfigOperator",),
    "operators.gang": ("ReleaseGangOperator",),
    "operators.search": ("PlanTrialsOperator", "SelectBestTrialOperator"),
    "sensors.gang": ("GangSensor",),
    "sensors.experiment": ("ExperimentSensor",),
    "task_groups": ("Experiment",),
    "dags": ("experiment_dag",),
    "hooks.dtrain": ("DtrainHook",),
    "plugins.dtrain_plugin": ("DtrainPlugin",),
    "get_provider_info": ("get_provider_info",),
}
TRAIN = {
    "train": ("init", "Context", "InvalidHP", "TrainError"),
    "train.pytorch": ("PyTorchTrial", "PyTorchTrialContext", "DataLoader", "Trainer", "init"),
}


@pytest.mark.parametrize(("module", "names"), (CORE | TRIGGERS | DAGS | TRAIN).items())
def test_every_name_is_at_its_path(module, names):
    found = importlib.import_module(f"{PACKAGE}.{module}")
    assert [name for name in names if not hasattr(found, name)] == []


@pytest.mark.parametrize(("module", "names"), TRIGGERS.items())
def test_a_trigger_is_serialized_under_its_own_path(module, names):
    for name in names:
        trigger = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        assert (trigger.__module__, trigger.__qualname__) == (f"{PACKAGE}.{module}", name)


def test_the_rules_of_successive_halving_answer_under_their_public_path():
    from airflow_provider_dtrain.core.asha import Rungs, brackets, rung_lengths

    assert rung_lengths(3, 16, 4) == [1, 4, 16]
    assert sum(trials for _, trials in brackets("standard", 16, 16)) == 16
    assert Rungs(2, 4, 4).report(trial=1, length=4, metric=0.5) == "complete"
