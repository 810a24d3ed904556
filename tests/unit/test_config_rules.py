"""Rules between fields and between documents: policies, exclusive fields, nulls, partial documents, Determined's."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig, ForeignFieldWarning, assemble, validate_partial
from airflow_provider_dtrain.core.config.merge import RESET, Override, merge_config
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.core.hyperparameters.space import grid, sample
from airflow_provider_dtrain.errors import ConfigError

RUN = {"entrypoint": "python train.py"}
CANCEL, EXCLUDE = "cancel_retries", "exclude_host"


def problems(document: Any, *, template: bool = False) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        validate_partial(document, template=template)
    return {problem.path: problem.message for problem in error.value.problems}


def policies(template: Any, config: Any) -> Any:
    return merge_config({"log_policies": template}, {"log_policies": config})["log_policies"]


# -- log policies


def test_unnamed_policies_with_one_pattern_and_different_actions_both_stay() -> None:
    cancel, exclude = {"pattern": "x", "action": CANCEL}, {"pattern": "x", "action": EXCLUDE}
    assert policies([cancel], [exclude]) == [cancel, exclude]
    assert policies([], [cancel, exclude]) == [cancel, exclude]
    effective = assemble({"log_policies": [cancel]}, {**RUN, "log_policies": [exclude, {"pattern": "x"}]})
    assert [policy.action for policy in effective.config.log_policies[2:]] == [CANCEL, EXCLUDE, None]


def test_equal_unnamed_policies_of_template_and_configuration_are_one() -> None:
    policy = {"pattern": "x", "action": CANCEL}
    assert policies([policy], [dict(policy)]) == [policy]


def test_a_policy_of_a_template_is_replaced_by_its_name_only() -> None:
    named = {"name": "a", "pattern": "x", "action": CANCEL}
    same_pattern = {"name": "b", "pattern": "x", "action": CANCEL}
    unnamed = {"pattern": "x", "action": CANCEL}
    named_like_the_pattern = {"name": "x", "pattern": "y"}
    assert policies([named], [same_pattern]) == [named, same_pattern]
    assert policies([named], [unnamed]) == [named, unnamed]
    assert policies([unnamed], [named_like_the_pattern]) == [unnamed, named_like_the_pattern]
    assert policies([named], [{"name": "a", "pattern": "z"}]) == [{"name": "a", "pattern": "z"}]


def test_a_name_that_one_document_gives_twice_is_an_error() -> None:
    twice = {"log_policies": [{"name": "a", "pattern": "x"}, {"name": "a", "pattern": "y"}]}
    assert problems(twice) == {"log_policies": "the name 'a' is given twice"}
    assert problems(twice, template=True) == {"log_policies": "the name 'a' is given twice"}
    assert len(policies([], twice["log_policies"])) == 2
    with pytest.raises(ConfigError, match="given twice"):
        assemble({"log_policies": [{"name": "a", "pattern": "z"}]}, {**RUN, **twice})


# -- fields that exclude each other


@pytest.mark.parametrize(
    ("template", "config", "merged"),
    [
        ({"batches": 5}, {"epochs": 1}, {"epochs": 1}),
        ({"batches": 5}, {"batches": 1}, {"batches": 1}),
        (5, {"records": 1}, {"records": 1}),
        ({"batches": 5}, {"epochs": None}, {"batches": 5}),
        ({"batches": 5}, {"epochs": RESET}, {"batches": 5}),
        ({"batches": 5}, {"epochs": Override(1)}, {"epochs": 1}),
    ],
)
@pytest.mark.parametrize("field", ["min_validation_period", "min_checkpoint_period", "searcher.max_length"])
def test_a_unit_of_the_configuration_removes_the_other_units(
    field: str, template: Any, config: Any, merged: Any
) -> None:
    above, _, name = field.rpartition(".")
    documents = [{above: {name: part}} if above else {name: part} for part in (template, config, merged)]
    assert merge_config(documents[0], documents[1]) == documents[2]


@pytest.mark.parametrize(
    ("template", "config", "merged"),
    [
        ({"max_time": 5, "metric": "a"}, {"max_length": {"epochs": 1}}, {"metric": "a", "max_length": {"epochs": 1}}),
        ({"max_length": {"epochs": 1}}, {"max_time": 5}, {"max_time": 5}),
    ],
)
def test_a_length_of_the_configuration_removes_a_time_of_the_template_and_the_other_way(
    template: Any, config: Any, merged: Any
) -> None:
    assert merge_config({"searcher": template}, {"searcher": config}) == {"searcher": merged}


def test_an_address_of_the_configuration_removes_the_other_kind_of_the_template() -> None:
    azure = {"type": "azure", "container": "c"}
    by_url, by_text = {"account_url": "https://a", "credential": "k"}, {"connection_string": "s"}
    for weak, strong in ((by_url, by_text), (by_text, by_url)):
        merged = merge_config({"checkpoint_storage": {**azure, **weak}}, {"checkpoint_storage": strong})
        assert merged == {"checkpoint_storage": {**azure, **strong}}


def test_both_kinds_in_one_document_are_still_an_error() -> None:
    both = {"max_time": 5, "time_metric": "a", "max_length": {"epochs": 1}}
    assert "both given" in problems({"searcher": both})["searcher"]


def test_a_command_replaces_the_command_of_the_template_as_a_whole() -> None:
    assert merge_config({"entrypoint": ["a", "b"]}, {"entrypoint": ["c"]}) == {"entrypoint": ["c"]}
    assert merge_config({"entrypoint": "a"}, {"entrypoint": ["c"]}) == {"entrypoint": ["c"]}


# -- null in hyperparameters


def test_a_null_key_of_a_hyperparameter_is_absent_and_a_null_choice_stays() -> None:
    space = {
        "a": {"type": "int", "minval": 0, "maxval": 3, "count": None},
        "b": {"type": "log", "minval": 0, "maxval": 1, "base": None},
        "c": {"type": "categorical", "vals": [None, {"x": None}]},
        "d": None,
        "e": {"f": {"type": "const", "val": None}},
    }
    plain = ExperimentConfig.model_validate({"hyperparameters": space}).hyperparameters
    assert plain == {
        "a": {"type": "int", "minval": 0, "maxval": 3},
        "b": {"type": "log", "minval": 0, "maxval": 1},
        "c": {"type": "categorical", "vals": [None, {"x": None}]},
        "d": None,
        "e": {"f": {"type": "const", "val": None}},
    }
    assert sample(space, experiment_seed=1, trial=0) == sample(plain, experiment_seed=1, trial=0)


def test_a_required_key_that_is_null_is_missing() -> None:
    found = problems({"hyperparameters": {"a": {"type": "int", "minval": None, "maxval": 3}}})
    assert found == {"hyperparameters.a.minval": "missing; int requires it"}
    with pytest.raises(ConfigError, match="a grid requires it"):
        grid({"a": {"type": "int", "minval": 0, "maxval": 3, "count": None}})


# -- rules over several fields


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        ({"resources": {"max_slots": 1, "slots_per_trial": 4}}, {"resources.max_slots"}),
        (
            {"hyperparameters": {"global_batch_size": 2}, "resources": {"slots_per_trial": 4}},
            {"hyperparameters.global_batch_size"},
        ),
        ({"searcher": {"name": "random", "max_time": 5, "max_length": {"epochs": 1}}}, {"searcher"}),
        ({"searcher": {"name": "random", "max_length": {"epochs": 0}}}, {"searcher"}),
        (
            {"searcher": {"name": "adaptive_asha", "max_trials": 4, "divisor": 4, "bracket_rungs": [3]}},
            {"searcher.bracket_rungs"},
        ),
        (
            {"searcher": {"name": "adaptive_asha", "max_length": {"epochs": 3}, "bracket_rungs": [3]}},
            {"searcher.bracket_rungs"},
        ),
        ({"searcher": {"name": "random", "max_trials": 200_000}}, {"searcher.max_trials"}),
        (
            {
                "searcher": {"name": "grid"},
                "hyperparameters": {"a": {"type": "double", "minval": 0, "maxval": 1, "count": 200_000}},
            },
            {"hyperparameters"},
        ),
        (
            {"bind_mounts": [{"container_path": "/a"}, {"host_path": "/b", "container_path": "/a/"}]},
            {"bind_mounts"},
        ),
        (
            {"checkpoint_storage": {"type": "azure", "connection_string": "a", "account_url": "b"}},
            {"checkpoint_storage"},
        ),
        (
            {
                "nmae": 1,
                "resources": {"priority": 0, "max_slots": 1, "slots_per_trial": 4},
                "min_checkpoint_period": {"batches": 1, "epochs": 1},
                "searcher": {"name": "random", "max_trials": 200_000, "max_concurrent_trials": "x"},
            },
            {
                "nmae",
                "resources.priority",
                "resources.max_slots",
                "min_checkpoint_period",
                "searcher.max_trials",
                "searcher.max_concurrent_trials",
            },
        ),
    ],
)
def test_contradictions_are_found_while_required_fields_are_missing_or_others_wrong(
    template: dict[str, Any], paths: set[str]
) -> None:
    assert set(problems(template, template=True)) == paths


@pytest.mark.parametrize(
    "template",
    [
        {"resources": {"max_slots": 1}},
        {"resources": {"slots_per_trial": 4}, "hyperparameters": {"lr": 1}},
        {"searcher": {"name": "random"}, "hyperparameters": {"lr": 1}},
        {"searcher": {"name": "adaptive_asha", "bracket_rungs": [3]}},
        {"searcher": {"name": "adaptive_asha", "bracket_rungs": [3], "max_trials": 4}},
        {"searcher": {"name": "grid"}, "hyperparameters": {"a": {"type": "int", "minval": 0, "maxval": 3}}},
        {"checkpoint_storage": {"type": "azure"}},
        {"checkpoint_storage": {"type": "shared_fs", "storage_path": "/a/b"}},
    ],
)
def test_what_a_configuration_may_still_say_is_no_problem_of_a_template(template: dict[str, Any]) -> None:
    assert validate_partial(template, template=True) == []


@pytest.mark.parametrize(
    ("template", "path"),
    [
        # With the default divisor, 3 rungs need 16 trials.
        (
            {"searcher": {"name": "adaptive_asha", "max_trials": 4, "divisor": "x", "bracket_rungs": [3]}},
            "searcher.divisor",
        ),
        ({"searcher": {"name": "adaptive_asha", "max_trials": "x", "bracket_rungs": [3]}}, "searcher.max_trials"),
        (
            {"resources": {"slots_per_trial": "x"}, "hyperparameters": {"global_batch_size": 0}},
            "resources.slots_per_trial",
        ),
    ],
)
def test_a_wrong_field_of_a_template_contradicts_no_other_field(template: dict[str, Any], path: str) -> None:
    assert set(problems(template, template=True)) == {path}


def test_a_missing_field_of_a_whole_configuration_contradicts_no_other_field() -> None:
    searcher = {"name": "adaptive_asha", "bracket_rungs": [3], "max_length": {"epochs": 100}}
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    with pytest.raises(ConfigError) as error:
        assemble({}, {**RUN, "searcher": searcher, "hyperparameters": space})
    assert "searcher.bracket_rungs" not in {problem.path for problem in error.value.problems}


def test_a_missing_field_of_a_whole_configuration_hides_no_other_problem() -> None:
    config = {
        "searcher": {"name": "adaptive_asha", "max_trials": 4, "bracket_rungs": [3]},
        "resources": {"max_slots": 1, "slots_per_trial": 4},
        "checkpoint_storage": {"type": "azure", "container": "c"},
    }
    with pytest.raises(ConfigError) as error:
        assemble({}, config)
    assert {problem.path for problem in error.value.problems} >= {"resources.max_slots"}
    with pytest.raises(ConfigError) as error:
        assemble({"searcher": {"name": "adaptive_asha", "max_trials": 4}}, {"searcher": {"divisor": 2}, **RUN})
    assert {problem.path for problem in error.value.problems} == {
        "searcher.metric",
        "searcher.max_length",
        "hyperparameters",
    }


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"searcher": {"max_trials": 5}}, "searcher.name"),
        ({"checkpoint_storage": {"bucket": "b"}}, "checkpoint_storage.type"),
    ],
)
def test_a_template_without_the_name_of_a_member_has_common_fields_only(template: dict[str, Any], path: str) -> None:
    found = problems(template, template=True)
    assert set(found) == {path}
    assert "need it" in found[path]
    assert validate_partial(template) == []
    with pytest.raises(ConfigError, match=path):
        assemble(template, RUN)
    with pytest.raises(ConfigError, match=path):
        assemble(None, RUN, pool_defaults=template)


# -- Determined's own files


def test_determineds_gpu_image_is_the_one_for_cuda() -> None:
    image = {"environment": {"image": {"gpu": "a", "cpu": "b"}}}
    assert ExperimentConfig.model_validate(image).environment.image == {"cpu": "b", "cuda": "a"}
    merged = assemble({"environment": {"image": {"cuda": "t"}}}, {**RUN, **image})
    assert merged.config.environment.image == {"cpu": "b", "cuda": "a"}
    assert "synonym" in problems({"environment": {"image": {"gpu": "a", "cuda": "b"}}})["environment.image.cuda"]


def test_fields_of_determined_without_meaning_here_are_one_warning_each() -> None:
    document = {
        "internal": {"native": {}},
        "security": {"tls": {}},
        "checkpoint_storage": {
            "type": "shared_fs",
            "host_path": "/a",
            "container_path": "/c",
            "checkpoint_path": "b",
            "tensorboard_path": "t",
        },
    }
    with pytest.warns(ForeignFieldWarning) as caught:
        config = ExperimentConfig.model_validate(document)
    storage = "checkpoint_storage"
    assert sorted(str(item.message).split(":")[0] for item in caught) == [
        f"{storage}.checkpoint_path",
        f"{storage}.container_path",
        f"{storage}.tensorboard_path",
        "internal",
        "security",
    ]
    assert config.checkpoint_storage.type == "shared_fs"


def test_the_path_of_a_directory_storage_keeps_its_meaning() -> None:
    storage = {"type": "directory", "container_path": "/c"}
    assert validate_partial({"checkpoint_storage": storage}) == []


@pytest.mark.parametrize("mode", ["r", "w", "m", "rw", "wr", "mr", "rm", "wm", "mw", "rwm", "mwr", "wmr", "mrw"])
def test_device_modes_are_in_any_order(mode: str) -> None:
    device = {"host_path": "/dev/a", "container_path": "/dev/a", "mode": mode}
    assert ExperimentConfig.model_validate({"resources": {"devices": [device]}}).resources.devices[0].mode == mode


@pytest.mark.parametrize("mode", ["", "rr", "x", "rwmr", "R"])
def test_other_device_modes_are_refused(mode: str) -> None:
    found = problems({"resources": {"devices": [{"host_path": "/a", "container_path": "/a", "mode": mode}]}})
    assert set(found) == {"resources.devices.0.mode"}


def test_defaults_of_determined_that_are_written_out_are_defaults_here() -> None:
    document = {"optimizations": {"mixed_precision": "O0"}, "records_per_epoch": 0}
    config = ExperimentConfig.model_validate(document)
    assert (config.optimizations.mixed_precision, config.records_per_epoch) == ("none", None)
    assert assemble({"records_per_epoch": 5}, {**RUN, "records_per_epoch": 0}).config.records_per_epoch is None


@pytest.mark.parametrize("name", ["a/b", "50% off; $x `y`", "Größe «7»", "(a) [b] {c} #1 ~ * ? ! & |", "日本"])
def test_a_name_holds_any_printable_characters(name: str) -> None:
    assert ExperimentConfig.model_validate({"name": name}).name == name


@pytest.mark.parametrize("size", ["1g", "1 g", "1 gi", "1gib", "512mb", "0.5G", "1b", "64", "1P", "1 tib", 4096])
def test_sizes_are_those_of_docker(size: str | int) -> None:
    assert ExperimentConfig.model_validate({"resources": {"shm_size": size}}).resources.shm_size == size


@pytest.mark.parametrize("size", ["0", "0.0g", "g", "1x", "-1g", "1g g", "", "1e3", "1 \ng", 0, -5, True])
def test_other_sizes_are_refused(size: object) -> None:
    assert set(problems({"resources": {"shm_size": size}})) == {"resources.shm_size"}


@pytest.mark.parametrize(
    ("base", "is_good"), [(2, True), (0.5, True), (1e-3, True), (1, False), (0, False), (-2, False)]
)
def test_a_log_base_is_above_0_and_not_1(base: float, is_good: bool) -> None:
    space = {"a": {"type": "log", "minval": -2, "maxval": 2, "base": base}}
    if is_good:
        assert ExperimentConfig.model_validate({"hyperparameters": space}).hyperparameters == space
    else:
        assert set(problems({"hyperparameters": space})) == {"hyperparameters.a.base"}


def test_a_relative_container_path_lies_below_the_work_folder() -> None:
    def check(path: str) -> dict[str, str]:
        return problems({"bind_mounts": [{"host_path": "/a", "container_path": path}]})

    mount = {"host_path": "/a", "container_path": "data/x"}
    assert ExperimentConfig.model_validate({"bind_mounts": [mount]}).bind_mounts[0].container_path == "data/x"
    for path in ("../x", "a/../../x", ".", "/", ""):
        assert set(check(path)) == {"bind_mounts.0.container_path"}


# -- messages


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({"slots": 4}, "slots", "did you mean resources.slots_per_trial?"),
        ({"resources": {"slots": 4}}, "resources.slots", "did you mean slots_per_trial?"),
        ({"slot_per_trial": 4}, "slot_per_trial", "did you mean resources.slots_per_trial?"),
    ],
)
def test_the_field_that_is_meant_is_named(document: Any, path: str, words: str) -> None:
    assert words in problems(document)[path]


def test_the_known_fields_are_those_that_have_an_effect() -> None:
    words = problems({"qqqq": 1})["qqqq"]
    assert "known here" in words
    foreign = {"pbs", "slurm", "pod_spec", "registry_auth", "internal"}
    assert foreign.isdisjoint(words.replace(",", "").split())


@pytest.mark.parametrize(
    "text",
    [
        "hyperparameters:\n  epochs: {{ params.epochs }}\n",
        "{% if x %}\nname: a\n{% endif %}\n",
        "hyperparameters: {lr: {{ params.lr }}}\n",
    ],
)
def test_text_with_jinja_is_refused_as_such(text: str) -> None:
    with pytest.raises(ConfigError, match="contains Jinja, which Airflow renders"):
        load_yaml(text)


def test_a_quoted_jinja_expression_is_named_as_such_where_it_does_not_fit() -> None:
    document = load_yaml("resources: {slots_per_trial: '{{ params.slots }}'}\n")
    assert "contains Jinja" in problems(document)["resources.slots_per_trial"]
    assert "contains Jinja" not in str(problems(load_yaml("resources: {slots_per_trial: 'x'}\n")))
