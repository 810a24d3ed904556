from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import (
    MASK,
    UNSUPPORTED,
    ExperimentConfig,
    assemble,
    mask,
    put_secrets,
    refuse_unsupported,
    take_secrets,
    unsupported,
    validate_partial,
)
from airflow_provider_dtrain.core.config.merge import RESET, Override
from airflow_provider_dtrain.core.config.secrets import MOST_SECRETS
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.errors import ConfigError, UnsupportedFieldError

RUN = {"entrypoint": "python train.py"}


def problems(*documents: Any, **options: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        assemble(*documents, **options)
    return {problem.path: problem.message for problem in error.value.problems}


# -- pass one


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"checkpoint_storage": {"save_trial_best": 2}},
        {"checkpoint_storage": {"type": "s3"}},
        {"searcher": {"metric": "loss", "max_length": {"batches": 3}}},
        {"searcher": {"name": "adaptive_asha", "bracket_rungs": [3], "max_trials": 4}},
        {"searcher": {"name": "adaptive_asha"}},
        {"bind_mounts": [{"host_path": "/a"}]},
    ],
)
def test_a_template_may_be_partial(template: dict[str, Any]) -> None:
    assert validate_partial(template, "template 'a'", template=True) == []


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"resources": {"slots_per_trial": -1}}, "resources.slots_per_trial"),
        ({"searcher": {"name": "random", "max_trials": 0}}, "searcher.max_trials"),
        ({"searcher": {"max_trails": 1}}, "searcher.max_trails"),
        ({"checkpoint_storage": {"type": "gcs", "bucket": 5}}, "checkpoint_storage.bucket"),
        ({"template": "other"}, "template"),
        ({"labels": Override([])}, "labels"),
        ({"resources": {"pool": RESET}}, "resources.pool"),
    ],
)
def test_what_a_template_says_is_checked(template: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate_partial(template, "template 'a'", template=True)
    assert [problem.path for problem in error.value.problems] == [path]
    assert str(error.value).startswith(f"template 'a': {path}: ")


def test_a_configuration_may_name_a_template_and_have_tags() -> None:
    assert validate_partial({"template": "a", "labels": Override([]), "searcher": RESET}) == []


def test_warnings_of_a_partial_document_are_returned() -> None:
    assert validate_partial({"pbs": "a"}) == ["pbs: a field of Determined without a counterpart here; it has no effect"]


def test_problems_of_all_documents_come_at_once_and_say_where() -> None:
    found = problems({"max_restarts": -1}, {"resources": {"priority": 0}}, pool_defaults={"scheduling_unit": 0})
    assert found == {
        "scheduling_unit": "0 is below 1 (in the defaults of the pool)",
        "max_restarts": "-1 is below 0 (in the template)",
        "resources.priority": "0 is below 1",
    }


# -- pass two


def test_an_entrypoint_is_required_to_run() -> None:
    assert "missing" in problems(None, {})["entrypoint"]
    assert assemble(None, {}, needs_entrypoint=False).config.entrypoint is None
    assert assemble(RUN, {}).config.command == ("python", "train.py")


def test_required_fields_of_a_member_are_required_after_the_merge() -> None:
    template = {**RUN, "checkpoint_storage": {"type": "s3", "secret_key": "x"}}
    assert "required" in problems(template, {})["checkpoint_storage.bucket"]
    assert assemble(template, {"checkpoint_storage": {"bucket": "b"}}).config.checkpoint_storage.type == "s3"


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"resources": {"slots_per_trial": 4, "max_slots": 2}}, "resources.max_slots"),
        (
            {"resources": {"slots_per_trial": 4}, "hyperparameters": {"global_batch_size": 3}},
            "hyperparameters.global_batch_size",
        ),
        (
            {
                "resources": {"slots_per_trial": 4},
                "hyperparameters": {"global_batch_size": {"type": "const", "val": 3}},
            },
            "hyperparameters.global_batch_size",
        ),
        ({"searcher": {"name": "adaptive_asha", "metric": "a", "max_trials": 3}}, "searcher.max_length"),
        ({"searcher": {"max_time": 3}}, "searcher.time_metric"),
        ({"checkpoint_storage": {"type": "azure", "container": "c"}}, "checkpoint_storage"),
        (
            {
                "searcher": {"name": "grid", "metric": "a"},
                "hyperparameters": {"a": {"b": {"type": "int", "minval": 1, "maxval": 2}}},
            },
            "hyperparameters.a.b.count",
        ),
    ],
)
def test_contradictions_are_found_in_the_merged_document(config: dict[str, Any], path: str) -> None:
    assert path in problems(RUN, config)


def test_the_unit_of_the_configuration_removes_the_unit_of_the_template() -> None:
    template = {**RUN, "min_validation_period": {"batches": 5}}
    period = assemble(template, {"min_validation_period": {"epochs": 1}}).config.min_validation_period
    assert (period.batches, period.epochs) == (None, 1)


def test_the_order_is_configuration_template_pool_provider() -> None:
    effective = assemble(
        {**RUN, "max_restarts": 2, "scheduling_unit": 20},
        {"max_restarts": 1},
        pool_defaults={"max_restarts": 3, "scheduling_unit": 30, "network_interface": "ib0"},
    )
    config = effective.config
    assert (config.max_restarts, config.scheduling_unit, config.network_interface) == (1, 20, "ib0")
    origins = effective.origins
    assert origins["max_restarts"] == "config"
    assert origins["scheduling_unit"] == origins["entrypoint"] == "template"
    assert origins["network_interface"] == "pool"
    assert origins["checkpoint_policy"] == "default"


def test_synonyms_merge_with_our_names() -> None:
    effective = assemble(
        {**RUN, "resources": {"resource_pool": "a"}, "environment": {"environment_variables": ["A=1", "B=1"]}},
        {"resources": {"pool": "b"}, "environment": {"variables": {"B": "2"}}},
    )
    assert effective.document["resources"]["pool"] == "b"
    assert "resource_pool" not in effective.document["resources"]
    assert effective.document["environment"]["variables"] == {"A": "1", "B": "2"}


def test_own_log_policies_join_the_two_defaults() -> None:
    own = [{"name": "nan", "pattern": "loss is nan", "action": "cancel_retries"}, {"name": "ECC Error"}]
    policies = assemble(None, {**RUN, "log_policies": own}).config.log_policies
    assert [(policy.name, policy.pattern is None) for policy in policies] == [
        ("CUDA OOM", False),
        ("ECC Error", True),
        ("nan", False),
    ]
    assert assemble(None, {**RUN, "log_policies": Override([])}).config.log_policies == []


def test_a_warning_comes_once_for_both_documents() -> None:
    assert len(assemble({**RUN, "pbs": "a"}, {"pbs": "b", "slurm": "c"}).warnings) == 2


def test_origins_cover_exactly_the_leaves_of_the_document() -> None:
    effective = assemble(
        {**RUN, "labels": ["a"]}, {"labels": ["b"], "hyperparameters": {"x": None}, "data": {"y": None}}
    )

    def leaves(value: Any, path: str) -> set[str]:
        if isinstance(value, dict) and value:
            return set().union(*(leaves(item, f"{path}.{key}" if path else key) for key, item in value.items()))
        if isinstance(value, list) and value:
            return set().union(*(leaves(item, f"{path}.{index}") for index, item in enumerate(value)))
        return {path}

    assert set(effective.origins) == leaves(effective.document, "")
    assert effective.document["hyperparameters"] == {"x": None}
    assert effective.document["data"] == {"y": None}
    assert (effective.origins["labels.0"], effective.origins["labels.1"]) == ("template", "config")


def test_a_period_given_as_a_number_keeps_its_giver() -> None:
    assert assemble(None, {**RUN, "min_checkpoint_period": 0}).origins["min_checkpoint_period.batches"] == "config"


def test_an_effective_document_assembles_to_itself_and_is_json() -> None:
    first = assemble(
        {"searcher": {"name": "random", "max_trials": 3, "metric": "loss"}, "labels": ["x"]},
        {
            **RUN,
            "hyperparameters": {"lr": {"type": "log", "minval": -3, "maxval": -1}, "n": None},
            "resources": {"weight": 2},
        },
    )
    again = assemble(None, json.loads(json.dumps(first.document)))
    assert again.document == first.document
    assert again.config == first.config == ExperimentConfig.model_validate(first.document)


def test_the_documents_are_not_changed() -> None:
    template, config = {**RUN, "resources": {"resource_pool": "a"}}, {"labels": ["a"], "workspace": "w"}
    before = json.dumps([template, config])
    assemble(template, config)
    assert json.dumps([template, config]) == before


# -- secrets

SECRETS = {
    "checkpoint_storage": {"type": "s3", "bucket": "b", "access_key": "k1", "secret_key": "k2"},
    "environment": {
        "variables": {"HF_TOKEN": "k3", "TOKENIZERS_PARALLELISM": "shown", "HARMLESS": "k6"},
        "public_variables": ["TOKENIZERS_PARALLELISM"],
    },
    "data": {"secrets": {"a": ["k4", {"b": 5}]}, "credential": {"x": "k5"}, "url": "shown"},
}


def test_secrets_are_masked_wherever_they_stand() -> None:
    text = json.dumps(mask(SECRETS))
    assert all(secret not in text for secret in ("k1", "k2", "k3", "k4", "5,", "k5", "k6"))
    assert text.count("shown") == 2
    assert mask({"environment": {"environment_variables": ["API_KEY=abc", "A=b", "x"], "public_variables": ["A"]}}) == {
        "environment": {"environment_variables": [f"API_KEY={MASK}", "A=b", MASK], "public_variables": ["A"]}
    }
    assert mask({"environment": {"variables": "A=b"}, "data": "x"}) == {
        "environment": {"variables": MASK},
        "data": MASK,
    }
    assert mask({"environment": Override({"variables": Override({"A": "x", "B": RESET})})}) == {
        "environment": Override({"variables": Override({"A": MASK, "B": RESET})})
    }


def test_secrets_under_a_tag_are_masked() -> None:
    assert mask({"checkpoint_storage": Override({"connection_string": "x"})}) == {
        "checkpoint_storage": Override({"connection_string": MASK})
    }


def test_secrets_are_taken_out_and_put_back() -> None:
    public, secrets = take_secrets(SECRETS)
    assert secrets == {
        "checkpoint_storage.access_key": "k1",
        "checkpoint_storage.secret_key": "k2",
        "data.secrets.a.0": "k4",
        "data.secrets.a.1.b": 5,
        "data.credential.x": "k5",
        "environment.variables.HF_TOKEN": "k3",
        "environment.variables.HARMLESS": "k6",
    }
    assert "k1" not in json.dumps(public)
    assert put_secrets(public, secrets) == SECRETS


def test_more_secrets_than_a_log_can_be_searched_for_are_refused_and_public_variables_do_not_count() -> None:
    variables = {f"V{number}": "x" for number in range(MOST_SECRETS + 1)}
    assemble(None, {**RUN, "environment": {"variables": variables, "public_variables": ["V7"]}})
    with pytest.raises(ConfigError, match=r"201 secrets and private variables; at most 200 are possible"):
        assemble(None, {**RUN, "environment": {"variables": variables}})


def test_each_document_marks_its_own_variables_as_public_and_no_others() -> None:
    template = {"environment": {"variables": {"A": "t", "B": "t"}, "public_variables": ["A", "B"]}}
    config = {**RUN, "environment": {"environment_variables": ["B=c", "C=c", "D=c"], "public_variables": ["D"]}}
    effective = assemble(template, config, pool_defaults={"environment": {"variables": {"P": "p"}}})
    section = effective.document["environment"]
    assert section["variables"] == {"A": "t", "B": "c", "C": "c", "D": "c", "P": "p"}
    assert sorted(section["public_variables"]) == ["A", "D"]
    assert mask(effective.document)["environment"]["variables"] == {"A": "t", "B": MASK, "C": MASK, "D": "c", "P": MASK}
    assert sorted(assemble(None, effective.document).document["environment"]["public_variables"]) == ["A", "D"]


@pytest.mark.parametrize("config", [{}, {"variables": {"B": "x"}}, {"variables": ["B=x"]}])
def test_the_mark_of_a_variable_of_another_document_is_a_problem(config: dict[str, Any]) -> None:
    template = {"environment": {"variables": {"SECRET": "t"}}}
    config = {**RUN, "environment": {**config, "public_variables": ["SECRET"]}}
    with pytest.raises(ConfigError, match=r"environment.public_variables.0: 'SECRET' is not set by this document"):
        assemble(template, config)


# -- what is not built yet


def test_a_document_of_defaults_uses_nothing_unsupported() -> None:
    effective = assemble(None, RUN)
    assert unsupported(effective.config, effective.origins) == []
    assert unsupported(ExperimentConfig.model_validate(effective.document)) == []
    refuse_unsupported(effective.config)


SUPPORTED = """
name: x
description: y
labels: [a]
entrypoint: python train.py
model_dir: code
hyperparameters:
  {lr: {type: log, minval: -4, maxval: -1}, opt: {name: sgd, beta: {type: const, val: 0.9}}, layers: [1, 2], none: null}
searcher: {name: random, metric: loss, smaller_is_better: false, max_trials: 4}
decision_timeout: 5
resources: {slots_per_trial: 4, pool: a, priority: 1, is_single_host: true}
reproducibility: {experiment_seed: 5, deterministic: true}
checkpoint_storage: {type: shared_fs, host_path: /srv}
checkpoint_policy: all
max_restarts: 0
scheduling_unit: 1
environment: {python: /usr/bin/python3, variables: {A: b}}
network_interface: eth0
data: {a: b}
profiling: {enabled: true}
"""


def test_what_this_version_has_is_not_refused() -> None:
    effective = assemble(None, load_yaml(SUPPORTED))
    assert unsupported(effective.config, effective.origins) == []
    directory = {**RUN, "checkpoint_storage": {"type": "directory", "container_path": "/ckpt"}}
    assert unsupported(assemble(None, directory).config) == []


USES: dict[str, tuple[Any, ...]] = {
    "searcher.source_checkpoint": ("a",),
    "resources.devices": (["/dev/a:/dev/b"],),
    "bind_mounts": ([{"host_path": "/a", "container_path": "b"}],),
    "checkpoint_storage.type": ("gcs", {"bucket": "b"}),
    "checkpoint_storage.save_experiment_best": (1,),
    "checkpoint_storage.save_trial_best": (0,),
    "checkpoint_storage.save_trial_latest": (0,),
    "hang_timeout": (5,),
}


@pytest.mark.parametrize("path", [path for path, _, _ in UNSUPPORTED])
def test_a_feature_that_is_not_built_fails_by_name(path: str) -> None:
    value, *beside = USES[path]
    section, _, name = path.rpartition(".")
    part = {name or section: value, **(beside[0] if beside else {})}
    effective = assemble(RUN, {section: part} if section else part)
    assert path in [problem.path for problem in unsupported(effective.config, effective.origins)]
    with pytest.raises(UnsupportedFieldError, match="not supported in this version"):
        refuse_unsupported(effective.config, effective.origins)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("min_validation_period", {"epochs": 1}),
        ("min_checkpoint_period", {"batches": 1}),
        ("perform_initial_validation", True),
    ],
)
def test_a_field_of_the_training_loop_is_refused_for_a_script_and_fine_for_a_trial_class(path: str, value: Any) -> None:
    script = assemble(RUN, {path: value}).config
    assert [(p.path, p.message) for p in unsupported(script)] == [
        (path, "for trial classes only; a script must do this itself. Remove the field")
    ]
    trial = {**RUN, "entrypoint": "model:Trial", "searcher": {"name": "single", "max_length": {"epochs": 2}}}
    assert unsupported(assemble(trial, {path: value}).config) == []


NOTICES: list[tuple[dict[str, Any], str, str]] = [
    ({"resources": {"shm_size": "1g"}}, "resources.shm_size", "use /dev/shm of the host"),
    ({"environment": {"image": "a"}}, "environment.image", "name an interpreter that has it in environment.python"),
    ({"environment": {"image": {"cuda": "a"}}}, "environment.image", "Install there what the image contains"),
    (
        {"bind_mounts": [{"host_path": "/a", "container_path": "/b"}]},
        "bind_mounts",
        "/b must be /a on each host, for example by a symbolic link. The launch checks it",
    ),
    (
        {"bind_mounts": [{"host_path": "/a", "container_path": place} for place in ("/a", "/b", "/c")]},
        "bind_mounts",
        "/b must be /a on each host, for example by a symbolic link (and 1 more)",
    ),
    (
        {"bind_mounts": [{"host_path": "/a/", "container_path": "/a", "read_only": True}]},
        "bind_mounts",
        "read_only has no effect",
    ),
    ({"records_per_epoch": 5}, "records_per_epoch", "a script counts its epochs itself"),
]


@pytest.mark.parametrize(("document", "path", "words"), NOTICES)
def test_a_field_that_the_host_must_provide_is_one_notice(document: dict[str, Any], path: str, words: str) -> None:
    effective = assemble(RUN, document)
    assert unsupported(effective.config, effective.origins) == []
    (notice,) = effective.warnings
    assert notice.startswith(f"{path}: ")
    assert words in notice
    (notice,) = assemble({**RUN, **document}, {}).warnings
    assert notice.endswith("(given by the template)")


@pytest.mark.parametrize(
    "document",
    [
        {"bind_mounts": [{"host_path": "/a", "container_path": "/a/"}]},
        {"resources": {"devices": ["/dev/a"]}},
        {"entrypoint": "a:B", "records_per_epoch": 5, "searcher": {"name": "single", "max_length": {"epochs": 2}}},
    ],
    ids=["folder", "device", "trial class"],
)
def test_what_the_host_or_the_training_loop_has_is_no_notice(document: dict[str, Any]) -> None:
    effective = assemble(RUN, document)
    assert (effective.warnings, unsupported(effective.config)) == ([], [])


def test_a_field_of_a_lock_file_without_one_is_a_notice_unless_a_template_has_it_for_others() -> None:
    document = {"environment": {"wheels": "wheels", "system_site_packages": True}}
    assert sorted(assemble(RUN, document).warnings) == [
        f"environment.{name}: it has no effect without environment.requirements"
        for name in ("system_site_packages", "wheels")
    ]
    assert assemble({**RUN, **document}, {}).warnings == []
    whole = {"environment": {**document["environment"], "requirements": "requirements.txt"}}
    assert assemble(RUN, whole).warnings == []


@pytest.mark.parametrize(
    ("python", "program"), [(None, None), ("3.12", "python3.12"), ("python3", "python3"), ("/opt/py/bin/py", None)]
)
def test_a_version_names_the_interpreter_of_that_version(python: str | None, program: str | None) -> None:
    environment = assemble(RUN, {"environment": {"python": python}}).config.environment
    assert environment.interpreter == (program or python)


def test_a_trial_class_without_a_length_is_incomplete() -> None:
    assert "a trial class requires it" in problems({**RUN, "entrypoint": "a:B"}, {})["searcher.max_length"]


def test_an_unsupported_field_says_who_gave_it() -> None:
    moved = {**RUN, "resources": {"devices": ["/dev/a:/dev/b"]}}
    mounts = [{"host_path": "/a", "container_path": "b"}]
    effective = assemble(moved, {}, pool_defaults={"bind_mounts": mounts})
    found = {problem.path: problem.message for problem in unsupported(effective.config, effective.origins)}
    assert found["resources.devices"].endswith("(given by the template)")
    assert found["bind_mounts"].endswith("(given by the defaults of the pool)")
