"""Optuna samplers that draw the next trial's hyperparameters from the store's history of earlier trials.

There is no second database: each draw builds a study in memory, adds the history and asks once. Optuna would keep the
state of CMA-ES in its own trials. Here, that sampler replays the history instead, see :mod:`.cma`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.sampling import LOG_BASE, own, power, value_of
from airflow_provider_dtrain.core.hyperparameters.seeds import Draws
from airflow_provider_dtrain.core.hyperparameters.space import Path, is_constant, named_leaves, sample
from airflow_provider_dtrain.errors import ConfigError, Problem
from airflow_provider_dtrain.search.cma import Axis, ask

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
            f"{sampler} needs {' and '.join(missing)} on Airflow's workers. Install it there with: "
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
    space = {path: leaf for path, leaf in named_leaves(hyperparameters) if not is_constant(leaf)}
    draws = Draws(f"dtrain optuna {seed} {trial}")
    known = [(_to_optuna(space, params), metric, state) for params, metric, state in history]
    if sampler == "cmaes":
        sign = 1 if smaller_is_better else -1
        results = [(params, sign * metric) for params, metric, state in known if params and _is_judged(metric, state)]
        asked = ask({path: _ends(leaf) for path, leaf in space.items()}, results, draws)
    else:
        with _quiet():
            study = _study(sampler, draws.below(2**32), smaller_is_better)
            asked = _asked(study, {path: _distribution(leaf) for path, leaf in space.items()}, known)
    return _nested(hyperparameters, {path: _from_optuna(leaf, asked[path]) for path, leaf in space.items()})


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


def _distribution(leaf: Mapping[str, Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if leaf["type"] == "categorical":
        return CategoricalDistribution(range(len(leaf["vals"])))
    low = leaf["minval"]
    high = leaf["maxval"]
    if leaf["type"] == "int":
        return IntDistribution(low, high)
    if leaf["type"] == "double":
        return FloatDistribution(float(low), float(high))
    return FloatDistribution(*_log_ends(leaf), log=True)


def _log_ends(leaf: Mapping[str, Any]) -> tuple[float, float]:
    base = float(leaf.get("base", LOG_BASE))
    low, high = sorted((power(base, leaf["minval"]), power(base, leaf["maxval"])))
    return low, high


def _ends(leaf: Mapping[str, Any]) -> Axis:
    if leaf["type"] == "categorical":
        return Axis("choice", 0, len(leaf["vals"]) - 1)
    if leaf["type"] == "log":
        return Axis("log", *_log_ends(leaf))
    return Axis(leaf["type"], leaf["minval"], leaf["maxval"])


def _to_optuna(space: Mapping[Path, Any], params: Mapping[str, Any]) -> dict[Path, Any] | None:
    """Return hyperparameters in Optuna's form, or None if they belong to another search space."""
    found = {}
    for path, leaf in space.items():
        value: Any = params
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if (known := _known(leaf, value)) is None:
            return None
        found[path] = known
    return found


def _known(leaf: Mapping[str, Any], value: Any) -> Any:
    """Return an index for a choice, a number within the ends for a range, or None."""
    if leaf["type"] == "categorical":
        texts = [json.dumps(choice, sort_keys=True, default=str) for choice in leaf["vals"]]
        text = json.dumps(value, sort_keys=True, default=str)
        return texts.index(text) if text in texts else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    low, high = _log_ends(leaf) if leaf["type"] == "log" else (leaf["minval"], leaf["maxval"])
    return min(max(value, low), high)


def _from_optuna(leaf: Mapping[str, Any], value: Any) -> Any:
    return own(leaf["vals"][value]) if leaf["type"] == "categorical" else value


def _nested(group: Mapping[str, Any], drawn: Mapping[Path, Any], above: Path = ()) -> Hyperparameters:
    values: Hyperparameters = {}
    for name in sorted(group):
        leaf = group[name]
        path = (*above, name)
        if isinstance(leaf, Mapping) and "type" not in leaf:
            values[name] = _nested(leaf, drawn, path)
        else:
            values[name] = drawn[path] if path in drawn else value_of(leaf)
    return values


def _is_judged(metric: float | None, state: str) -> TypeGuard[float]:
    return state in _JUDGED and metric is not None and math.isfinite(metric)


def _asked(
    study: Study,
    distributions: dict[Path, BaseDistribution],
    history: Sequence[tuple[dict[Path, Any] | None, float | None, str]],
) -> dict[Path, Any]:
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
