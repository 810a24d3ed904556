"""Experiment files of Determined: every field of its last published schema is read, ignored with a warning, or refused.

Source: the schemas in the Python package determined 0.17.15, and fields that versions up to 0.38 added.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.errors import ConfigError

BASE: dict[str, Any] = {
    "name": "x",
    "entrypoint": "model_def:Trial",
    "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 10}},
}
STORAGES = {
    "s3": {"type": "s3", "bucket": "b"},
    "gcs": {"type": "gcs", "bucket": "b"},
    "azure": {"type": "azure", "container": "c"},
    "shared_fs": {"type": "shared_fs", "host_path": "/mnt"},
    "directory": {"type": "directory", "container_path": "/mnt"},
}
SEARCHERS = {
    "random": {"max_trials": 4},
    "grid": {},
    "async_halving": {"max_trials": 4, "num_rungs": 2},
    "adaptive_asha": {"max_trials": 4},
}

#: Fields that are read, as ``section: {field: value}``; "" is the document.
READ: dict[str, dict[str, Any]] = {
    "": {
        "bind_mounts": [{"host_path": "/a", "container_path": "/b", "read_only": True, "propagation": "rprivate"}],
        "checkpoint_policy": "all",
        "data": {"url": "x"},
        "description": "x",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"global_batch_size": 32, "lr": {"type": "log", "base": 10, "minval": -3, "maxval": 1}},
        "labels": ["a", "b"],
        "log_policies": [{"pattern": "CUDA error", "action": {"type": "exclude_node"}}],
        "max_restarts": 5,
        "min_checkpoint_period": {"batches": 0},
        "min_validation_period": {"epochs": 1},
        "perform_initial_validation": False,
        "records_per_epoch": 0,
        "scheduling_unit": 100,
    },
    "optimizations": {
        "aggregation_frequency": 1,
        "auto_tune_tensor_fusion": False,
        "average_aggregated_gradients": True,
        "average_training_metrics": True,
        "gradient_compression": False,
        "mixed_precision": "O0",
        "tensor_fusion_threshold": 64,
    },
    "profiling": {"enabled": False},
    "resources": {
        "devices": [],
        "is_single_node": False,
        "max_slots": None,
        "priority": None,
        "resource_pool": "",
        "shm_size": None,
        "slots_per_trial": 1,
        "weight": 1,
    },
    "environment": {"image": {"cpu": "a", "gpu": "b"}, "environment_variables": ["A=1"]},
    "reproducibility": {"experiment_seed": 7},
    "searcher.single": {"smaller_is_better": True, "source_trial_id": None, "source_checkpoint_uuid": None},
    "searcher.random": {"max_concurrent_trials": 16},
    "searcher.grid": {"max_concurrent_trials": 16},
    "searcher.async_halving": {"divisor": 4, "max_concurrent_trials": 16},
    "searcher.adaptive_asha": {
        "bracket_rungs": [],
        "divisor": 4,
        "max_concurrent_trials": 16,
        "max_rungs": 5,
        "mode": "standard",
    },
    "storage.s3": {"access_key": None, "secret_key": None, "endpoint_url": None, "prefix": None, "save_trial_best": 1},
    "storage.gcs": {"prefix": None, "save_experiment_best": 0},
    "storage.azure": {"connection_string": "a", "save_trial_latest": 1},
    "storage.shared_fs": {"storage_path": "a", "propagation": "rprivate"},
}

#: Fields that have no effect here and are one warning each.
IGNORED: dict[str, dict[str, Any]] = {
    "": {
        "data_layer": {"type": "shared_fs"},
        "debug": False,
        "integrations": {},
        "internal": {"native": None},
        "project": "x",
        "retention_policy": {"log_retention_days": 3},
        "security": {"kerberos": {}},
        "tensorboard_storage": {"type": "shared_fs"},
        "workspace": "x",
    },
    "optimizations": {"grad_updates_size_file": None, "tensor_fusion_cycle_time": 5},
    "profiling": {"begin_on_batch": 0, "end_after_batch": None, "sync_timings": True},
    "resources": {"agent_label": "", "native_parallel": False},
    "environment": {
        "add_capabilities": [],
        "drop_capabilities": [],
        "force_pull_image": False,
        "pod_spec": None,
        "ports": {},
        "proxy_ports": [],
        "registry_auth": None,
    },
    "searcher.adaptive_asha": {"stop_once": True},
    "searcher.async_halving": {"stop_once": True},
    "storage.shared_fs": {"checkpoint_path": "a", "container_path": "/b", "tensorboard_path": "c"},
}

#: Documents that are refused: field, value, path of the problem, words that say what to do.
REFUSED = [
    ("searcher", {"name": "custom"}, "searcher.name", "start each trial from your own DAG with a TrialOperator"),
    ("searcher", {"name": "pbt", "population_size": 2}, "searcher.name", "use adaptive_asha"),
    ("searcher", {"name": "adaptive", "budget": {"batches": 9}}, "searcher.name", "use adaptive_asha"),
    ("searcher", {"name": "adaptive_simple"}, "searcher.name", "use adaptive_asha"),
    ("searcher", {"name": "sync_halving"}, "searcher.name", "use async_halving"),
    ("searcher", {**BASE["searcher"], "source_trial_id": 3}, "searcher.source_trial_id", "path or URL of that trial"),
    (
        "searcher",
        {**BASE["searcher"], "source_checkpoint_uuid": "a-b"},
        "searcher.source_checkpoint_uuid",
        "set searcher.source_checkpoint",
    ),
    ("checkpoint_storage", {"type": "hdfs", "hdfs_url": "a"}, "checkpoint_storage.type", "use directory, or use s3"),
    ("resources", {"slots": 4}, "resources.slots", "did you mean slots_per_trial"),
    ("searcher", {"name": "single", "metric": "a", "max_length": {}}, "searcher.max_length", "exactly one of batches"),
]


def _with(section: str, field: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(BASE)
    group, _, kind = section.partition(".")
    if group == "searcher":
        document["searcher"].update({"name": kind, **SEARCHERS.get(kind, {}), field: value})
    elif group == "storage":
        document["checkpoint_storage"] = {**STORAGES[kind], field: value}
    elif group:
        document[group] = {field: value}
    else:
        document[field] = value
    return document


def _cases(table: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(_with(section, field, value), id=f"{section}.{field}".strip("."))
        for section, fields in table.items()
        for field, value in fields.items()
    ]


@pytest.mark.parametrize("document", _cases(READ))
def test_a_field_of_determined_is_read_without_a_warning(document: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ExperimentConfig.model_validate(document)


@pytest.mark.parametrize("document", _cases(IGNORED))
def test_a_field_without_a_counterpart_is_one_warning(document: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="a field of Determined without a counterpart here") as caught:
        ExperimentConfig.model_validate(document)
    assert len(caught) == 1


@pytest.mark.parametrize(("field", "value", "path", "words"), REFUSED)
def test_a_refusal_names_the_field_and_says_what_to_do(field: str, value: Any, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ExperimentConfig.model_validate({**BASE, field: value})
    messages = [problem.message for problem in caught.value.problems if problem.path == path]
    assert any(words in message for message in messages), caught.value
