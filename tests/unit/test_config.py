from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig, ForeignFieldWarning
from airflow_provider_dtrain.core.config.experiment import HARNESS
from airflow_provider_dtrain.core.config.merge import RESET, Override
from airflow_provider_dtrain.errors import ConfigError


def problems(document: Any) -> dict[str, str]:
    """Return path -> message of everything that is wrong with a document."""
    with pytest.raises(ConfigError) as error:
        ExperimentConfig.model_validate(document)
    return {problem.path: problem.message for problem in error.value.problems}


def at(path: str, value: object) -> dict[str, Any]:
    """Return a document with one field."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def test_an_empty_document_has_the_documented_defaults() -> None:
    config = ExperimentConfig.model_validate({})
    assert (config.resources.slots_per_trial, config.resources.priority) == (1, 42)
    assert (config.searcher.name, config.searcher.smaller_is_better) == ("single", True)
    assert (config.scheduling_unit, config.max_restarts, config.preemption_timeout) == (100, 5, 3600)
    assert (config.checkpoint_policy, config.network_interface) == ("best", "auto")
    storage = config.checkpoint_storage
    assert (storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest) == (0, 1, 1)
    assert config.optimizations.tensor_fusion_threshold == 25
    assert [policy.action for policy in config.log_policies] == ["cancel_retries", "exclude_host"]
    assert (config.launch, config.on_unplaceable) == (None, "fail")
    assert (config.warm_start, config.warm_idle) == (True, 600.0)


def test_yaml_text_is_parsed_and_validated() -> None:
    config = ExperimentConfig.parse_yaml("name: x\nhyperparameters: {lr: 1e-3}\nresources: {slots_per_trial: 4}\n")
    assert config.hyperparameters == {"lr": 0.001}
    assert config.resources.slots_per_trial == 4


def test_a_value_below_its_limit_is_named_with_its_path() -> None:
    with pytest.raises(ConfigError) as error:
        ExperimentConfig.model_validate({"resources": {"slots_per_trial": -1}})
    assert "resources.slots_per_trial: -1 is below 0" in str(error.value)


def test_all_problems_come_at_once() -> None:
    document = {
        "resources": {"slots_per_trial": -1, "priority": 100, "weight": 0},
        "hyperparameters": {"a": {"type": "int", "minval": 2, "maxval": 1}, "b": {"c": {"type": "uniform"}}},
        "searcher": {"name": "random", "max_trials": "3"},
        "environment": {"variables": {"A": "1\n2", "1B": "x"}},
        "log_policies": [{"name": "a", "pattern": "("}],
        "checkpoint_storage": {"type": "directory"},
        "nmae": "x",
    }
    assert set(problems(document)) == {
        "resources.slots_per_trial",
        "resources.priority",
        "resources.weight",
        "hyperparameters.a.minval",
        "hyperparameters.b.c.type",
        "searcher.max_trials",
        "searcher.metric",
        "environment.variables.A",
        "environment.variables.1B",
        "log_policies.0.pattern",
        "checkpoint_storage.container_path",
        "nmae",
    }


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("resources.priority", 100, "100 is above 99"),
        ("resources.priority", 0, "0 is below 1"),
        ("resources.weight", 0, "0 is not above 0"),
        ("resources.slots_per_trial", "4", "'4' is not an integer"),
        ("resources.slots_per_trial", 1.5, "1.5 is not an integer"),
        ("resources.slots_per_trial", True, "True is not an integer"),
        ("resources", [1], "[1] is not a map of fields"),
        ("resources.is_single_host", "yes", "'yes' is not true or false"),
        ("reproducibility.experiment_seed", 2**31, "2147483648 is above 2147483647"),
        ("optimizations.gradient_compression", "zip", "not one of False, 'fp16', 'bf16', 'powersgd'"),
        ("optimizations.mixed_precision", "O1", "not one of 'none', 'fp16', 'bf16', 'bf16-true'"),
        ("checkpoint_policy", "some", "not one of 'best', 'all', 'none'"),
        ("labels", "a", "'a' is not a list"),
        ("labels", ["a", 1], "1 is not a string"),
        ("name", 5, "5 is not a string"),
        ("name", "a\u200bb", "has a control character"),
        ("name", "a\ue000b", "cannot be printed"),
        ("description", "a\x00b", "NUL"),
        ("name", "x" * 129, "at most 128"),
        ("name", "a\nb", "newline"),
        ("resources.pool", "a b", "is not a name"),
        ("resources.pool", "$(id)", "is not a name"),
        ("resources.pool", "a..b", "no '..'"),
        ("resources.pool", "x" * 64, "1 to 63"),
        ("template", "a;b", "is not a name"),
        ("template", "dir/`id`.yaml", "shells act on"),
        ("template", "../x.yaml", "'..'"),
        ("template", ["a", "b"], "one template at most"),
        ("model_dir", "../code", "'..'"),
        ("model_dir", "a/../../b", "'..'"),
        ("model_dir", "", "empty"),
        ("model_dir", "a\x00b", "control character"),
        ("entrypoint", "", "empty"),
        ("entrypoint", [], "empty"),
        ("entrypoint", "python 'a", "No closing quotation"),
        ("entrypoint", "cd x && python a.py", "would need a shell"),
        ("entrypoint", "python a.py > log", "would need a shell"),
        ("entrypoint", "python a.py; echo", "would need a shell"),
        ("entrypoint", "python a.py --data $DATA", "would need a shell"),
        ("entrypoint", ["python", 3], "must be a command"),
        ("entrypoint", "python a\x00.py", "NUL"),
        ("entrypoint", ["python", "a\x00"], "NUL"),
        ("entrypoint", "python -m determined.launch.horovod train.py", "determined.launch.horovod is a launcher"),
        ("environment.python", "bin/python", "neither an absolute path nor the bare name"),
        ("environment.python", "/opt/../bin/python", "neither"),
        ("environment.python", "python; id", "neither"),
        ("environment.python", 3.1, "Quote the version: '3.12'"),
        ("environment.requirements", "/site/requirements.txt", "a path relative to model_dir is accepted"),
        ("environment.requirements", "../requirements.txt", "'..'"),
        ("environment.setup", "/site/setup.sh", "a path relative to model_dir is accepted"),
        ("environment.wheels", "../wheels", "'..'"),
        ("environment.index_conn_id", "https://packages.example/simple", "is not a name"),
        ("environment.variables", {"A B": "x"}, "is not a variable name"),
        ("environment.variables", {"RANK": "0"}, "is set for each rank"),
        ("environment.variables", {"A": True}, "quote the value"),
        ("environment.variables", {"A": 0.5}, "quote the value"),
        ("environment.variables", {"A": "x\x00"}, "NUL"),
        ("environment.variables", {"A\nB": "x"}, "has a control character"),
        ("environment.variables", ["A"], "of the form NAME=value"),
        ("environment.variables", ["A=1", "A=2"], "given twice"),
        ("environment.image", 5, "the name of an image"),
        ("bind_mounts", [{"host_path": "x", "container_path": "/y"}], "not an absolute path"),
        ("bind_mounts", [{"host_path": "/a/../b", "container_path": "/y"}], "'..'"),
        (
            "bind_mounts",
            [{"host_path": "/a", "container_path": "/y"}, {"host_path": "/b", "container_path": "/y/"}],
            "twice",
        ),
        ("resources.devices", ["a:b:c:d"], "host_path[:container_path[:mode]]"),
        ("resources.shm_size", "big", "is not a size"),
        ("network_interface", "eth0; id", "network interface"),
        ("network_interface", "x" * 16, "network interface"),
        ("port_range", "29500", "is not a range"),
        ("port_range", "30000-29000", "is not a range"),
        ("min_validation_period", {"batches": 1, "epochs": 1}, "batches and epochs given; exactly one"),
        ("min_validation_period", {}, "no unit given"),
        ("min_checkpoint_period", {"batches": -1}, "-1 is below 0"),
        ("scheduling_unit", 0, "0 is below 1"),
        ("max_restarts", -1, "-1 is below 0"),
        ("preemption_timeout", 0, "0 is not above 0"),
        ("log_policies", [{"action": "exclude_host"}], "needs a name or a pattern"),
        ("log_policies", [{"name": "a", "action": "reboot"}], "not one of 'cancel_retries', 'exclude_host'"),
        ("searcher.name", "asha", "is not one of single, random, grid, async_halving, adaptive_asha, optuna"),
        ("checkpoint_storage.type", "azur", "is not one of shared_fs, directory, s3, gcs, azure; did you mean azure?"),
        ("checkpoint_storage.type", "run folder", "is not one of"),
        ("launch", "each", "not one of 'per_slot', 'per_host'"),
        ("on_unplaceable", "retry", "not one of 'fail', 'wait'"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_accepted(path: str, value: object, words: str) -> None:
    found = problems(at(path, value))
    assert any(where.startswith(path) and words in message for where, message in found.items()), found


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({"resorces": {}}, "resorces", "did you mean resources?"),
        (at("resources.slot_per_trial", 1), "resources.slot_per_trial", "did you mean slots_per_trial?"),
        ({"slots_per_trial": 1}, "slots_per_trial", "did you mean resources.slots_per_trial?"),
        (at("resources.resource_pol", 1), "resources.resource_pol", "did you mean resource_pool?"),
        (at("searcher", {"max_trials": 1}), "searcher.name", "missing; max_trials is a field of random, async"),
        (at("searcher", {"name": "grid", "max_trials": 1}), "searcher.max_trials", "'grid' does not have this field"),
        (at("searcher", {"name": "optuna", "samplr": 1}), "searcher.samplr", "did you mean sampler?"),
        (at("bind_mounts", [{"hostpath": 1}]), "bind_mounts.0.hostpath", "did you mean host_path?"),
        (at("profiling", {"zzz": 1}), "profiling.zzz", "known here: "),
        (at("task_container_defaults", {"x": 1}), "task_container_defaults", "unknown field"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(document: Any, path: str, words: str) -> None:
    assert words in problems(document)[path]


def test_synonyms_of_determined_are_stored_under_our_names() -> None:
    config = ExperimentConfig.model_validate(
        {
            "resources": {"resource_pool": "a", "is_single_node": True},
            "environment": {"environment_variables": ["A=1", "B=x=y", "C="]},
            "log_policies": [
                {"pattern": "x", "action": "exclude_node"},
                {"name": "n", "action": {"type": "exclude_node"}},
            ],
            "task_container_defaults": {"dtrain_network_interface": "ib0"},
        }
    )
    assert config.resources.pool == "a"
    assert config.resources.is_single_host
    assert config.environment.variables == {"A": "1", "B": "x=y", "C": ""}
    assert [policy.action for policy in config.log_policies] == ["exclude_host", "exclude_host"]
    assert config.network_interface == "ib0"


def test_a_field_and_its_synonym_together_are_refused() -> None:
    found = problems({"resources": {"pool": "a", "resource_pool": "b"}})
    assert found == {"resources.pool": "given together with its synonym resources.resource_pool; give one of them"}


def test_each_determined_key_that_is_not_here_is_one_warning() -> None:
    document = {
        "slurm": {"a": 1},
        "pbs": {},
        "integrations": {},
        "retention_policy": {},
        "environment": {"pod_spec": {}, "registry_auth": {"username": "me", "password": "x", "email": "m@e"}},
    }
    with pytest.warns(ForeignFieldWarning) as caught:
        ExperimentConfig.model_validate(document)
    assert sorted(str(item.message).split(":")[0] for item in caught) == [
        "environment.pod_spec",
        "environment.registry_auth.email",
        "integrations",
        "pbs",
        "retention_policy",
        "slurm",
    ]


@pytest.mark.parametrize(
    ("given", "project"),
    [
        ({"project": "p"}, "p"),
        ({"workspace": "w", "project": "p"}, "w/p"),
        ({"workspace": "w"}, "w"),
        ({"workspace": None, "project": "p"}, "p"),
        ({"workspace": "w", "project": None}, "w"),
        ({}, None),
    ],
)
def test_a_project_is_that_of_determined_with_its_workspace_before_it(given, project) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ExperimentConfig.model_validate(given).project == project


@pytest.mark.parametrize("given", [{"project": 3}, {"workspace": 3}, {"project": "a\nb"}, {"workspace": "w" * 129}])
def test_the_name_of_a_project_is_checked(given) -> None:
    assert "project" in problems(given)


def test_none_means_absent() -> None:
    config = ExperimentConfig.model_validate({"resources": {"pool": None, "priority": None}, "data": None})
    assert (config.resources.pool, config.resources.priority, config.data) == (None, 42, {})


def test_tags_without_a_template_mean_the_value_or_none() -> None:
    config = ExperimentConfig.model_validate({"labels": Override(["a"]), "resources": {"priority": RESET}})
    assert (config.labels, config.resources.priority) == (["a"], 42)


@pytest.mark.parametrize(
    ("entrypoint", "command", "trial_class"),
    [
        ("python train.py --lr '1 2'", ("python", "train.py", "--lr", "1 2"), None),
        (["python", "a b.py", "&&"], ("python", "a b.py", "&&"), None),
        ("bash -c 'a && b $X'", ("bash", "-c", "a && b $X"), None),
        ("model_def:Trial", (*HARNESS, "model_def:Trial"), "model_def:Trial"),
        ("pkg.model:MyTrial", (*HARNESS, "pkg.model:MyTrial"), "pkg.model:MyTrial"),
        ("./run.sh", ("./run.sh",), None),
    ],
)
def test_an_entrypoint_is_a_command_or_a_trial_class(
    entrypoint: str | list[str], command: tuple[str, ...], trial_class: str | None
) -> None:
    config = ExperimentConfig.model_validate({"entrypoint": entrypoint})
    assert (config.command, config.trial_class) == (command, trial_class)


@pytest.mark.parametrize(
    ("path", "value", "stored"),
    [
        ("optimizations.gradient_compression", True, "fp16"),
        ("optimizations.gradient_compression", False, False),
        ("optimizations.mixed_precision", False, "none"),
        ("resources.shm_size", "4g", "4g"),
        ("resources.shm_size", 4096, 4096),
        ("environment.variables", {"A": 1}, {"A": "1"}),
        ("environment.image", {"cpu": "a", "cuda": "b"}, {"cpu": "a", "cuda": "b"}),
        ("name", "mnist pytorch const", "mnist pytorch const"),
        ("model_dir", "/srv/code", "/srv/code"),
        ("template", "dir/base.yaml", "dir/base.yaml"),
        ("labels", ["a", "b", "a"], ["a", "b"]),
    ],
)
def test_accepted_spellings(path: str, value: object, stored: object) -> None:
    found: Any = ExperimentConfig.model_validate(at(path, value))
    for name in path.split("."):
        found = getattr(found, name)
    assert found == stored
    assert type(found) is type(stored)


def test_devices_are_read_in_both_forms() -> None:
    config = ExperimentConfig.model_validate(
        at("resources.devices", ["/dev/a", "/dev/b:/dev/c:rwm", {"host_path": "/dev/d", "container_path": "/dev/e"}])
    )
    assert [(item.host_path, item.container_path, item.mode) for item in config.resources.devices] == [
        ("/dev/a", "/dev/a", "mrw"),
        ("/dev/b", "/dev/c", "rwm"),
        ("/dev/d", "/dev/e", "mrw"),
    ]


@pytest.mark.parametrize("text", ["0", "{batches: 0}"])
def test_a_period_of_zero_is_off(text: str) -> None:
    assert ExperimentConfig.parse_yaml(f"min_validation_period: {text}").min_validation_period.is_zero


def test_storage_path_stays_below_host_path() -> None:
    storage = {"type": "shared_fs", "host_path": "/srv/nfs", "storage_path": "/srv/nfs2"}
    assert "is not below host_path" in problems({"checkpoint_storage": storage})["checkpoint_storage"]
    assert ExperimentConfig.model_validate({"checkpoint_storage": {**storage, "storage_path": "/srv/nfs/a"}})


@pytest.mark.parametrize("document", [[], "a", 5, None])
def test_something_else_than_a_map_is_refused(document: object) -> None:
    assert "is not a map of fields" in problems(document)[""]


def test_a_document_that_contains_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["data"] = endless
    with pytest.raises(ConfigError, match="nested deeper"):
        ExperimentConfig.model_validate(endless)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_values_that_json_cannot_carry_are_refused(value: object) -> None:
    assert "hyperparameters.a" in problems({"hyperparameters": {"a": value}})


def test_validation_changes_nothing_in_its_input() -> None:
    document = {"resources": {"resource_pool": "a"}, "environment": {"environment_variables": ["A=1"]}, "pbs": 1}
    before = json.dumps(document)
    with pytest.warns(ForeignFieldWarning):
        ExperimentConfig.model_validate(document)
    assert json.dumps(document) == before


def test_a_secret_is_in_no_message_and_no_repr() -> None:
    storage = {"type": "s3", "bucket": "b", "access_key": "hunter2\n", "secret_key": 5150}
    with pytest.raises(ConfigError) as error:
        ExperimentConfig.model_validate({"checkpoint_storage": storage})
    assert "hunter2" not in str(error.value)
    assert "5150" not in str(error.value)
    good = {"type": "s3", "bucket": "b", "access_key": "hunter2", "secret_key": "hunter2"}
    config = ExperimentConfig.model_validate({"checkpoint_storage": good, "data": {"secrets": {"a": "hunter2"}}})
    assert "hunter2" not in repr(config)


def test_a_configuration_has_a_json_schema() -> None:
    schema = ExperimentConfig.model_json_schema()
    assert {"resources", "searcher", "checkpoint_storage", "entrypoint"} <= set(schema["properties"])
