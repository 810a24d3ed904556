"""Optuna samplers that draw the next trial's hyperparameters from the store's history of earlier trials.

There is no second database: each draw builds a study in memory, adds the history and asks once. Optuna would keep the
state of CMA-ES in its own trials. Here, that sampler replays the history instead, see :mod:`.cma`.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.seeds import Draws
from airflow_provider_dtrain.core.hyperparameters.space import Path, sample
from airflow_provider_dtrain.errors import ConfigError, Problem
from airflow_provider_dtrain.search.axes import Axis, Values, axis_of, nested, values_of, varied
from airflow_provider_dtrain.search.cma import ask

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

Sampler = Literal["tpe", "cmaes", "gp"]
#: Hyperparameters, metric or None, and state of an earlier trial.
Observation = tuple[Mapping[str, Any], float | None, str]

#: Sampler -> packages that it needs.
NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "tpe": ("optuna",),
    "cmaes": ("cmaes",),
    "gp": ("optuna", "scipy", "torch"),
}
#: States whose metric measures the quality of the hyperparameters.
_JUDGED: Final = frozenset({"completed", "stopped"})
#: States in which this quality is not known yet.
_OPEN: Final = frozenset({"queued", "running", "paused"})


def check_installed(sampler: Sampler) -> None:
    """Check that the packages of a sampler are installed in this environment.

    :raises ConfigError: a package is missing
    """
    missing = [name for name in NEEDS[sampler] if importlib.util.find_spec(name) is None]
    if missing:
        message = (
            f"{sampler} needs {' and '.join(missing)} on Airflow's workers and triggerers. Install it there with: "
            f"pip install 'airflow-provider-dtrain[optuna{',torch' if 'torch' in missing else ''}]'"
        )
        raise ConfigError([Problem(path="searcher.sampler", message=message)])


def draw(
    hyperparameters: Mapping[str, Any],
    *,
    sampler: Sampler,
    seed: int,
    trial: int,
    history: Sequence[Observation],
    smaller_is_better: bool = True,
    draw: int = 0,
) -> Hyperparameters:
    """Return the hyperparameters of one trial.

    The same seed, trial and history give the same hyperparameters.

    :param hyperparameters: valid search space in the form of the configuration
    :param sampler: tpe, cmaes or gp
    :param seed: seed of the experiment, 0 .. 2^31-1
    :param trial: number of the trial in its experiment, from 0
    :param history: the experiment's other trials, in the order of their numbers. The samplers learn only from
        ``completed`` and ``stopped`` trials with a finite metric. Trials that are queued, running or paused keep
        ``tpe`` and ``gp`` from drawing the same values again
    :param smaller_is_better: whether a smaller metric is better
    :param draw: number of samples of this trial that the training code has rejected; after a rejection, the next
        sample is drawn at random
    :raises ConfigError: a package that the sampler needs is not installed
    """
    check_installed(sampler)
    if draw:
        return sample(hyperparameters, experiment_seed=seed, trial=trial, draw=draw)
    space = varied(hyperparameters)
    axes = {path: axis_of(leaf) for path, leaf in space.items()}
    draws = Draws(f"dtrain optuna {seed} {trial}")
    known = [(values_of(space, params), metric, state) for params, metric, state in history]
    if sampler == "cmaes":
        sign = 1 if smaller_is_better else -1
        results = [(params, sign * metric) for params, metric, state in known if params and _is_judged(metric, state)]
        asked = ask(axes, results, draws)
    else:
        with _quiet():
            study = _study(sampler, draws.below(2**32), smaller_is_better)
            asked = _asked(study, {path: _distribution(axis) for path, axis in axes.items()}, known)
    return nested(hyperparameters, asked)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log messages and warnings about the in-memory study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _study(sampler: Sampler, seed: int, smaller_is_better: bool) -> Study:
    import optuna

    makers: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed),
    }
    direction = optuna.study.StudyDirection.MINIMIZE if smaller_is_better else optuna.study.StudyDirection.MAXIMIZE
    return optuna.create_study(sampler=makers[sampler](), direction=direction)


def _distribution(axis: Axis) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.kind == "choice":
        return CategoricalDistribution(range(int(axis.high) + 1))
    if axis.kind == "int":
        return IntDistribution(int(axis.low), int(axis.high))
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.kind == "log")


def _is_judged(metric: float | None, state: str) -> TypeGuard[float]:
    return state in _JUDGED and metric is not None and math.isfinite(metric)


def _asked(
    study: Study,
    distributions: dict[Path, BaseDistribution],
    history: Sequence[tuple[Values | None, float | None, str]],
) -> Values:
    """Return the hyperparameters that a study proposes after adding the history."""
    from optuna.trial import TrialState, create_trial

    names = {path: _name(path) for path in distributions}
    distributed = {names[path]: distribution for path, distribution in distributions.items()}
    for known, metric, state in history:
        if known is None:
            continue
        params = {names[path]: value for path, value in known.items()}
        if _is_judged(metric, state):
            study.add_trial(create_trial(params=params, distributions=distributed, value=metric))
        elif state in _OPEN:
            study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=distributed))
    asked = study.ask(distributed).params
    return {path: asked[name] for path, name in names.items()}


def _name(path: Path) -> str:
    """Return a path as the parameter name for Optuna, unique for each path."""
    return ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in path)
