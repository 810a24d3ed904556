from __future__ import annotations

import copy
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.merge import (
    RESET,
    UNION_COMMON,
    UNION_TAG,
    Override,
    merge_config,
    merge_layers,
)
from airflow_provider_dtrain.core.config.unions import MEMBERS, SEARCHERS
from airflow_provider_dtrain.errors import ConfigError


def test_a_field_of_one_side_is_kept() -> None:
    assert merge_config({"a": 1, "b": {"c": 2}}, {"d": [3]}) == {"a": 1, "b": {"c": 2}, "d": [3]}


@pytest.mark.parametrize("value", [False, 0, "", 0.0, "x"])
def test_a_scalar_of_the_configuration_wins(value: object) -> None:
    assert merge_config({"a": 7}, {"a": value}) == {"a": value}


def test_maps_merge_field_by_field() -> None:
    merged = merge_config({"resources": {"pool": "a", "priority": 1}}, {"resources": {"pool": "b"}})
    assert merged == {"resources": {"pool": "b", "priority": 1}}


def test_a_list_is_template_followed_by_config() -> None:
    assert merge_config({"x": [1, 2]}, {"x": [2, 3]}) == {"x": [1, 2, 2, 3]}


@pytest.mark.parametrize(("below", "above"), [({"a": 1}, 5), ([1], {"a": 1}), (5, [1]), ({"a": 1}, [1])])
def test_values_of_different_shape_do_not_mix(below: object, above: object) -> None:
    assert merge_config({"x": below}, {"x": above}) == {"x": above}


def test_none_is_the_same_as_absent() -> None:
    assert merge_config({"a": 1, "b": None}, {"a": None, "c": {"d": None}}) == {"a": 1, "c": {}}


def test_none_below_hyperparameters_is_a_constant() -> None:
    merged = merge_config({"hyperparameters": {"a": 1, "b": {"c": 1}}}, {"hyperparameters": {"a": None, "b": None}})
    assert merged == {"hyperparameters": {"a": None, "b": None}}
    assert merge_config({"hyperparameters": {"a": 1}}, {"hyperparameters": None}) == {"hyperparameters": {"a": 1}}


def test_none_in_data_is_kept_but_gives_way() -> None:
    assert merge_config({"data": {"a": 1}}, {"data": {"a": None, "b": None}}) == {"data": {"a": 1, "b": None}}
    assert merge_config({"data": {"a": None}}, {"data": {"a": 2}}) == {"data": {"a": 2}}


@pytest.mark.parametrize("path", ["bind_mounts", "resources.devices"])
def test_mounts_are_those_of_the_configuration_then_free_places_of_the_template(path: str) -> None:
    def document(*places: str) -> dict[str, Any]:
        value: Any = [{"host_path": f"/{place}/{index}", "container_path": place} for index, place in enumerate(places)]
        for name in reversed(path.split(".")):
            value = {name: value}
        return value  # type: ignore[no-any-return]

    merged: Any = merge_config(document("/a", "/b", "/c"), document("/z", "/b/"))
    for name in path.split("."):
        merged = merged[name]
    assert [item["container_path"] for item in merged] == ["/z", "/b/", "/a", "/c"]
    assert merged[1]["host_path"] == "//b//1"


def test_devices_in_short_form_are_compared_by_container_path() -> None:
    template = {"resources": {"devices": ["/dev/a:/dev/x", "/dev/b"]}}
    merged = merge_config(template, {"resources": {"devices": ["/dev/c:/dev/x:rwm"]}})
    assert merged == {"resources": {"devices": ["/dev/c:/dev/x:rwm", "/dev/b"]}}


@pytest.mark.parametrize("below", [{"A": "1", "B": "2"}, ["A=1", "B=2"]])
@pytest.mark.parametrize("above", [{"B": "3", "C": "x=y"}, ["B=3", "C=x=y"]])
def test_environment_variables_merge_by_name_in_both_forms(below: object, above: object) -> None:
    merged = merge_config({"environment": {"variables": below}}, {"environment": {"variables": above}})
    assert merged == {"environment": {"variables": {"A": "1", "B": "3", "C": "x=y"}}}


def test_labels_are_a_set_union_in_stable_order() -> None:
    merged, origins = merge_layers([("template", {"labels": ["a", "b"]}), ("config", {"labels": ["b", "c", "c"]})])
    assert merged == {"labels": ["a", "b", "c"]}
    assert origins == {"labels.0": "template", "labels.1": "config", "labels.2": "config"}


def test_log_policies_merge_by_name_in_place() -> None:
    template = {
        "log_policies": [{"name": "a", "pattern": "1", "action": "exclude_host"}, {"name": "b", "pattern": "2"}]
    }
    config = {"log_policies": [{"name": "c", "pattern": "3"}, {"name": "a", "pattern": "4"}]}
    expected = [{"name": "a", "pattern": "4"}, {"name": "b", "pattern": "2"}, {"name": "c", "pattern": "3"}]
    assert merge_config(template, config)["log_policies"] == expected


def test_a_hyperparameter_leaf_replaces_and_never_mixes() -> None:
    template = {"hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1, "base": 10}, "n": [1, 2]}}
    config = {"hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 0.2}, "n": [3]}}
    assert merge_config(template, config) == config


def test_nested_hyperparameter_groups_merge_and_a_group_replaces_a_leaf() -> None:
    template = {"hyperparameters": {"opt": {"lr": 1, "name": "sgd"}, "a": 1, "b": {"c": 1}}}
    config = {"hyperparameters": {"opt": {"lr": 2}, "a": {"deep": 1}, "b": 2}}
    assert merge_config(template, config)["hyperparameters"] == {
        "opt": {"lr": 2, "name": "sgd"},
        "a": {"deep": 1},
        "b": 2,
    }


S3 = {"type": "s3", "bucket": "b", "access_key": "k", "save_trial_best": 9}


def test_another_member_of_a_union_takes_only_the_common_fields() -> None:
    merged = merge_config({"checkpoint_storage": S3}, {"checkpoint_storage": {"type": "shared_fs", "host_path": "/x"}})
    assert merged == {"checkpoint_storage": {"type": "shared_fs", "host_path": "/x", "save_trial_best": 9}}


@pytest.mark.parametrize("named", [{"type": "s3"}, {}, {"type": None}])
def test_the_same_member_or_none_takes_every_field(named: dict[str, Any]) -> None:
    merged = merge_config({"checkpoint_storage": S3}, {"checkpoint_storage": {**named, "bucket": "c"}})
    assert merged == {"checkpoint_storage": {**S3, "bucket": "c"}}


def test_a_template_without_member_gives_only_common_fields_to_a_named_one() -> None:
    template = {"searcher": {"metric": "loss", "max_trials": 5}}
    merged = merge_config(template, {"searcher": {"name": "random", "max_trials": 2}})
    assert merged == {"searcher": {"name": "random", "metric": "loss", "max_trials": 2}}
    assert merge_config(template, {"searcher": {"name": "grid"}}) == {"searcher": {"name": "grid", "metric": "loss"}}


def test_resetting_the_member_leaves_the_common_fields() -> None:
    merged = merge_config({"checkpoint_storage": S3}, {"checkpoint_storage": {"type": RESET}})
    assert merged == {"checkpoint_storage": {"save_trial_best": 9}}


@pytest.mark.parametrize("union", UNION_TAG)
def test_the_common_fields_of_a_union_are_those_that_every_member_has(union: str) -> None:
    fields = [set(member.model_fields) for member in MEMBERS[union].values()]
    assert set.intersection(*fields) == UNION_COMMON[union] | {UNION_TAG[union]}


def test_an_override_replaces_instead_of_merging() -> None:
    template = {"resources": {"devices": [1]}, "labels": ["a"], "x": {"y": {"a": 1, "b": 2}}}
    config = {"labels": Override(["b"]), "resources": Override({}), "x": {"y": Override({"c": RESET, "a": 5})}}
    assert merge_config(template, config) == {"resources": {}, "labels": ["b"], "x": {"y": {"a": 5}}}


def test_a_reset_removes_the_field() -> None:
    template, config = {"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": RESET}, "d": RESET, "e": RESET}
    merged, origins = merge_layers([("template", template), ("config", config)])
    assert merged == {"a": {"c": 2}}
    assert origins == {"a.c": "template"}


@pytest.mark.parametrize("value", [RESET, Override(1)])
def test_tags_in_a_template_are_errors_with_their_paths(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        merge_config({"a": {"b": value}, "c": value}, {"a": 1})
    assert [problem.path for problem in error.value.problems] == ["a.b", "c"]


def test_tags_on_list_items_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"x\.1: .*not for list items"):
        merge_config({}, {"x": [1, RESET]})


def test_origins_name_each_leaf_once() -> None:
    space = {"lr": {"type": "const", "val": 1}, "n": [1, 2]}
    template = {"a": 1, "b": {"c": 1, "d": {}}, "hyperparameters": space}
    config = {"b": {"c": 2}, "x": [1, {"y": 2}], "data": {"p.q": 1}}
    merged, origins = merge_layers([("template", template), ("config", config)])
    assert merged["b"] == {"c": 2, "d": {}}
    assert origins == {
        "a": "template",
        "b.c": "config",
        "b.d": "template",
        "hyperparameters.lr": "template",
        "hyperparameters.n": "template",
        "x.0": "config",
        "x.1.y": "config",
        'data."p.q"': "config",
    }


def test_three_layers_keep_their_names() -> None:
    merged, origins = merge_layers(
        [("pool", {"a": [1], "b": 1}), ("template", {"a": [2], "b": 2}), ("config", {"b": 3})]
    )
    assert merged == {"a": [1, 2], "b": 3}
    assert origins == {"a.0": "pool", "a.1": "template", "b": "config"}


def test_the_result_shares_nothing_with_its_inputs() -> None:
    template = {"a": {"b": [1]}, "hyperparameters": {"x": {"type": "categorical", "vals": [1]}}}
    config = {"c": [{"d": 1}]}
    before = copy.deepcopy((template, config))
    merged = merge_config(template, config)
    merged["a"]["b"].append(2)
    merged["hyperparameters"]["x"]["vals"].append(2)
    merged["c"][0]["d"] = 2
    assert (template, config) == before


def test_a_document_that_contains_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    with pytest.raises(ConfigError, match="nested deeper"):
        merge_config(endless, {})


def test_a_key_with_a_dot_is_no_path() -> None:
    assert merge_config({"resources.devices": [1]}, {"resources.devices": [2]}) == {"resources.devices": [1, 2]}


@pytest.mark.parametrize("tag", [RESET, Override(1)])
@pytest.mark.parametrize("path", ["bind_mounts", "data"])
def test_a_tag_inside_a_list_item_is_an_error(path: str, tag: object) -> None:
    with pytest.raises(ConfigError, match="list item"):
        merge_config({}, {path: [{"host_path": {"a": tag}}]})


def test_every_searcher_says_whether_it_samples() -> None:
    assert {name: model.draws_samples for name, model in SEARCHERS.items() if not model.draws_samples} == {
        "single": False,
        "grid": False,
    }
