"""Rules for searcher and hyperparameters: missing and contradictory fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.config.brackets import brackets, floor_log
from airflow_provider_dtrain.core.config.scope import WHOLE, Scope
from airflow_provider_dtrain.core.config.search_length import HALVING, length_of, needs_length
from airflow_provider_dtrain.core.config.unions import AdaptiveAshaSearcher
from airflow_provider_dtrain.core.hyperparameters.grid import GRID_LIMIT, missing_counts, size
from airflow_provider_dtrain.core.hyperparameters.space import has_dimension, leaves
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import Problem

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.experiment import ExperimentConfig


def search_problems(config: ExperimentConfig, scope: Scope = WHOLE) -> list[Problem]:
    """Return the problems of missing or contradictory fields in searcher and hyperparameters.

    :param config: valid, with every default
    :param scope: the fields that count. For a partial document, only contradictions are returned
    """
    found = [*_lacks(config, scope), *_contradictions(config, scope)]
    problems = [*(Problem(path=path, message=message) for path, message in found), *_grid(config, scope)]
    return problems or _tasks(config, scope)


def _lacks(config: ExperimentConfig, scope: Scope) -> Iterator[tuple[str, str]]:
    if scope.is_partial:
        return
    searcher = config.searcher
    is_named = scope.knows("searcher.name")
    is_same = searcher.name != "single" and not has_dimension(config.hyperparameters)
    if is_same and is_named and scope.knows("hyperparameters"):
        message = "constants only, so all trials would be the same"
        yield "hyperparameters", f"{message}; {searcher.name} requires an int, double, log or categorical that varies"
    has_limit = searcher.max_length is not None or searcher.max_time is not None
    if not has_limit and is_named and scope.knows("searcher.max_length", "searcher.max_time"):
        if searcher.name in HALVING:
            yield "searcher.max_length", needs_length(searcher.name)
        elif config.trial_class is not None:
            yield "searcher.max_length", needs_length("a trial class")
    if searcher.max_time is not None and searcher.time_metric is None and scope.knows("searcher.time_metric"):
        yield "searcher.time_metric", "missing; max_time requires it"


def _contradictions(config: ExperimentConfig, scope: Scope) -> Iterator[tuple[str, str]]:
    searcher = config.searcher
    if (trials := getattr(searcher, "max_trials", 1)) > GRID_LIMIT:
        yield "searcher.max_trials", f"{trials} trials, and at most {GRID_LIMIT} are accepted"
    elif isinstance(searcher, AdaptiveAshaSearcher) and scope.knows("searcher.bracket_rungs"):
        yield from _brackets(searcher, scope)


def _brackets(searcher: AdaptiveAshaSearcher, scope: Scope) -> Iterator[tuple[str, str]]:
    path = "searcher.bracket_rungs"
    most = max(searcher.bracket_rungs, default=1)
    # Another layer may set the divisor of a partial document. The smallest divisor allows the most rungs.
    divisor = searcher.divisor if scope.knows("searcher.divisor") else 2
    need = "need" if scope.knows("searcher.divisor") else "need at least"
    knows_trials = scope.knows("searcher.max_trials")
    if knows_trials and most > floor_log(searcher.max_trials, divisor) + 1:
        yield (
            path,
            f"{most} rungs {need} {divisor}^{most - 1} trials, one for the last; max_trials is {searcher.max_trials}",
        )
    length = length_of(searcher) if scope.knows("searcher.max_length") or scope.knows("searcher.max_time") else None
    if length is not None and most > floor_log(length[1], divisor) + 1:
        yield path, f"{most} rungs {need} a length of {divisor}^{most - 1}; max_length is {length[1]} {length[0]}"
    if knows_trials and (message := _bracket_error(searcher, length[1] if length else 1, divisor)):
        yield path, message


def _bracket_error(searcher: AdaptiveAshaSearcher, length: int, divisor: int) -> str | None:
    try:
        brackets(searcher.mode, searcher.max_trials, length, divisor=divisor, bracket_rungs=searcher.bracket_rungs)
    except ValueError as error:
        return str(error).removeprefix("bracket_rungs has ")
    return None


def _grid(config: ExperimentConfig, scope: Scope) -> list[Problem]:
    if config.searcher.name != "grid" or not scope.knows("searcher.name", "hyperparameters"):
        return []
    space = config.hyperparameters
    missing = missing_counts(leaves(space))
    if missing or (count := size(leaves(space))) <= GRID_LIMIT:
        return [] if scope.is_partial else missing
    message = f"the grid has {shown(count)} points, and at most {GRID_LIMIT} are accepted; lower a count"
    return [Problem(path="hyperparameters", message=message)]


def _tasks(config: ExperimentConfig, scope: Scope) -> list[Problem]:
    """Return the problem of a task with more trials than the search has. The other fields are valid."""
    searcher = config.searcher
    path = "searcher.trials_per_task"
    wanted: int = getattr(searcher, "trials_per_task", 1)
    source = "hyperparameters" if searcher.name == "grid" else "searcher.max_trials"
    if not scope.knows("searcher.name", source, path):
        return []
    if searcher.name == "grid":
        space = config.hyperparameters
        trials = None if missing_counts(leaves(space)) else size(leaves(space))
    else:
        trials = getattr(searcher, "max_trials", 1)
    if trials is None or wanted <= trials:
        return []
    return [Problem(path=path, message=f"must be at most the number of trials, {trials}, got {wanted}")]
