"""The grid and the samples of a space: known answers, and the same ones everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.hyperparameters.space import check_space, grid, grid_size, sample
from airflow_provider_dtrain.errors import ConfigError

ROOT = Path(__file__).parents[2]
SPACE: dict[str, Any] = {
    "lr": {"type": "log", "minval": -5, "maxval": -1},
    "width": {"type": "int", "minval": 8, "maxval": 512},
    "optimizer": {
        "name": {"type": "categorical", "vals": ["adam", None, [1, 2], {"sgd": 0.9}]},
        "decay": {"type": "double", "minval": 0, "maxval": 0.1},
        "shift": {"type": "log", "base": 2, "minval": 0.5, "maxval": 3},
    },
    "global_batch_size": 64,
    "layers": {"type": "const", "val": [3, 4]},
}
#: Fixed: every later version must reproduce an existing plan.
FIRST = {
    "global_batch_size": 64,
    "layers": [3, 4],
    "lr": 0.0002288516447046536,
    "optimizer": {"decay": 0.0376665776776438, "name": None, "shift": 1.451461295663483},
    "width": 65,
}


def ranged(kind: str, low: float, high: float, count: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "minval": low, "maxval": high, "count": count, **more}


def test_a_grid_has_the_product_of_its_counts() -> None:
    counts = [2, 2, 3, 3, 4, 5]
    space = {f"h{index}": ranged("double", 0, 1, count) for index, count in enumerate(counts)}
    assert grid_size(space) == len(grid(space)) == 720


def test_the_last_name_of_a_grid_varies_fastest() -> None:
    space = {"b": ranged("int", 0, 10, 3), "a": ranged("int", 0, 20, 3)}
    points = [(point["a"], point["b"]) for point in grid(space)]
    assert points == [(a, b) for a in (0, 10, 20) for b in (0, 5, 10)]


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        (ranged("log", 1, 2, 2, base=10), [10.0, 100.0]),
        (ranged("log", 1, 3, 1), [100.0]),
        (ranged("log", -3, -1, 3), [0.001, 0.01, 0.1]),
        (ranged("log", 0, 4, 3, base=2), [1.0, 4.0, 16.0]),
        (ranged("log", 1, 2, 2, base=0.5), [0.5, 0.25]),
        (ranged("int", 0, 3, 100), [0, 1, 2, 3]),
        (ranged("int", 0, 10, 1), [5]),
        (ranged("int", 1, 10, 4), [1, 4, 7, 10]),
        (ranged("int", -3, 3, 3), [-3, 0, 3]),
        (ranged("int", 0, 10, 4), [0, 3, 7, 10]),
        (ranged("int", 0, 10**30, 2), [0, 10**30]),
        (ranged("double", 0.1, 0.5, 5), [0.1, 0.2, 0.3, 0.4, 0.5]),
        (ranged("double", 1, 3, 1), [2.0]),
        (ranged("double", -8e307, 8e307, 3), [-8e307, 0.0, 8e307]),
        ({"type": "categorical", "vals": ["b", "a", None]}, ["b", "a", None]),
        ({"type": "const", "val": {"x": 1}}, [{"x": 1}]),
        ([1, 2], [[1, 2]]),
        (None, [None]),
    ],
)
def test_an_axis_has_both_ends_or_the_middle(leaf: Any, values: list[Any]) -> None:
    found = [point["h"] for point in grid({"h": leaf})]
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_halves_of_an_int_go_to_the_even_neighbour() -> None:
    assert [point["h"] for point in grid({"h": ranged("int", 0, 5, 3)})] == [0, 2, 5]
    assert [point["h"] for point in grid({"h": ranged("int", 0, 3, 1)})] == [2]


def test_a_cut_axis_never_repeats_a_value() -> None:
    for high in range(1, 30):
        for count in range(1, high + 3):
            values = [point["h"] for point in grid({"h": ranged("int", 0, high, count)})]
            assert values == sorted(set(values))
            assert len(values) == min(count, high + 1)


def test_nested_groups_are_part_of_the_grid_in_the_order_of_their_names() -> None:
    space = {"b": {"y": ranged("int", 0, 1, 2), "x": {"type": "categorical", "vals": ["p", "q"]}}, "a": 1}
    assert grid(space) == [{"a": 1, "b": {"x": x, "y": y}} for x in ("p", "q") for y in (0, 1)]


def test_points_and_samples_share_no_list_with_each_other_or_the_space() -> None:
    space = {"a": {"type": "const", "val": [1]}, "b": {"type": "categorical", "vals": [[2], [3]]}}
    for points in (grid(space), [sample(space, experiment_seed=1, trial=n) for n in range(9)]):
        for point in points:
            point["a"].append(7)
            point["b"].append(7)
    assert space == {"a": {"type": "const", "val": [1]}, "b": {"type": "categorical", "vals": [[2], [3]]}}


def test_every_range_without_a_count_is_named_at_once() -> None:
    space = {"a": {"type": "int", "minval": 0, "maxval": 1}, "g": {"b": {"type": "log", "minval": 0, "maxval": 1}}}
    with pytest.raises(ConfigError) as caught:
        grid(space)
    assert [str(problem) for problem in caught.value.problems] == [
        "hyperparameters.a.count: missing; a grid requires it",
        "hyperparameters.g.b.count: missing; a grid requires it",
    ]


def test_the_size_of_a_huge_grid_is_known_and_the_grid_refused() -> None:
    space = {name: ranged("double", 0, 1, 10**9) for name in "abc"}
    assert grid_size(space) == 10**27
    with pytest.raises(ConfigError, match="the grid has 10{27} points, and at most 100000 are accepted"):
        grid(space)


def test_an_invalid_space_is_refused_with_its_path() -> None:
    for call in (grid, lambda space: sample(space, experiment_seed=1, trial=0)):
        with pytest.raises(ConfigError, match=r"hyperparameters\.a\.type: 'uniform' is not one of"):
            call({"a": {"type": "uniform", "minval": 0}})


@pytest.mark.parametrize("end", [1e308, -1e308, 10**400])
def test_a_double_whose_ends_have_no_distance_is_refused(end: float) -> None:
    (problem,) = check_space({"a": {"type": "double", "minval": min(end, 0), "maxval": max(end, 0)}})
    assert "is beyond 8e+307" in problem.message


def test_a_trial_has_one_sample_whatever_is_drawn_before_and_how_the_space_is_written() -> None:
    alone = sample(SPACE, experiment_seed=7, trial=3)
    others = [sample(SPACE, experiment_seed=7, trial=number) for number in (5, 3, 0, 3)]
    assert others[1] == others[3] == alone
    assert others[0] != alone
    turned = {name: SPACE[name] for name in reversed(SPACE)}
    turned["optimizer"] = {name: SPACE["optimizer"][name] for name in reversed(SPACE["optimizer"])}
    assert json.dumps(sample(turned, experiment_seed=7, trial=3)) == json.dumps(alone)


def test_seed_trial_and_draw_each_change_the_sample() -> None:
    keys = [(seed, trial, draw) for seed in (0, 1, 11) for trial in (0, 1, 11) for draw in (0, 1)]
    found = [json.dumps(sample(SPACE, experiment_seed=s, trial=t, draw=d)) for s, t, d in keys]
    assert len(set(found)) == len(keys)


def test_samples_lie_in_their_ranges_and_fill_them() -> None:
    space = {
        "i": {"type": "int", "minval": -1, "maxval": 2},
        "d": {"type": "double", "minval": 2, "maxval": 4},
        "l": {"type": "log", "minval": -3, "maxval": 0},
        "c": {"type": "categorical", "vals": ["x", "y", "z"]},
    }
    drawn = [sample(space, experiment_seed=5, trial=number) for number in range(4000)]
    for name, values in (("i", [-1, 0, 1, 2]), ("c", ["x", "y", "z"])):
        counts = [sum(point[name] == value for point in drawn) for value in values]
        assert sum(counts) == 4000
        assert min(counts) > 0.85 * 4000 / len(values)
    assert all(2 <= point["d"] < 4 and 0.001 <= point["l"] <= 1 for point in drawn)
    assert sum(point["d"] for point in drawn) / 4000 == pytest.approx(3, abs=0.05)
    assert sum(point["l"] < 0.01 for point in drawn) / 4000 == pytest.approx(1 / 3, abs=0.03)


def test_the_first_sample_stays_what_it_was() -> None:
    assert sample(SPACE, experiment_seed=0, trial=0) == FIRST


def test_a_number_of_a_sample_is_the_documented_hash() -> None:
    key = hashlib.sha256(b"dtrain sample 4 2 1").digest()
    first, second = (int.from_bytes(hashlib.sha256(key + bytes([*[0] * 7, n])).digest(), "big") for n in (0, 1))
    space = {"b": {"type": "double", "minval": 0, "maxval": 1}, "a": {"type": "int", "minval": 0, "maxval": 99}}
    drawn = sample(space, experiment_seed=4, trial=2, draw=1)
    assert drawn == {"a": first * 100 >> 256, "b": (second >> 203) / 2**53}


def test_a_sample_is_quick_enough_for_ten_thousand_trials() -> None:
    started = time.process_time()
    for number in range(1000):
        sample(SPACE, experiment_seed=1, trial=number)
    # Ten times what it takes on an idle core: only a change of its growth fails here.
    assert time.process_time() - started < 2


PROGRAM = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
from airflow_provider_dtrain.core.hyperparameters.space import grid, sample
from airflow_provider_dtrain.core.hyperparameters.seeds import trial_seed
space = json.loads(sys.argv[2])
text = json.dumps([[sample(space, experiment_seed=seed, trial=number, draw=draw), trial_seed(seed, number)]
                   for seed in (0, 2**31 - 1) for number in range(200) for draw in (0, 3)])
text += json.dumps(grid({"l": {"type": "log", "minval": -7, "maxval": 3, "count": 500, "base": 7},
                         "d": {"type": "double", "minval": -0.3, "maxval": 0.7, "count": 7}}))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def digest(python: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    environment.pop("PYTHONPATH", None)
    command = [python, "-I" if hash_seed == "random" else "-s", "-c", PROGRAM, str(ROOT), json.dumps(SPACE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_each_process_draws_the_same() -> None:
    assert len({digest(sys.executable, seed) for seed in ("0", "1", "random")}) == 1


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_each_version_of_python_draws_the_same(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    assert digest(python, "0") == digest(sys.executable, "0")


def interpreter(version: str) -> str | None:
    """Return a Python of this version from PATH or pyenv, None if there is none."""
    folders = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for candidate in [shutil.which(f"python{version}"), *map(str, folders)]:
        if candidate is None:
            continue
        say = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(say, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None
