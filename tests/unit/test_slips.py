"""Lint rules for the configuration of a search."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.search.lint import slips
from airflow_provider_dtrain.core.search.plan import outline
from airflow_provider_dtrain.errors import ConfigError

RANDOM = {"name": "random", "metric": "loss", "max_trials": 4}
HALVING = {**RANDOM, "name": "async_halving", "max_trials": 64}


def found(space: dict[str, Any], searcher: dict[str, Any] = RANDOM, slots: int = 1) -> list[str]:
    document = {
        "entrypoint": "python train.py",
        "resources": {"slots_per_trial": slots},
        "searcher": searcher,
        "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}, **space},
    }
    config = ExperimentConfig.model_validate(document)
    return slips(config, outline(config))


@pytest.mark.parametrize(("low", "high", "is_slip"), [(1e-5, 0.1, True), (-5, -1, False), (0, 1, False), (1, 3, False)])
def test_values_instead_of_exponents(low: float, high: float, is_slip: bool) -> None:
    assert bool(found({"net": {"wd": {"type": "log", "minval": low, "maxval": high}}})) is is_slip


def test_a_range_inside_a_list_is_a_constant() -> None:
    layer = {"type": "int", "minval": 1, "maxval": 4}
    [words] = found({"layers": [8, layer]})
    assert words.startswith("hyperparameters.layers: a list is one constant")
    assert "the int at [1]" in words
    assert found({"layers": [8, {"type": "conv"}]}) == []


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"minval": 0, "maxval": 1}, "the constants maxval and minval; type: int, double or log is missing"),
        ({"minval": 0, "maxval": 1, "base": 2}, "the constants base and maxval and minval; type: log is missing"),
        ({"vals": [1, 2]}, "the constants vals; type: categorical is missing"),
        ({"val": 0.1}, None),
        ({"minval": 0, "lr": 1}, None),
    ],
)
def test_a_range_without_a_type(group: dict[str, Any], words: str | None) -> None:
    said = found({"net": {"lr": group}, "wd": {"type": "double", "minval": 0, "maxval": 1}})
    expected = [] if words is None else [f"hyperparameters.net.lr: without a type this is a group with {words}"]
    assert said == expected


@pytest.mark.parametrize(
    ("size", "least"),
    [
        ({"type": "categorical", "vals": [16, 4]}, 4),
        ({"type": "int", "minval": 2, "maxval": 64}, 2),
        ({"type": "categorical", "vals": [16, 8]}, None),
        ({"type": "log", "base": 2, "minval": 4, "maxval": 6}, None),
    ],
)
def test_a_batch_that_leaves_slots_without_a_sample(size: dict[str, Any], least: int | None) -> None:
    words = found({"global_batch_size": size}, slots=8)
    assert [f": {least} is less" in one for one in words] == ([] if least is None else [True])


def test_rungs_at_one_length() -> None:
    [words] = found({}, {**HALVING, "num_rungs": 5, "max_length": {"batches": 3}})
    assert "rungs at 1, 1, 1, 1, 3 batches" in words
    assert found({}, {**HALVING, "num_rungs": 3, "max_length": {"batches": 64}}) == []


def test_a_missing_length_is_said_together_with_the_rest() -> None:
    with pytest.raises(ConfigError) as why:
        ExperimentConfig.model_validate({"entrypoint": "python train.py", "searcher": {"name": "async_halving"}})
    assert {problem.path for problem in why.value.problems} == {
        "searcher.metric", "searcher.max_trials", "searcher.num_rungs", "searcher.max_length",
    }  # fmt: skip
