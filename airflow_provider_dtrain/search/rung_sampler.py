"""Hyperparameters for searches with rungs, from a Gaussian process over the metrics at all rungs.

Each draw fits the process to the rungs in the store, so there is no second database. The next trial is the one with the
largest expected improvement at the highest rung. Open trials count as if they had the metric there that the process
expects, so that trials which run at the same time differ.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.seeds import Draws
from airflow_provider_dtrain.core.hyperparameters.space import Path, sample
from airflow_provider_dtrain.errors import ConfigError, Problem
from airflow_provider_dtrain.search.axes import Axis, Values, axis_of, nested, values_of, varied
from airflow_provider_dtrain.search.rung_process import Observations, RungProcess

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import Generator

#: Trials with a metric before the first draw from the process.
STARTUP: Final = 12
#: One trial in so many is drawn at random, whatever the process expects.
RANDOM_EVERY: Final = 4
#: Metrics that a fit uses at most. Its time grows with their third power: 400 take a second.
MOST_METRICS: Final = 400
#: Open trials that count at most, those with the highest numbers.
MOST_OPEN: Final = 100
#: Trials with the best expected metrics, around which candidates are drawn.
_BEST: Final = 5
_ANYWHERE, _NEAR, _REFINEMENTS, _REFINED, _AROUND = 600, 80, 3, 8, 40
#: Largest distance of a loss from the median, in distances of the best one.
_FARTHEST: Final = 1e6
#: Standard deviations of moves, of which each candidate gets one.
_WIDE, _NARROW = (0.02, 0.05, 0.15), (0.01, 0.03, 0.1)


class KnownTrial(NamedTuple):
    """Another trial of the search."""

    hyperparameters: Mapping[str, Any]
    #: Units of a rung -> metric there; None: it failed before, or the metric is not finite.
    metrics: Mapping[int, float | None]
    #: True: it has not ended.
    is_open: bool


def check_installed() -> None:
    """Check that the packages of this sampler are installed in this environment.

    :raises ConfigError: a package is missing
    """
    missing = [name for name in ("numpy", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        message = (
            f"gp needs {' and '.join(missing)} on Airflow's workers and triggerers. Install it there with: "
            "pip install 'airflow-provider-dtrain[gp]'"
        )
        raise ConfigError([Problem(path="searcher.sampler", message=message)])


def draw(
    hyperparameters: Mapping[str, Any],
    *,
    seed: int,
    trial: int,
    rungs: Sequence[int],
    history: Sequence[KnownTrial],
    smaller_is_better: bool = True,
    draw: int = 0,
) -> Hyperparameters:
    """Return the hyperparameters of one trial.

    The first trials, and one in :data:`RANDOM_EVERY` after them, are those of random draws with the same seed.

    :param hyperparameters: valid search space in the form of the configuration
    :param seed: seed of the experiment, 0 .. 2^31-1
    :param trial: number of the trial in its experiment, from 0
    :param rungs: units of all rungs of all brackets, at least one
    :param history: the experiment's other trials, in the order of their numbers
    :param smaller_is_better: whether a smaller metric is better
    :param draw: number of samples of this trial that the training code has rejected; after a rejection, the next
        sample is drawn at random
    :raises ConfigError: a package that the sampler needs is not installed
    """
    check_installed()
    space = varied(hyperparameters)
    points = _Points({path: axis_of(leaf) for path, leaf in space.items()})
    levels = sorted(set(rungs))
    known = [
        (points.of(values), one) for one in history if (values := values_of(space, one.hyperparameters)) is not None
    ]
    entries = _entries(known, levels, 1 if smaller_is_better else -1)
    judged = len({entry.number for entry in entries if entry.loss < math.inf})
    if draw or judged < STARTUP or trial % RANDOM_EVERY == RANDOM_EVERY - 1:
        return sample(hyperparameters, experiment_seed=seed, trial=trial, draw=draw)
    opened = [point for point, one in known if one.is_open and levels[-1] not in one.metrics][-MOST_OPEN:]
    chance = _generator(Draws(f"dtrain gp {seed} {trial}"))
    return nested(hyperparameters, points.values(_best_point(points, len(levels), entries, opened, chance)))


class _Entry(NamedTuple):
    """Metric of a trial at a rung."""

    #: Index of the trial in the history.
    number: int
    point: Sequence[float]
    #: From 0.
    rung: int
    #: Smaller is better; infinite: none.
    loss: float


def _entries(known: Sequence[tuple[Sequence[float], KnownTrial]], levels: Sequence[int], sign: int) -> list[_Entry]:
    """Return the entries that a fit uses: the highest rungs first, and of the lowest one the trials that came last."""
    entries = [
        _Entry(number, point, levels.index(units), sign * metric if _is_number(metric) else math.inf)
        for number, (point, one) in enumerate(known)
        for units, metric in one.metrics.items()
        if units in levels
    ]
    return sorted(entries, key=lambda entry: (-entry.rung, -entry.number))[:MOST_METRICS]


def _is_number(metric: float | None) -> TypeGuard[float]:
    return metric is not None and math.isfinite(metric)


def _generator(draws: Draws) -> Generator:
    import numpy as np

    return np.random.default_rng(draws.below(2**32))


class _Points:
    """Hyperparameters as rows of numbers: a position from 0 to 1 per range, an index per choice.

    :param axes: path -> axis
    """

    def __init__(self, axes: Mapping[Path, Axis]) -> None:
        self._axes = axes
        #: Column -> number of choices.
        self._choices = {
            column: int(axis.high) + 1 for column, axis in enumerate(axes.values()) if axis.kind == "choice"
        }
        #: Column -> number of whole numbers in the range.
        self._whole = {
            column: int(axis.high) - int(axis.low) + 1
            for column, axis in enumerate(axes.values())
            if axis.kind == "int"
        }
        self.is_choice = [column in self._choices for column in range(len(axes))]
        #: Group of each column of :meth:`columns`.
        self.groups = [group for group in range(len(axes)) for _ in range(self._choices.get(group, 1))]

    def of(self, values: Values) -> list[float]:
        """Return the point of values."""
        return [
            values[path] if axis.kind == "choice" else axis.to_unit(values[path]) for path, axis in self._axes.items()
        ]

    def values(self, point: ndarray) -> Values:
        """Return the values at a point."""
        return {
            path: int(place) if axis.kind == "choice" else axis.from_unit(float(place))
            for (path, axis), place in zip(self._axes.items(), point, strict=True)
        }

    def columns(self, points: ndarray) -> ndarray:
        """Return points with a column of 0 and 1 for each choice."""
        import numpy as np

        parts = [
            points[:, column, None] == np.arange(self._choices[column])
            if column in self._choices
            else points[:, column, None]
            for column in range(points.shape[1])
        ]
        return np.concatenate(parts, axis=1).astype(float)

    def anywhere(self, count: int, chance: Generator) -> ndarray:
        """Return random points."""
        return self._snapped(self._with_choices(chance.random((count, len(self._axes))), chance))

    def around(self, centres: ndarray, count: int, deviations: Sequence[float], chance: Generator) -> ndarray:
        """Return points near each of some points: about half of the numbers are moved, and every fifth choice."""
        import numpy as np

        near = np.repeat(centres, count, axis=0)
        steps = chance.normal(size=near.shape) * chance.choice(deviations, (len(near), 1))
        moved = np.where(chance.random(near.shape) < 0.5, np.clip(near + steps, 0, 1), near)
        other = self._with_choices(moved, chance)
        is_kept = np.array(self.is_choice) & (chance.random(near.shape) < 0.8)
        return self._snapped(np.where(is_kept, near, other))

    def _with_choices(self, points: ndarray, chance: Generator) -> ndarray:
        for column, count in self._choices.items():
            points[:, column] = chance.integers(0, count, len(points))
        return points

    def _snapped(self, points: ndarray) -> ndarray:
        """Return the points with whole numbers in the middle of their cells, as :meth:`Axis.to_unit` gives them."""
        import numpy as np

        for column, count in self._whole.items():
            points[:, column] = (np.minimum(np.floor(points[:, column] * count), count - 1) + 0.5) / count
        return points


def _scores(losses: ndarray, rungs: ndarray, levels: int) -> ndarray:
    """Return losses as values of about mean 0 and standard deviation 1 at each rung.

    Losses above the median are squeezed, because the best trials are close to each other and bad ones may have any
    loss. One without a finite loss counts as one of the worst.

    :param losses: (n,), at least one of them finite
    :param rungs: (n,), 0 .. levels - 1
    """
    import numpy as np

    finite = np.isfinite(losses)
    # The difference of two floats may be beyond the largest one.
    losses = losses / max(1.0, np.abs(losses[finite]).max() / 1e150)
    least, median, high = np.quantile(losses[finite], (0, 0.5, 0.8))
    losses = np.where(finite, losses, high + (high - least))
    with np.errstate(over="ignore"):
        distance = (losses - median) / (max(median - least, 1e-12 * abs(median)) or 1.0)
    distance = np.clip(distance, -_FARTHEST, _FARTHEST)
    scores = np.where(distance > 0, np.log1p(np.maximum(distance, 0)), distance)
    mean = 0.0
    for level in range(levels):
        own = rungs == level
        # With few trials, the mean of a rung is close to that of the rung below.
        mean = (scores[own].sum() + 2 * mean) / (own.sum() + 2)
        scores[own] -= mean
    return scores / (scores.std() or 1.0)


def _best_point(
    points: _Points,
    levels: int,
    entries: Sequence[_Entry],
    opened: Sequence[Sequence[float]],
    chance: Generator,
) -> ndarray:
    """Return the point with the largest expected improvement.

    :param entries: some of them with a finite loss
    :param opened: points of trials that may still reach the highest rung
    """
    import numpy as np

    places, rungs = np.array([entry.point for entry in entries]), np.array([entry.rung for entry in entries])
    scores = _scores(np.array([entry.loss for entry in entries]), rungs, levels)
    known = Observations(points.columns(places), rungs, scores)
    process = RungProcess(points.groups, points.is_choice, levels)
    process.fit(known)
    if opened:
        waiting = points.columns(np.array(opened, dtype=float))
        expected, _ = process.predict(waiting, levels - 1)
        process.condition(known.joined(Observations(waiting, np.full(len(opened), levels - 1), expected)))
        places = np.concatenate([places, np.array(opened, dtype=float)])
    places = np.unique(places, axis=0)
    expected, _ = process.predict(points.columns(places), levels - 1)

    def improvements(candidates: ndarray) -> ndarray:
        return _improvements(*process.predict(points.columns(candidates), levels - 1), expected.min())

    best = places[np.argsort(expected, kind="stable")[:_BEST]]
    candidates = np.concatenate([points.anywhere(_ANYWHERE, chance), points.around(best, _NEAR, _WIDE, chance)])
    gains = improvements(candidates)
    for _ in range(_REFINEMENTS):
        top = np.argsort(-gains, kind="stable")[:_REFINED]
        near = points.around(candidates[top], _AROUND, _NARROW, chance)
        candidates, gains = np.concatenate([candidates[top], near]), np.concatenate([gains[top], improvements(near)])
    return candidates[gains.argmax()]


def _improvements(mean: ndarray, deviation: ndarray, best: float) -> ndarray:
    """Return the expected improvements over the best loss, for normal distributions."""
    import numpy as np
    from scipy.special import erf

    distance = (best - mean) / deviation
    below = 0.5 * (1 + erf(distance / math.sqrt(2)))
    density = np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi)
    return deviation * (distance * below + density)
