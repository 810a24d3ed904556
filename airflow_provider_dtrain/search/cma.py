"""Stateless CMA-ES over hyperparameters: each draw replays all earlier trials.

Source: Hansen, "The CMA Evolution Strategy: A Tutorial", 2016; restarts with twice the population: Auger and Hansen,
"A Restart CMA Evolution Strategy With Increasing Population Size", CEC 2005.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cmaes import CMA

    from airflow_provider_dtrain.core.hyperparameters.seeds import Draws
    from airflow_provider_dtrain.core.hyperparameters.space import Path
    from airflow_provider_dtrain.search.axes import Axis

#: Initial standard deviation; each axis is scaled to 0 to 1.
_SIGMA: Final = 1 / 6


def ask(
    axes: Mapping[Path, Axis], results: Sequence[tuple[Mapping[Path, Any], float]], draws: Draws
) -> dict[Path, Any]:
    """Return the values of the next trial.

    :param axes: path -> axis
    :param results: values and result (smaller is better) of earlier trials, in their order
    :param draws: random numbers of this trial only
    """
    import numpy as np

    names = [name for name in axes if axes[name].kind != "choice"]
    # The algorithm needs at least two axes, so a single axis gets an unused second one.
    pad = [0.5] * (2 - len(names))
    cma = _new(len(names) + len(pad), draws)
    waiting: list[tuple[Any, float]] = []
    for values, result in results:
        waiting.append((np.array([axes[name].to_unit(values[name]) for name in names] + pad), result))
        if len(waiting) == cma.population_size:
            cma.tell(waiting)
            waiting = []
            if cma.should_stop():
                cma = _new(len(names) + len(pad), draws, population_size=2 * cma.population_size)
    places = dict(zip(names, map(float, cma.ask()), strict=False))
    chance = {name: draws.below(int(axis.high) + 1) for name, axis in axes.items() if axis.kind == "choice"}
    return {**chance, **{name: axes[name].from_unit(place) for name, place in places.items()}}


def _new(dimensions: int, draws: Draws, population_size: int | None = None) -> CMA:
    import numpy as np
    from cmaes import CMA

    bounds = np.array([[0.0, 1.0]] * dimensions)
    seed = draws.below(2**32)
    return CMA(np.full(dimensions, 0.5), _SIGMA, bounds=bounds, seed=seed, population_size=population_size)
