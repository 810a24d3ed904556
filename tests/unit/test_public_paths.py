"""Import paths that other tools, DAGs, stored triggers and training scripts rely on, wherever the code is."""

from __future__ import annotations

import importlib

import pytest

PACKAGE = "airflow_provider_dtrain"
CORE = {
    "core.config": ("ExperimentConfig",),
    "errors": ("DtrainError", "UserError", "HostError"),
}
#: A deferred task has its trigger's path in Airflow's database.
TRIGGERS = {
    "triggers.trial": ("TrialTrigger",),
    "triggers.gang": ("GangTrigger",),
    "triggers.experiment": ("ExperimentTrigger",),
}
DAGS = {
    "operators.trial": ("TrialOperator",),
    "operators.config": ("RenderConfigOperator",),
    "operators.diagnose": ("DiagnoseOperator",),
    "operators.gang": ("ReleaseGangOperator",),
    "operators.search": ("PlanTrialsOperator", "SelectBestTrialOperator"),
    "sensors.gang": ("GangSensor",),
    "sensors.experiment": ("ExperimentSensor",),
    "task_groups": ("ExperimentGroup",),
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
