"""Experiment files of Determined: every field of its last published schema is read, ignored with a warning, or refused.

Source: the schemas in the Python package determined 0.17.15, and fields that versions up to 0.38 added. The features
are those of the public experiment files of determined-examples and of the examples of determined.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble, unsupported
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
    "environment": {
        "image": {"cpu": "a", "gpu": "b"},
        "environment_variables": ["A=1"],
        "add_capabilities": ["CAP_SYS_PTRACE"],
        "drop_capabilities": ["MKNOD"],
        "force_pull_image": True,
        "registry_auth": None,
    },
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
        "retention_policy": {"log_retention_days": 3},
        "security": {"kerberos": {}},
        "tensorboard_storage": {"type": "shared_fs"},
    },
    "optimizations": {"grad_updates_size_file": None, "tensor_fusion_cycle_time": 5},
    "profiling": {"begin_on_batch": 0, "end_after_batch": None, "sync_timings": True},
    "resources": {"agent_label": "", "native_parallel": False},
    "environment": {
        "pod_spec": None,
        "ports": {},
        "proxy_ports": [],
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
    (
        "searcher",
        {"name": "adaptive_asha", "metric": "a", "max_trials": 500},
        "searcher.max_length",
        "adaptive_asha requires it, or max_time and time_metric",
    ),
    ("searcher", {"name": "custom", "metric": "a", "unit": "batches"}, "searcher.name", "use optuna"),
    ("defaults", [{"searcher": "single"}], "defaults", "as Hydra's option --cfg job prints it"),
    ("bind_mounts", [{"host_path": None, "container_path": "/data"}], "bind_mounts.0.host_path", "required"),
    (
        "entrypoint",
        "python3 -m determined.launch.deepspeed --trial model:MyTrial",
        "entrypoint",
        "name a script that calls deepspeed.init_distributed()",
    ),
    (
        "entrypoint",
        ["python3", "-m", "determined.launch.autodeepspeed", "model:MyTrial"],
        "entrypoint",
        "runs DeepSpeedTrial classes. DeepSpeedTrial classes are not supported: name a script",
    ),
    ("entrypoint", "python3 -m determined.launch.horovod --trial model:MyTrial", "entrypoint", "module:TrialClass"),
]

_LAUNCH = "python3 -m determined.launch.torch_distributed"
#: Features of public files: fields of the document, and the field of each notice.
FEATURES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "script that is a program": ({"entrypoint": "./stage.py launcher"}, ()),
    "script in a list": ({"entrypoint": ["python", "run.py"]}, ()),
    "no length for a script": ({"entrypoint": "python3 run.py", "searcher": {"name": "single", "metric": "x"}}, ()),
    "launcher of torch": ({"entrypoint": f"{_LAUNCH}\n python3 run.py --steps 5"}, ("entrypoint",)),
    "launcher of torch with dashes": ({"entrypoint": f"{_LAUNCH} -- python3 run.py"}, ("entrypoint",)),
    "launcher of torch with a class": ({"entrypoint": f"{_LAUNCH} --trial package.models:Detector"}, ("entrypoint",)),
    "launcher of DeepSpeed with a script": (
        {"entrypoint": "python -m determined.launch.deepspeed\n python run.py --deepspeed zero.json --fp16"},
        ("entrypoint",),
    ),
    "epochs of a script": (
        {
            "entrypoint": "python3 run.py",
            "records_per_epoch": 900,
            "searcher": {"name": "single", "metric": "x", "max_length": {"epochs": 5}},
        },
        ("records_per_epoch",),
    ),
    "length as a number": ({"searcher": {"name": "single", "metric": "x", "max_length": 100}}, ()),
    "length in records": (
        {
            "searcher": {"name": "single", "metric": "x", "max_length": {"records": 9000}},
            "min_validation_period": {"records": 800},
        },
        (),
    ),
    "no validation but the last": ({"min_validation_period": {"batches": 0}}, ()),
    "length in a metric": (
        {
            "entrypoint": "python3 run.py",
            "hyperparameters": {"lr": {"type": "double", "minval": 0.0001, "maxval": 1.0}},
            "searcher": {
                "name": "adaptive_asha",
                "metric": "x",
                "max_trials": 50,
                "time_metric": "epochs",
                "max_time": 20,
            },
        },
        (),
    ),
    "ASHA with all its fields": (
        {
            "hyperparameters": {"a": {"b": {"type": "log", "base": 10, "minval": -5, "maxval": -2}}},
            "searcher": {
                "name": "adaptive_asha",
                "metric": "x",
                "max_trials": 1000,
                "max_length": {"batches": 156200},
                "mode": "aggressive",
                "max_rungs": 4,
                "divisor": 4,
                "max_concurrent_trials": 16,
            },
        },
        (),
    ),
    "grid of maps and counted ranges": (
        {
            "hyperparameters": {
                "task": {"type": "categorical", "vals": [{"name": "a", "shots": 5}, {"name": "b", "shots": 0}]},
                "call": {"scale": {"type": "double", "minval": 5.0, "maxval": 20.0, "count": 4}, "ids": []},
                "one": {"type": "categorical", "vals": [0.1]},
            },
            "searcher": {"name": "grid", "metric": "x", "max_length": {"batches": 100}, "max_concurrent_trials": 2},
        },
        (),
    ),
    "hyperparameters of any shape": (
        {
            "hyperparameters": {
                "merge": None,
                "noise": "0.4 0.9",
                "rates": [0.4, 0.3],
                "overwrite": {"zero_optimization.stage": 2},
                "path": "",
                "flag": True,
            }
        },
        (),
    ),
    "image of each device": ({"environment": {"image": {"gpu": "a:1", "cpu": "b:1"}}}, ("environment.image",)),
    "one image": (
        {"environment": {"image": "a/b:1", "force_pull_image": True}},
        ("environment.force_pull_image", "environment.image"),
    ),
    "shared memory in bytes": ({"resources": {"shm_size": 17179869184}}, ("resources.shm_size",)),
    "folder of the host": ({"bind_mounts": [{"host_path": "/tmp", "container_path": "/tmp", "read_only": False}]}, ()),
    "folder below two other paths": (
        {"bind_mounts": [{"host_path": "/tmp/", "container_path": path} for path in ("/data", "/root/.cache")]},
        ("bind_mounts",),
    ),
    "folder that must not be written": (
        {"bind_mounts": [{"host_path": "/a", "container_path": "/b", "read_only": True}]},
        ("bind_mounts", "bind_mounts"),
    ),
    "checkpoints to keep, without a storage": ({"checkpoint_storage": {"save_trial_latest": 5}}, ()),
    "no checkpoints": ({"checkpoint_policy": "none", "scheduling_unit": 2000}, ()),
    "old profiler": (
        {"profiling": {"enabled": True, "begin_on_batch": 0, "end_after_batch": None, "sync_timings": True}},
        ("profiling.begin_on_batch", "profiling.end_after_batch", "profiling.sync_timings"),
    ),
    "ports": (
        {"environment": {"proxy_ports": [{"proxy_port": 8265, "proxy_tcp": True}]}},
        ("environment.proxy_ports",),
    ),
    "place in the cluster": (
        {
            "workspace": "a",
            "project": "b",
            "debug": False,
            "resources": {"resource_pool": "c", "slots_per_trial": 8, "max_slots": 8},
        },
        ("debug",),
    ),
}


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
        assemble(None, {**BASE, field: value})
    messages = [problem.message for problem in caught.value.problems if problem.path == path]
    assert any(words in message for message in messages), caught.value


@pytest.mark.parametrize(("fields", "noticed"), FEATURES.values(), ids=FEATURES)
def test_a_feature_of_public_files_validates_with_a_notice_per_field_without_effect(
    fields: dict[str, Any], noticed: tuple[str, ...]
) -> None:
    effective = assemble(None, {**BASE, **fields})
    assert unsupported(effective.config, effective.origins) == []
    assert [notice.partition(":")[0] for notice in effective.warnings] == list(noticed)
