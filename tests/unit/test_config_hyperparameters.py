from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.core.hyperparameters.space import check_space, constants, is_constant, is_leaf, leaves

INT = {"type": "int", "minval": 1, "maxval": 4}
LOG = {"type": "log", "minval": -3, "maxval": -1}


def test_a_map_without_type_is_a_group_and_all_else_a_leaf() -> None:
    assert [is_leaf(value) for value in ({}, {"a": 1}, INT, 1, "x", None, [1])] == [False, False, *[True] * 5]
    assert [is_constant(value) for value in (1, None, [1], {"type": "const", "val": 2}, INT)] == [*[True] * 4, False]


def test_leaves_come_in_the_order_of_their_names_at_every_level() -> None:
    assert [path for path, _ in leaves({"b": {"z": 1, "a": INT}, "a": None})] == [
        "hyperparameters.a",
        "hyperparameters.b.a",
        "hyperparameters.b.z",
    ]


def test_constants_are_the_values_that_the_code_sees() -> None:
    space = {"a": {"type": "const", "val": [1]}, "b": {"c": None, "d": {"type": "const", "val": {"x": 1}}}}
    assert constants(space) == {"a": [1], "b": {"c": None, "d": {"x": 1}}}
    with pytest.raises(ValueError, match="'n' is not a constant"):
        constants({"n": INT})


@pytest.mark.parametrize(
    "leaf",
    [
        INT,
        {**INT, "count": 2},
        {"type": "double", "minval": 0, "maxval": 0.5},
        LOG,
        {**LOG, "base": 2, "count": 1},
        {"type": "categorical", "vals": [None]},
        {"type": "const", "val": None},
    ],
)
def test_good_leaves_have_no_problem(leaf: dict[str, Any]) -> None:
    assert check_space({"g": {"x": leaf}}) == []


@pytest.mark.parametrize(
    ("leaf", "field", "words"),
    [
        ({"type": "uniform"}, "type", "'uniform' is not one of const, int, double, log, categorical"),
        ({"type": {"a": 1}}, "type", "is not one of"),
        ({"type": "const"}, "val", "const requires it"),
        ({"type": "int", "minval": 1}, "maxval", "int requires it"),
        ({**INT, "minval": 4}, "minval", "4 is not below maxval 4"),
        ({**INT, "minval": 1.5}, "minval", "1.5 is not an integer"),
        ({**INT, "minval": True}, "minval", "True is not an integer"),
        ({**INT, "count": 0}, "count", "0 is not an integer >= 1"),
        ({**INT, "base": 2}, "base", "unknown field of int"),
        ({**LOG, "maxval": "x"}, "maxval", "'x' is not a number"),
        ({**LOG, "base": 0}, "base", "0 is not a number above 0"),
        ({**LOG, "base": 1}, "base", "1 is not a number above 0"),
        ({**LOG, "maxval": 5000}, "maxval", "is not a finite number"),
        ({**LOG, "maxval": 10**400}, "maxval", "is not a finite number"),
        ({"type": "categorical", "vals": []}, "vals", "at least one value"),
        ({"type": "categorical", "vals": "ab"}, "vals", "at least one value"),
    ],
)
def test_a_wrong_leaf_is_named_with_its_field(leaf: dict[str, Any], field: str, words: str) -> None:
    (problem,) = check_space({"g": {"x": leaf}})
    assert problem.path == f"hyperparameters.g.x.{field}"
    assert words in problem.message
