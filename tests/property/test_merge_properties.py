from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.config.determined_compat import normalize
from airflow_provider_dtrain.core.config.merge import RESET, Override, join_path, merge_config, merge_layers
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml, plain_scalar
from airflow_provider_dtrain.errors import ConfigError
from tests.support.budgets import budget

#: Names with special rules and plain names, so that each rule is combined with each shape.
KEYS = st.sampled_from(
    [
        "a",
        "b",
        "labels",
        "resources",
        "devices",
        "environment",
        "variables",
        "hyperparameters",
        "type",
        "name",
        "data",
        "searcher",
        "checkpoint_storage",
        "bucket",
        "metric",
        "save_trial_best",
        "log_policies",
        "pattern",
        "bind_mounts",
        "container_path",
        "x.y",
    ]
)
SCALARS = st.one_of(
    st.integers(-3, 3), st.booleans(), st.sampled_from(["", "s3", "gcs", "A=1", "/a", "x"]), st.floats(-1, 1)
)


def documents(*extra: st.SearchStrategy[Any], tags: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents of any shape.

    :param tags: whether values of fields may be overrides and resets
    """
    leaf = st.one_of(SCALARS, *extra)

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        field = st.one_of(inner, st.just(RESET), st.builds(Override, inner)) if tags else inner
        return st.one_of(st.dictionaries(KEYS, field, max_size=4), st.lists(deep_plain, max_size=3))

    deep_plain = st.recursive(leaf, lambda inner: st.dictionaries(KEYS, inner, max_size=2), max_leaves=3)
    value = st.recursive(leaf, deeper, max_leaves=8)
    field = st.one_of(value, st.just(RESET), st.builds(Override, value)) if tags else value
    return st.dictionaries(KEYS, field, max_size=5)


def plain_leaves(value: Any, path: str = "", *, space: bool = False) -> set[str]:
    """Return the paths of the leaves, computed without the code under test."""
    if space and path != "hyperparameters" and (not isinstance(value, dict) or "type" in value):
        return {path}
    if isinstance(value, dict) and value:
        items = [(join_path(path, key), item) for key, item in value.items()]
    elif isinstance(value, list) and value:
        items = [(f"{path}.{index}", item) for index, item in enumerate(value)]
    else:
        return {path} if path else set()
    inside = space and isinstance(value, dict)
    return set().union(
        *(plain_leaves(item, below, space=inside or below == "hyperparameters") for below, item in items)
    )


@settings(deadline=None)
@given(documents(), documents())
def test_origins_cover_exactly_the_leaves(template: dict[str, Any], config: dict[str, Any]) -> None:
    merged, origins = merge_layers([("template", template), ("config", config)])
    assert set(origins) == plain_leaves(merged)
    assert set(origins.values()) <= {"template", "config"}


@settings(deadline=None)
@given(documents())
def test_an_empty_template_changes_nothing(document: dict[str, Any]) -> None:
    merged, origins = merge_layers([("template", {}), ("config", document)])
    assert merged == document
    assert set(origins.values()) <= {"config"}


@settings(deadline=None)
@given(documents())
def test_an_empty_configuration_changes_nothing(document: dict[str, Any]) -> None:
    merged, origins = merge_layers([("template", document), ("config", {})])
    assert merged == document
    assert set(origins.values()) <= {"template"}


@settings(deadline=None)
@given(documents(st.none()), documents(st.none(), tags=True))
def test_inputs_are_not_changed_and_not_shared(template: dict[str, Any], config: dict[str, Any]) -> None:
    before = copy.deepcopy((template, config))
    spoil(merge_config(template, config))
    assert (template, config) == before


def spoil(value: Any) -> None:
    """Change every container in place."""
    if isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoiled"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoiled")


@settings(deadline=None)
@given(documents(st.none()), documents(st.none(), tags=True))
def test_no_tag_is_left_and_merging_again_with_nothing_changes_nothing(
    template: dict[str, Any], config: dict[str, Any]
) -> None:
    merged = merge_config(template, config)
    assert "Override" not in repr(merged)
    assert "RESET" not in repr(merged)
    assert merge_config({}, merged) == merged == merge_config(merged, {})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), SCALARS), st.dictionaries(st.sampled_from("abc"), SCALARS))
def test_scalars_of_the_configuration_win(template: dict[str, Any], config: dict[str, Any]) -> None:
    assert merge_config(template, config) == {**template, **config}


@settings(deadline=None)
@given(st.lists(SCALARS), st.lists(SCALARS), st.lists(SCALARS))
def test_lists_concatenate_and_so_associate(one: list[Any], two: list[Any], three: list[Any]) -> None:
    assert merge_config({"x": one}, {"x": two}) == {"x": one + two}
    first = merge_config(merge_config({"x": one}, {"x": two}), {"x": three})
    assert first == merge_config({"x": one}, merge_config({"x": two}, {"x": three}))


LABELS = st.lists(st.sampled_from("abcde"), unique=True)


@settings(deadline=None)
@given(LABELS, LABELS)
def test_labels_are_a_union(template: list[str], config: list[str]) -> None:
    merged = merge_config({"labels": template}, {"labels": config})["labels"]
    assert merged == template + [label for label in config if label not in template]


PLACES = st.lists(st.sampled_from(["/a", "/b", "/c", "/d"]), unique=True)


@settings(deadline=None)
@given(PLACES, PLACES)
def test_mounts_never_share_a_container_path(template: list[str], config: list[str]) -> None:
    def mounts(places: list[str], origin: str) -> dict[str, Any]:
        return {"bind_mounts": [{"container_path": place, "host_path": f"/{origin}"} for place in places]}

    merged = merge_config(mounts(template, "t"), mounts(config, "c"))["bind_mounts"]
    assert merged[: len(config)] == mounts(config, "c")["bind_mounts"]
    assert [item["container_path"] for item in merged[len(config) :]] == [p for p in template if p not in config]


VARIABLES = st.dictionaries(st.sampled_from("ABC"), st.text("xy=", max_size=3))


@settings(deadline=None)
@given(VARIABLES, VARIABLES, st.booleans(), st.booleans())
def test_variables_merge_by_name_in_any_form(
    template: dict[str, str], config: dict[str, str], lists_below: bool, lists_above: bool
) -> None:
    def document(values: dict[str, str], as_list: bool) -> dict[str, Any]:
        listed = [f"{key}={value}" for key, value in values.items()]
        return {"environment": {"variables": listed if as_list else values}}

    merged = merge_config(document(template, lists_below), document(config, lists_above))
    assert normalize(merged).document["environment"]["variables"] == {**template, **config}


@settings(deadline=None)
@given(documents(), documents())
def test_an_override_of_a_field_is_the_field_itself(template: dict[str, Any], config: dict[str, Any]) -> None:
    tagged = {key: Override(value) for key, value in config.items()}
    assert merge_config(template, tagged) == {**template, **config}


@settings(deadline=None)
@given(documents(), st.sets(KEYS))
def test_a_reset_removes_the_field_and_nothing_else(template: dict[str, Any], names: set[str]) -> None:
    merged = merge_config(template, dict.fromkeys(names, RESET))
    assert merged == {key: value for key, value in template.items() if key not in names}


@settings(max_examples=budget(200), deadline=None)
@given(st.text("[]{}:,-&*!<>?|'\"# \nab01.~e", max_size=80))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        document = load_yaml(text)
    except ConfigError:
        return
    assert isinstance(document, dict)


@settings(deadline=None)
@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()))
def test_plain_scalars_read_back_what_json_writes(value: object) -> None:
    assert plain_scalar(json.dumps(value)) == value
