"""Reducers, which compute metrics of a data set from those of batches, over all ranks."""

from __future__ import annotations

import enum
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.errors import MetricError, SetupError, TrialClassError
from airflow_provider_dtrain.train.values import Metrics

log = logging.getLogger(__name__)


class Reducer(enum.Enum):
    """Functions that combine the values of batches to one value."""

    #: Mean, each batch weighted by its number of records.
    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(ABC):
    """Base class of a metric that cannot be computed batch by batch, e.g. the area under a ROC curve.

    Collect data from ``train_batch`` or ``evaluate_batch`` in a method of your own. The library calls these three
    methods.
    """

    @abstractmethod
    def reset(self) -> None:
        """Discard all data. Called before each unit of training and each validation."""

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return the data of this rank: any picklable value, as small as possible."""

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, or a dict of metrics, from the data of all ranks, in order of rank."""


class SimpleMetricReducer(MetricReducer):
    """Reducer with a function that receives all values of all ranks.

    :param function: takes the list of all values passed to :meth:`update`, rank after rank
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self.function = function
        self._values: list[Any] = []

    def reset(self) -> None:
        """Discard all values."""
        self._values = []

    def update(self, value: Any) -> None:
        """Add one value. Tensors are detached and copied to the CPU."""
        self._values.append(_plain(value))

    def per_slot_reduce(self) -> Any:
        """Return this rank's values."""
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the function's result for all values."""
        return self.function([value for values in per_slot_metrics for value in values])


@dataclass(frozen=True)
class Wrapped:
    """A reducer that was passed to ``context.wrap_reducer``."""

    reducer: MetricReducer
    #: None: it returns a dict of metrics.
    name: str | None
    for_training: bool
    for_validation: bool

    def metrics(self, value: Any) -> Mapping[str, Any]:
        """Return the metrics that a reduced value represents.

        :raises TrialClassError: a reducer with a name returned a dict, or one without a name returned no dict
        """
        is_dict = isinstance(value, Mapping)
        if is_dict == (self.name is None):
            return value if is_dict else {str(self.name): value}
        what = getattr(self.reducer, "function", type(self.reducer))
        raise TrialClassError(
            f"Reducer {getattr(what, '__name__', what)} was wrapped with name={self.name!r} and returned "
            f"{type(value).__name__}. It must return one number with a name, and a dict of numbers without a name."
        )


class Reducers:
    """All reducers of a trial."""

    def __init__(self) -> None:
        self._wrapped: list[Wrapped] = []
        self._silent: set[int] = set()

    def wrap(self, reducer: Any, name: str | None, *, for_training: bool, for_validation: bool) -> MetricReducer:
        """Add a reducer, or one made from a function. Return it.

        :raises SetupError: the argument is neither, or was wrapped before
        """
        if not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise SetupError(f"wrap_reducer takes a function or a MetricReducer, got {type(reducer).__name__}.")
            reducer = SimpleMetricReducer(reducer)
        if any(one.reducer is reducer for one in self._wrapped):
            raise SetupError(f"The same {type(reducer).__name__} was wrapped twice; create one for each name.")
        wrapped = Wrapped(reducer, name, for_training, for_validation)
        self._wrapped.append(wrapped)
        return wrapped.reducer

    def chosen(self, *, training: bool) -> list[Wrapped]:
        """Return the reducers of training, or those of validation."""
        return [item for item in self._wrapped if (item.for_training if training else item.for_validation)]

    def _warn_of_silence(self, item: Wrapped, *, training: bool) -> None:
        """Warn once about a function that got no value in validation. Its metric is omitted."""
        if not training and id(item) not in self._silent:
            self._silent.add(id(item))
            log.warning(
                "The reducer of metric %r got no value in validation, so the metric is left out. Call its update(...) "
                "in evaluate_batch, or wrap it with for_validation=False.",
                item.name,
            )

    def reset(self, *, training: bool) -> None:
        """Reset the reducers of training, or those of validation."""
        for item in self.chosen(training=training):
            item.reducer.reset()

    def reduce(self, allgather: Callable[[Any], list[Any]], *, training: bool) -> Metrics:
        """Return the metrics of all reducers, with one exchange between the ranks. Called by all ranks."""
        chosen = self.chosen(training=training)
        if not chosen:
            return {}
        answers = allgather([item.reducer.per_slot_reduce() for item in chosen])
        found: Metrics = {}
        for index, item in enumerate(chosen):
            if isinstance(item.reducer, SimpleMetricReducer) and not any(answer[index] for answer in answers):
                self._warn_of_silence(item, training=training)
                continue
            merge(found, item.metrics(item.reducer.cross_slot_reduce([answer[index] for answer in answers])))
        return found


def merge(metrics: Metrics, more: Mapping[str, Any]) -> None:
    """Add metrics to a dict of metrics.

    :raises TrialClassError: a name already exists
    """
    for name, value in more.items():
        if name in metrics:
            raise TrialClassError(f"Two reducers or batch metrics are named {name!r}; give one of them another name.")
        metrics[name] = value


def partial(reducer: Reducer, values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Return one rank's part of a metric: a value and its weight.

    :param values: one per batch, at least one
    :param weights: records of each batch
    """
    if reducer is Reducer.AVG:
        return math.fsum(w * x for w, x in zip(weights, values) if w), math.fsum(weights)
    if reducer is Reducer.SUM:
        return math.fsum(values), 1.0
    # max() keeps or drops a NaN depending on its position.
    if any(value != value for value in values):
        return math.nan, 1.0
    return (max if reducer is Reducer.MAX else min)(values), 1.0


def combine(reducer: Reducer, parts: Sequence[tuple[float, float]]) -> float:
    """Return the metric, combined from the parts of the ranks that have it."""
    values = [value for value, _ in parts]
    if reducer is Reducer.AVG:
        weight = math.fsum(weight for _, weight in parts)
        return math.fsum(values) / weight if weight else math.nan
    return partial(reducer, values, ())[0]


def reducers_of(choice: Any, names: Sequence[str]) -> dict[str, Reducer]:
    """Return the reducer of each metric.

    :param choice: return value of ``evaluation_reducer()``: one Reducer, or a dict with one per metric
    :raises TrialClassError: it is of another type, or its names are not those of the metrics
    """
    if isinstance(choice, Reducer):
        return dict.fromkeys(names, choice)
    if not isinstance(choice, Mapping) or not all(isinstance(item, Reducer) for item in choice.values()):
        raise TrialClassError(
            f"evaluation_reducer() must return a Reducer, or a dict of metric name -> Reducer, got {choice!r}. "
            "For your own reducers, use context.wrap_reducer."
        )
    missing = sorted(set(names) - set(choice))
    unknown = sorted(set(choice) - set(names))
    if missing or unknown:
        raise TrialClassError(
            "evaluation_reducer() and evaluate_batch() must name the same metrics. Metrics without a reducer: "
            f"{missing or 'none'}. Reducers without a metric: {unknown or 'none'}. Return one Reducer, or one for "
            "each metric."
        )
    return dict(choice)


def number(name: str, value: Any) -> float:
    """Return a metric as a float. A text is no number, even if it looks like one.

    :raises MetricError: the value is not one number, or is larger than any float
    """
    try:
        # The item of a tensor or array; raises unless it has exactly one.
        single = value.item() if hasattr(value, "item") else value
        if not isinstance(single, (str, bytes, bytearray)):
            return float(single)
    except OverflowError:
        raise MetricError(
            f"Metric {name!r} must be at most about 1.8e308 in size, as every float is, got {type(value).__name__} of "
            f"{int(single).bit_length()} bits."
        ) from None
    except (TypeError, ValueError, RuntimeError):
        pass
    raise MetricError(
        f"Metric {name!r} must be one number (int, float, or a tensor or array of one element), got "
        f"{type(value).__name__} {str(value)[:80]}."
    )


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().cpu()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if not hasattr(value, "_fields") else value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def reduce_over_ranks(
    allgather: Callable[[Any], list[Any]], metrics: Mapping[str, Any], weight: float, reducer: str
) -> dict[str, float]:
    """Return each metric over the ranks that have it. Called by all ranks.

    :param weight: weight of this rank in a mean
    :param reducer: name of a :class:`Reducer`, in upper or lower case
    """
    try:
        chosen = Reducer[reducer.upper()]
    except KeyError:
        raise SetupError(f"reducer must be avg, sum, max or min, got {reducer!r}.") from None
    mine = {name: partial(chosen, [number(name, value)], [weight]) for name, value in metrics.items()}
    answers = allgather(mine)
    names = {name: None for answer in answers for name in answer}
    return {name: combine(chosen, [answer[name] for answer in answers if name in answer]) for name in names}
