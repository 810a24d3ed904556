"""The command ``airflow dtrain searches preview``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.search.plan import plan
from tests.support.cli_world import World

pytest_plugins = ["tests.support.cli_world"]
pytestmark = pytest.mark.airflow

ADAPTIVE = """
entrypoint: python train.py
hyperparameters:
  lr: {type: log, minval: -5, maxval: -1}
  net: {width: {type: int, minval: 8, maxval: 512}, act: {type: categorical, vals: [relu, null]}}
searcher: {name: adaptive_asha, metric: loss, max_trials: 20, divisor: 3, max_length: {epochs: 9}}
resources: {slots_per_trial: 4}
"""
GRID = """
entrypoint: python train.py
hyperparameters: {lr: {type: log, minval: 1, maxval: 2, count: 2}}
searcher: {name: grid, metric: loss}
reproducibility: {experiment_seed: 5}
"""


def preview(world: World, text: str, *arguments: str) -> Any:
    return world("searches", "preview", world.file("search.yaml", text), *arguments)


def test_a_preview_shows_cost_brackets_and_the_first_trials(world: World) -> None:
    done = preview(world, ADAPTIVE, "--trials", "2")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["trials", "20", "x", "4", "slots"] in lines
    assert ["0", "14", "1,", "3,", "9"] in lines
    assert ["trial", "bracket", "lr", "net.act", "net.width", "seed"] in lines
    assert "at most 180 epochs; expected" in done.out
    assert "Samples of seed 0. A run draws its own seed" in done.err
    assert sum(line[:1] in (["0"], ["1"]) and len(line) == 6 for line in lines) == 2


def test_each_hyperparameter_has_a_column_of_its_own_in_a_preview(world: World) -> None:
    values = "{type: categorical, vals: [%s]}"
    space = f"a.b: {values % 'x'}, a: {{b: {values % 'y'}}}, c.d: {values % 'z'}, seed: {values % 's'}, t: {{}}"
    one = "entrypoint: python train.py\nsearcher: {name: grid, metric: loss}\nhyperparameters: {lr: {type: int, "
    done = preview(world, f"{one}minval: 3, maxval: 4, count: 2}}, {space}}}\n", "--seed", "1")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["trial", "a.b", '"a.b"', "c.d", "lr", "hyperparameters.seed", "t", "seed"] in lines, done.err
    assert any(line[:7] == ["0", "y", "x", "z", "3", "s", "{}"] for line in lines), done.out


def test_json_has_the_trials_that_a_run_would_have(world: World) -> None:
    import yaml

    found = preview(world, ADAPTIVE, "--trials", "3", "--seed", "8", "-o", "json").json
    config = ExperimentConfig.model_validate(yaml.safe_load(ADAPTIVE))
    assert found["first_trials"] == plan(config, 8)[:3]
    assert found["brackets"] == [{"trials": 14, "rungs": [1, 3, 9]}, {"trials": 6, "rungs": [3, 9]}]
    assert (found["seed"], found["trials"], found["most_units"], found["unit"]) == (8, 20, 180, "epochs")
    assert found["most_units"] > found["expected_units"] > 20


def test_a_grid_of_a_script_has_no_length(world: World) -> None:
    found = preview(world, GRID, "-o", "json").json
    assert [trial["hyperparameters"] for trial in found["first_trials"]] == [{"lr": 10.0}, {"lr": 100.0}]
    assert (found["seed"], found["most_units"], found["max_length"]) == (5, None, None)
    shown = preview(world, GRID)
    assert "set by the training code" in shown.out
    assert "seed" not in shown.err


@pytest.mark.parametrize(
    "text",
    [
        ADAPTIVE.replace("adaptive_asha", "optuna").replace("divisor: 3, ", ""),
        ADAPTIVE.replace("adaptive_asha", "adaptive_asha, sampler: gp"),
    ],
)
def test_hyperparameters_that_other_trials_inform_are_not_known_yet(world: World, text: str) -> None:
    assert "are drawn when it starts, from what other trials have shown." in preview(world, text).err
    found = preview(world, text, "-o", "json").json
    assert found["first_trials"][0]["hyperparameters"] is None


def test_a_template_lies_below_the_configuration(world: World) -> None:
    template = world.file("team.yaml", "searcher: {metric: accuracy, smaller_is_better: false}\n")
    found = preview(world, GRID.replace(", metric: loss", ""), "--template", template, "-o", "json").json
    assert found["metric"] == "accuracy"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", count: 2", "", "hyperparameters.lr.count: missing; a grid requires it"),
        ("{type: log, minval: 1, maxval: 2, count: 2}", "1", "hyperparameters: constants only"),
        ("grid,", "random, max_trials: 0,", "searcher.max_trials: 0 is below 1"),
        ("grid,", "random, max_trials: 100000000,", "100000000 trials, and at most 100000 are accepted"),
        ("count: 2", "count: 200000", "the grid has 200000 points, and at most 100000 are accepted"),
    ],
)
def test_a_search_that_cannot_be_planned_is_refused(world: World, old: str, new: str, message: str) -> None:
    done = preview(world, GRID.replace(old, new))
    assert (done.code, done.out) == (1, "")
    assert message in done.err


def test_a_space_in_which_nothing_varies_is_named_with_its_file_and_fails_the_validation(world: World) -> None:
    text = GRID.replace("{type: log, minval: 1, maxval: 2, count: 2}", "{type: categorical, vals: [1, 1]}")
    for command in (("searches", "preview"), ("configs", "validate")):
        done = world(*command, world.file("search.yaml", text))
        assert (done.code, done.out) == (1, "")
        assert "search.yaml" in done.err
        assert "hyperparameters: constants only" in done.err


def test_a_seed_that_is_no_number_is_a_usage_error(world: World) -> None:
    done = preview(world, GRID, "--seed", "x")
    assert done.code == 2
    assert "must be a whole number" in done.err


def test_slots_that_no_host_has_are_named_once_there_are_hosts(world: World) -> None:
    wide = ADAPTIVE.replace("slots_per_trial: 4", "slots_per_trial: 4, pool: local")
    assert "slots" not in preview(world, wide).err
    world.add_local_host()
    done = preview(world, wide)
    assert "Warning" not in preview(world, wide.replace("slots_per_trial: 4", "slots_per_trial: 2")).err
    assert world("hosts", "remove", "local", "--force", "-y").code == 0
    assert done.code == 0
    assert "Warning: " in done.err
    assert "4 slots" in done.err


def test_a_preview_tells_choices_apart(world: World) -> None:
    path = world.file(
        "mixed.yaml",
        "entrypoint: python run.py\n"
        "hyperparameters:\n"
        '  mixed: {type: categorical, vals: [null, true, 1, "1", 1.0, "true", [1, 2], adam]}\n'
        "searcher: {name: grid, metric: loss, max_length: {batches: 1}}\n",
    )
    done = world("searches", "preview", path, "--trials", "8")
    rows = [line.split("  ") for line in done.out.splitlines()]
    shown = {cells[0]: [cell for cell in cells if cell][1].strip() for cells in rows if cells[0].isdigit()}
    assert list(shown.values()) == ["null", "true", "1", '"1"', "1.0", '"true"', "[1,2]", "adam"]
