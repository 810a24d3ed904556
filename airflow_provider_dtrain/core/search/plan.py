"""Plan of a search: all of its trials, before any of them runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, TypedDict, assert_never

from airflow_provider_dtrain.core.config.brackets import brackets, rung_lengths
from airflow_provider_dtrain.core.config.search_length import length_of
from airflow_provider_dtrain.core.config.search_rules import search_problems
from airflow_provider_dtrain.core.config.unions import AdaptiveAshaSearcher, AsyncHalvingSearcher
from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.grid import points
from airflow_provider_dtrain.core.hyperparameters.sampling import draws_of, sampler
from airflow_provider_dtrain.core.hyperparameters.seeds import trial_seed
from airflow_provider_dtrain.core.hyperparameters.space import grid_size
from airflow_provider_dtrain.core.search.late_draws import draws_at_start
from airflow_provider_dtrain.errors import ConfigError, Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig


class TrialSpec(TypedDict):
    """One trial of a plan: plain data, so that it can be an XCom."""

    #: From 0. This number and the experiment's seed determine hyperparameters and seed.
    number: int
    #: Nested values; None: the trial draws them when it starts (``optuna``, and ``gp`` on rungs).
    hyperparameters: Hyperparameters | None
    #: Index of its bracket, most rungs first; 0 when there is only one.
    bracket: int
    #: Units of training at each rung, shortest first; empty: the searcher never stops it.
    rungs: list[int]
    #: Seed of the training, 0 .. 2^31-1.
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outline:
    """Size and cost of a search."""

    method: str
    metric: str | None
    trials: int
    #: Maximum number of trials at one time; None: no limit.
    max_concurrent: int | None
    #: Trials that one task of Airflow runs.
    trials_per_task: int
    #: Unit of lengths: batches, records, epochs or the time metric; None: trials have no limit.
    unit: str | None
    #: Units of a trial that is never stopped.
    length: int | None
    #: (units at each rung, trials) of each bracket, most rungs first; one without rungs for other methods.
    brackets: tuple[tuple[tuple[int, ...], int], ...]
    #: Divisor of a halving method; None for other methods.
    divisor: int | None
    #: Trials draw their hyperparameters when they start.
    draws_at_start: bool

    @property
    def tasks(self) -> int:
        """Mapped tasks that run the trials."""
        return math.ceil(self.trials / self.trials_per_task)

    @property
    def most_units(self) -> int | None:
        """Units of all trials together, if none is stopped."""
        return None if self.length is None else self.trials * self.length

    @property
    def expected_units(self) -> int | None:
        """Expected units of all trials together, if their order is unrelated to their quality."""
        if self.length is None:
            return None
        if self.divisor is None:
            return self.most_units
        return round(sum(_expected(rungs, trials, self.divisor) for rungs, trials in self.brackets))


def outline(config: ExperimentConfig) -> Outline:
    """Return size and shape of a search.

    :param config: complete
    :raises ConfigError: the search lacks or contradicts something
    """
    if problems := search_problems(config):
        raise ConfigError(problems)
    searcher = config.searcher
    limit = length_of(config.searcher)
    return Outline(
        method=searcher.name,
        metric=searcher.metric,
        trials=_count(config),
        max_concurrent=getattr(searcher, "max_concurrent_trials", 1) or None,
        trials_per_task=getattr(searcher, "trials_per_task", 1),
        unit=limit[0] if limit else None,
        length=limit[1] if limit else None,
        brackets=tuple(_brackets(config)),
        divisor=getattr(searcher, "divisor", None),
        draws_at_start=draws_at_start(searcher.name, getattr(searcher, "sampler", None)),
    )


def plan(config: ExperimentConfig, seed: int, *, max_map_length: int | None = None) -> list[TrialSpec]:
    """Return the trials of a search.

    The same configuration and seed give the same trials, byte for byte.

    :param config: complete
    :param seed: of the experiment, 0 .. 2^31-1
    :param max_map_length: most mapped tasks that Airflow creates from a list (``[core] max_map_length``); None: any
    :raises ConfigError: the search lacks or contradicts something, or has trials for more tasks than that
    """
    shape = outline(config)
    if max_map_length is not None and shape.tasks > max_map_length:
        raise ConfigError([_too_long(shape, max_map_length)])
    return list(planned(config, seed, shape))


def planned(config: ExperimentConfig, seed: int, shape: Outline) -> Iterator[TrialSpec]:
    """Yield the trials of a search one by one, for callers that need only the first ones.

    :param config: complete
    :param seed: of the experiment, 0 .. 2^31-1
    :param shape: of the same configuration
    """
    values = _values(config, seed, shape)
    numbers = zip(range(shape.trials), _mixed([trials for _, trials in shape.brackets]), values, strict=True)
    for number, bracket, hyperparameters in numbers:
        yield TrialSpec(
            number=number,
            hyperparameters=hyperparameters,
            bracket=bracket,
            rungs=list(shape.brackets[bracket][0]),
            seed=trial_seed(seed, number),
        )


def _too_long(shape: Outline, limit: int) -> Problem:
    path, what = ("hyperparameters", "a count") if shape.method == "grid" else ("searcher.max_trials", "max_trials")
    tasks = "" if shape.trials_per_task == 1 else f" in {shape.tasks} tasks"
    message = (
        f"{shape.trials} trials{tasks}; Airflow maps at most {limit} tasks. Raise [core] max_map_length or "
        f"searcher.trials_per_task, or lower {what}"
    )
    return Problem(path=path, message=message)


def _count(config: ExperimentConfig) -> int:
    if config.searcher.name == "grid":
        return grid_size(config.hyperparameters)
    return int(getattr(config.searcher, "max_trials", 1))


def _brackets(config: ExperimentConfig) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the units at each rung and the trials of each bracket."""
    searcher = config.searcher
    limit = length_of(config.searcher)
    length = limit[1] if limit else 1
    if isinstance(searcher, AsyncHalvingSearcher):
        yield tuple(rung_lengths(searcher.num_rungs, length, searcher.divisor)), searcher.max_trials
    elif isinstance(searcher, AdaptiveAshaSearcher):
        for rungs, trials in brackets(
            searcher.mode,
            searcher.max_trials,
            length,
            divisor=searcher.divisor,
            max_rungs=searcher.max_rungs,
            bracket_rungs=searcher.bracket_rungs,
        ):
            yield tuple(rung_lengths(rungs, length, searcher.divisor)), trials
    else:
        yield (), _count(config)


def _values(config: ExperimentConfig, seed: int, shape: Outline) -> Iterator[Hyperparameters | None]:
    space = config.hyperparameters
    match config.searcher.name:
        case "grid":
            yield from points(space)
        case "single" | "random" | "async_halving" | "adaptive_asha" | "optuna":
            if shape.draws_at_start:
                yield from repeat(None, shape.trials)
                return
            draw = sampler(space)
            yield from (draw(draws_of(seed, number)) for number in range(shape.trials))
        case unknown:
            assert_never(unknown)


def _mixed(trials: Sequence[int]) -> Iterator[int]:
    """Yield the bracket of each trial, so that all brackets run from the start, each in its share."""
    total = sum(trials)
    given = [0] * len(trials)
    for number in range(total):
        behind = [share * (number + 1) - total * done for share, done in zip(trials, given, strict=True)]
        bracket = behind.index(max(behind))
        given[bracket] += 1
        yield bracket


def _expected(rungs: Sequence[int], trials: int, divisor: int) -> float:
    """Return the expected units of a bracket when all orders of its trials are equally likely."""
    arriving = float(trials)
    before = 0
    units = 0.0
    for length in rungs:
        units += arriving * (length - before)
        arriving = _going_on(arriving, divisor)
        before = length
    return units


def _going_on(arriving: float, divisor: int) -> float:
    """Return the expected number of trials that continue after a rung.

    The n-th trial to enter continues with probability max(1, n // divisor) / n.
    """
    whole = math.floor(arriving)
    chances = (max(1, n // divisor) / n for n in range(1, whole + 1))
    return sum(chances) + (arriving - whole) * max(1, (whole + 1) // divisor) / (whole + 1)
