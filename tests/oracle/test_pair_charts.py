"""Contour and rank charts of the pages draw the values that Optuna's charts draw for the same trials."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

#: ``ui/src/charts/surface.test.ts`` compares the pages' functions with the same file.
FILE = Path(__file__).parents[2] / "ui" / "src" / "charts" / "optunaPairs.json"
#: Cells of Optuna's grid along an axis. Its own number, 100, would make the file large.
CELLS = 24

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("scipy") is None, reason="SciPy is not installed"),
]


def trials_of(seed: int) -> list[dict[str, Any]]:
    """Return trials with a log-uniform, a uniform and an integer hyperparameter, some of them alike."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    for _ in range(30):
        lr, dropout = float(f"{10 ** draw.uniform(-5, -1):.5g}"), round(draw.uniform(0.1, 0.5), 5)
        depth = draw.randint(1, 4)
        metric = round((lr - 1e-3) ** 2 * 100 + dropout / 5 + depth / 10, 2)
        found.append({"lr": lr, "dropout": dropout, "depth": depth, "metric": metric})
    # The same place twice: the better one is drawn.
    found += [{**found[3], "metric": round(found[3]["metric"] + shift, 2)} for shift in (0.25, -0.25)]
    return found


def optuna_pair(
    trials: Sequence[Mapping[str, Any]], x: str, y: str, *, smaller_is_better: bool
) -> tuple[list[list[float]], list[float]]:
    """Return Optuna's interpolated values, by y and then x, and the rank of each trial from 0 (smallest) to 1."""
    import numpy as np
    import optuna
    from optuna.distributions import FloatDistribution, IntDistribution
    from optuna.visualization import _contour, _rank
    from optuna.visualization.matplotlib import _contour as drawn

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds = {
        # By its logarithm: on a log axis, Optuna with matplotlib takes the cell with the nearest value, which is not
        # the nearest one on the axis.
        "lr": FloatDistribution(-5, -1),
        "dropout": FloatDistribution(0.1, 0.5),
        "depth": IntDistribution(1, 4),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="minimize" if smaller_is_better else "maximize")
        for one in trials:
            params = {**{name: one[name] for name in kinds}, "lr": math.log10(one["lr"])}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=one["metric"]))
        infos = _contour._get_contour_info(study, params=[x, y]).sub_plot_infos
    (((info,),)) = infos
    assert (info.xaxis.name, info.yaxis.name) == (x, y), "Optuna sorts the names"
    number, drawn.CONTOUR_POINT_NUM = drawn.CONTOUR_POINT_NUM, CELLS
    try:
        grid, _, _ = drawn._calculate_griddata(info)
    finally:
        drawn.CONTOUR_POINT_NUM = number
    values = np.array([one["metric"] for one in trials])
    ranks = _rank._get_order_with_same_order_averaging(values) / (len(values) - 1)
    return [[float(value) for value in row] for row in grid], [float(rank) for rank in ranks]


def cases() -> list[dict[str, Any]]:
    """Return the content of the file."""
    found = []
    for seed, (x, y, smaller) in enumerate(
        [("dropout", "lr", True), ("depth", "dropout", False), ("depth", "lr", True)]
    ):
        trials = trials_of(seed)
        grid, ranks = optuna_pair(trials, x, y, smaller_is_better=smaller)
        found.append({"x": x, "y": y, "smallerIsBetter": smaller, "trials": trials, "grid": grid, "ranks": ranks})
    return found


def test_the_pages_are_compared_with_what_optuna_draws_now() -> None:
    known, now = json.loads(FILE.read_text()), cases()
    assert [[one[name] for name in ("x", "y", "smallerIsBetter", "trials")] for one in known] == [
        [one[name] for name in ("x", "y", "smallerIsBetter", "trials")] for one in now
    ], f"write it again: python -m {__name__}"
    for before, after in zip(known, now, strict=True):
        assert before["ranks"] == pytest.approx(after["ranks"], abs=1e-6)
        assert sum(before["grid"], []) == pytest.approx(sum(after["grid"], []), abs=2e-6)


if __name__ == "__main__":
    short = json.loads(json.dumps(cases()), parse_float=lambda text: float(f"{float(text):.7g}"))
    FILE.write_text(json.dumps(short) + "\n")
