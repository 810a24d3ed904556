"""The plan of a search for each method, and the configurations that have none."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble
from airflow_provider_dtrain.core.hyperparameters.grid import GRID_LIMIT
from airflow_provider_dtrain.core.hyperparameters.seeds import trial_seed
from airflow_provider_dtrain.core.hyperparameters.space import grid, sample
from airflow_provider_dtrain.core.search.plan import outline, plan, planned
from airflow_provider_dtrain.errors import ConfigError

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "minval": -5, "maxval": -1, "count": 4},
    "net": {"width": {"type": "int", "minval": 1, "maxval": 9, "count": 3}},
    "global_batch_size": 64,
}
EPOCHS = {"epochs": 16}
#: The second trial of a plan, and SHA-256 of all as JSON.
GOLDEN = {
    "number": 1, "bracket": 1, "rungs": [4, 16], "seed": 1367249289,
    "hyperparameters": {
        "act": "relu", "drop": 0.024019661079546395, "global_batch_size": 64, "lr": 0.07171572676397059,
        "net": {"width": 5},
    },
}  # fmt: skip
GOLDEN_DIGEST = "fab7158924108c5d06048d84490ff8157bbb1f5d2001d34ca3849271bbdd4b89"


def config(searcher: dict[str, Any], space: dict[str, Any] | None = None) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "entrypoint": "python train.py",
            "hyperparameters": SPACE if space is None else space,
            "searcher": {"metric": "loss", **searcher},
        }
    )


def refusals(searcher: dict[str, Any], space: dict[str, Any] | None = None, **limits: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(config(searcher, space), 1, **limits)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("method", ["single", "random"])
def test_samples_are_planned_by_the_number_of_the_trial(method: str) -> None:
    trials = plan(config({"name": method, **({"max_trials": 5} if method == "random" else {})}), 9)
    assert [trial["number"] for trial in trials] == list(range(5 if method == "random" else 1))
    for number, trial in enumerate(trials):
        values = sample(SPACE, experiment_seed=9, trial=number)
        assert trial == {
            "number": number,
            "hyperparameters": values,
            "bracket": 0,
            "rungs": [],
            "seed": trial_seed(9, number),
        }


def test_a_longer_search_begins_with_the_trials_of_a_shorter_one() -> None:
    short, long = (plan(config({"name": "random", "max_trials": count}), 4) for count in (3, 8))
    assert long[:3] == short


def test_a_grid_is_planned_in_its_order() -> None:
    trials = plan(config({"name": "grid"}), 2)
    assert [trial["hyperparameters"] for trial in trials] == grid(SPACE)
    assert len({trial["seed"] for trial in trials}) == len(trials) == 12


@pytest.mark.parametrize(
    "searcher",
    [
        {"name": "optuna"},
        {"name": "async_halving", "sampler": "gp", "num_rungs": 3, "max_length": EPOCHS},
        {"name": "adaptive_asha", "sampler": "gp", "max_length": EPOCHS},
    ],
)
def test_trials_that_learn_from_others_have_no_values_yet(searcher: dict[str, Any]) -> None:
    trials = plan(config({**searcher, "max_trials": 3}), 2)
    assert [(trial["number"], trial["hyperparameters"]) for trial in trials] == [(0, None), (1, None), (2, None)]


def test_halving_gives_each_trial_its_rungs() -> None:
    trials = plan(config({"name": "async_halving", "max_trials": 4, "num_rungs": 3, "max_length": EPOCHS}), 2)
    assert [(trial["bracket"], trial["rungs"]) for trial in trials] == [(0, [1, 4, 16])] * 4


def test_brackets_begin_together_and_have_their_share() -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 50, "divisor": 3, "max_length": {"batches": 900},
                "bracket_rungs": [4, 3]}  # fmt: skip
    trials = plan(config(searcher), 2)
    assert Counter(trial["bracket"] for trial in trials) == {0: 35, 1: 15}
    assert {trial["bracket"]: trial["rungs"] for trial in trials} == {0: [33, 100, 300, 900], 1: [100, 300, 900]}
    for number in range(1, 51):
        so_far = sum(trial["bracket"] == 0 for trial in trials[:number])
        assert abs(so_far - number * 35 / 50) <= 1


def test_max_time_counts_in_the_time_metric() -> None:
    searcher = {"name": "async_halving", "max_trials": 4, "num_rungs": 2, "max_time": 3600, "time_metric": "seconds"}
    assert plan(config(searcher), 2)[0]["rungs"] == [900, 3600]
    assert (outline(config(searcher)).unit, outline(config(searcher)).length) == ("seconds", 3600)


def test_the_same_seed_gives_the_same_bytes_in_each_process() -> None:
    program = (
        "import json, sys\n"
        "from airflow_provider_dtrain.core.config import ExperimentConfig\n"
        "from airflow_provider_dtrain.core.search.plan import plan\n"
        "config = ExperimentConfig.model_validate(json.loads(sys.argv[1]))\n"
        "sys.stdout.write(json.dumps(plan(config, 77)))\n"
    )
    searcher = {"name": "adaptive_asha", "metric": "loss", "max_trials": 64, "max_length": EPOCHS}
    document = {"entrypoint": "python train.py", "hyperparameters": SPACE, "searcher": searcher}
    here = json.dumps(plan(ExperimentConfig.model_validate(document), 77))
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program, json.dumps(document)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout == here
    assert json.dumps(plan(ExperimentConfig.model_validate(document), 78)) != here


def test_a_plan_is_the_same_on_every_version_of_python() -> None:
    """The digest is fixed: a search that continues after an upgrade must not draw other samples."""
    space = {**SPACE, "drop": {"type": "double", "minval": 0, "maxval": 0.5},
             "act": {"type": "categorical", "vals": ["relu", None, [1, 2]]}}  # fmt: skip
    searcher = {"name": "adaptive_asha", "max_trials": 64, "max_length": EPOCHS}
    trials = plan(config(searcher, space), 77)
    assert trials[1] == GOLDEN
    assert hashlib.sha256(json.dumps(trials).encode()).hexdigest() == GOLDEN_DIGEST


def test_ten_thousand_trials_are_planned_in_little_time() -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 10_000, "max_length": {"epochs": 256}}
    started = time.process_time()
    trials = plan(config(searcher), 1)
    # The goal is one second; five allow for a busy machine.
    assert time.process_time() - started < 5
    assert len({trial["seed"] for trial in trials}) > 9_990


def test_the_first_trials_of_a_plan_come_without_the_rest() -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 100_000, "max_length": EPOCHS}
    large = config(searcher)
    trials = planned(large, 1, outline(large))
    started = time.process_time()
    assert [next(trials)["number"] for _ in range(3)] == [0, 1, 2]
    assert time.process_time() - started < 1
    assert refusals({**searcher, "max_trials": 100_001}) == [
        "searcher.max_trials: 100001 trials, and at most 100000 are accepted"
    ]


def test_a_search_without_a_dimension_is_refused() -> None:
    for name in ("random", "grid", "optuna"):
        more = {} if name == "grid" else {"max_trials": 3}
        (problem,) = refusals({"name": name, **more}, {"lr": 0.1, "net": {"width": {"type": "const", "val": 3}}})
        assert problem.startswith("hyperparameters: constants only, so all trials would be the same")
    assert len(plan(config({"name": "single"}, {"lr": 0.1}), 1)) == 1


def test_a_choice_of_equal_values_is_no_dimension_and_changes_no_sample() -> None:
    one, two = ({"type": "categorical", "vals": vals} for vals in ([32, 32], [32, 64]))
    (problem,) = refusals({"name": "random", "max_trials": 3}, {"a": one, "b": {"type": "categorical", "vals": [1]}})
    assert problem.startswith("hyperparameters: constants only")
    assert len(plan(config({"name": "random", "max_trials": 3}, {"a": one, "b": two}), 1)) == 3
    assert len(plan(config({"name": "grid"}, {"a": {"type": "categorical", "vals": [1, True, 1.0]}}), 1)) == 3


def test_a_grid_without_counts_names_them_all() -> None:
    space = {name: {"type": "int", "minval": 0, "maxval": 3} for name in "ab"}
    assert refusals({"name": "grid"}, space) == [
        "hyperparameters.a.count: missing; a grid requires it",
        "hyperparameters.b.count: missing; a grid requires it",
    ]


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    space = {name: {"type": "double", "minval": 0, "maxval": 1, "count": 10**6} for name in "abc"}
    (problem,) = refusals({"name": "grid"}, space)
    assert problem == f"hyperparameters: the grid has {10**18} points, and at most 100000 are accepted; lower a count"


def test_more_trials_than_airflow_maps_are_refused() -> None:
    assert len(plan(config({"name": "random", "max_trials": 5}), 1, max_map_length=5)) == 5
    assert refusals({"name": "random", "max_trials": 6}, max_map_length=5) == [
        "searcher.max_trials: 6 trials; Airflow maps at most 5 tasks. Raise [core] max_map_length or "
        "searcher.trials_per_task, or lower max_trials"
    ]
    (problem,) = refusals({"name": "grid"}, max_map_length=5)
    assert problem == (
        "hyperparameters: 12 trials; Airflow maps at most 5 tasks. Raise [core] max_map_length or "
        "searcher.trials_per_task, or lower a count"
    )


def test_brackets_that_cannot_be_are_refused() -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 20, "divisor": 3, "max_length": {"epochs": 9}}
    assert len(plan(config({**searcher, "bracket_rungs": [3, 2, 1]}), 1)) == 20
    assert refusals({**searcher, "max_length": {"epochs": 1000}, "bracket_rungs": [4, 2]}) == [
        "searcher.bracket_rungs: 4 rungs need 3^3 trials, one for the last; max_trials is 20"
    ]
    assert refusals({**searcher, "max_trials": 99, "bracket_rungs": [4]}) == [
        "searcher.bracket_rungs: 4 rungs need a length of 3^3; max_length is 9 epochs"
    ]
    (problem,) = refusals({**searcher, "max_trials": 2, "bracket_rungs": [1, 1, 1]})
    assert "3 brackets, which leave none of max_trials 2 for the first" in problem


@pytest.mark.parametrize(
    ("searcher", "problem"),
    [
        ({"name": "random", "max_trials": 0}, "searcher.max_trials: 0 is below 1"),
        ({"name": "random"}, "searcher.max_trials: missing; it is required here"),
        ({"name": "grid", "metric": ""}, "searcher.metric: an empty text is not accepted"),
        ({"name": "grid", "metric": None}, "searcher.metric: missing; it is required here"),
        ({"name": "hyperband", "max_trials": 2}, "searcher.name: 'hyperband' is not one of"),
        (
            {"name": "async_halving", "max_trials": 2, "num_rungs": 2},
            "searcher.max_length: missing; async_halving requires it",
        ),
    ],
)
def test_a_searcher_that_says_nonsense_is_refused_with_its_path(searcher: dict[str, Any], problem: str) -> None:
    document = {"entrypoint": "python train.py", "hyperparameters": SPACE, "searcher": {"metric": "loss", **searcher}}
    with pytest.raises(ConfigError) as caught:
        assemble(None, document)
    assert problem in str(caught.value)


def test_the_outline_counts_units() -> None:
    shape = outline(config({"name": "random", "max_trials": 8, "max_length": EPOCHS}))
    assert (shape.most_units, shape.expected_units, shape.max_concurrent) == (128, 128, 16)
    shape = outline(
        config({"name": "async_halving", "max_trials": 3, "num_rungs": 2, "divisor": 2, "max_length": EPOCHS})
    )
    # Rung 0 at 8 epochs: the first trial continues, the second and third with probability 1/2 and 1/3.
    assert (shape.most_units, shape.expected_units) == (48, round(3 * 8 + (1 + 1 / 2 + 1 / 3) * 8))
    shape = outline(config({"name": "random", "max_trials": 8, "max_concurrent_trials": 0}))
    assert (shape.most_units, shape.expected_units, shape.max_concurrent) == (None, None, None)


def test_the_expected_units_are_those_of_searches_by_chance() -> None:
    import random

    from testbed.rungs import Rungs

    searcher = {"name": "async_halving", "max_trials": 64, "num_rungs": 3, "max_length": EPOCHS}
    shape, spent, chance = outline(config(searcher)), 0, random.Random(5)
    for _ in range(200):
        rungs = Rungs(3, 16, 4)
        for trial in range(64):
            for before, length in ((0, 1), (1, 4), (4, 16)):
                spent += length - before
                if rungs.report(trial, length, chance.random()) != "continue":
                    break
    assert shape.expected_units == pytest.approx(spent / 200, rel=0.03)


def test_the_example_of_the_page_is_a_search_with_the_defaults_that_it_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    effective = assemble(None, yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])).config
    shape, trials = outline(effective), plan(effective, 7)
    assert ([rungs for rungs, _ in shape.brackets], len(trials)) == ([(1, 4, 16, 64), (4, 16, 64), (16, 64)], 64)
    assert (shape.max_concurrent, shape.divisor) == (16, 4)
    assert "at most 100,000" in page
    assert f"{GRID_LIMIT:,}" == "100,000"


@pytest.mark.parametrize(("trials", "per_task", "tasks"), [(12, 4, 3), (13, 4, 4), (12, 1, 12), (12, 12, 1)])
def test_trials_of_a_task_make_fewer_tasks(trials: int, per_task: int, tasks: int) -> None:
    found = config({"name": "random", "max_trials": trials, "trials_per_task": per_task})
    assert outline(found).tasks == tasks
    assert len(plan(found, 1, max_map_length=tasks)) == trials
    if tasks > 1:
        (problem,) = refusals(
            {"name": "random", "max_trials": trials, "trials_per_task": per_task}, max_map_length=tasks - 1
        )
        assert problem.startswith(f"searcher.max_trials: {trials} trials")
        assert (f" in {tasks} tasks" in problem) == (per_task > 1)


@pytest.mark.parametrize(
    ("searcher", "problem"),
    [
        ({"name": "random", "max_trials": 3, "trials_per_task": 4}, "3, got 4"),
        ({"name": "optuna", "max_trials": 3, "trials_per_task": 4}, "3, got 4"),
        ({"name": "grid", "trials_per_task": 13}, "12, got 13"),
    ],
)
def test_a_task_has_no_more_trials_than_the_search(searcher: dict[str, Any], problem: str) -> None:
    assert refusals(searcher) == [f"searcher.trials_per_task: must be at most the number of trials, {problem}"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "x"])
def test_a_task_has_at_least_one_trial(wrong: Any) -> None:
    (problem,) = refusals({"name": "random", "max_trials": 3, "trials_per_task": wrong})
    assert problem.startswith("searcher.trials_per_task: ")
    assert repr(wrong) in problem


def test_a_single_trial_has_no_trials_per_task() -> None:
    (problem,) = refusals({"name": "single", "trials_per_task": 2})
    assert problem.startswith("searcher.trials_per_task: ")
