"""Search spaces as axes, the form in which samplers see them: numbers within ends, and indices of choices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.sampling import LOG_BASE, own, power, value_of
from airflow_provider_dtrain.core.hyperparameters.space import Path, is_constant, named_leaves

#: Path -> index of a choice, or number within the ends of a range.
Values = dict[Path, Any]


class Axis(NamedTuple):
    """Range of one hyperparameter."""

    #: ``choice`` means indices of values without an order.
    kind: Literal["int", "double", "log", "choice"]
    low: float
    high: float

    def to_unit(self, value: float) -> float:
        """Return the position of a value on the axis, 0 to 1."""
        if self.kind == "int":
            return (value - self.low + 0.5) / (self.high - self.low + 1)
        if self.kind == "log":
            # Ends that are very close may be the same float.
            return (math.log(value) - math.log(self.low)) / ((math.log(self.high) - math.log(self.low)) or 1.0)
        return (value - self.low) / (self.high - self.low)

    def from_unit(self, place: float) -> float:
        """Return the value at a position on the axis, 0 to 1."""
        if self.kind == "int":
            return min(int(self.low) + int(place * (self.high - self.low + 1)), int(self.high))
        if self.kind == "log":
            value = math.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
            return min(max(value, self.low), self.high)
        return self.low + place * (self.high - self.low)


def varied(hyperparameters: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the leaves of a search space that are not constant."""
    return {path: leaf for path, leaf in named_leaves(hyperparameters) if not is_constant(leaf)}


def axis_of(leaf: Mapping[str, Any]) -> Axis:
    """Return the axis of a leaf that is not constant."""
    if leaf["type"] == "categorical":
        return Axis("choice", 0, len(leaf["vals"]) - 1)
    if leaf["type"] == "log":
        base = float(leaf.get("base", LOG_BASE))
        return Axis("log", *sorted((power(base, leaf["minval"]), power(base, leaf["maxval"]))))
    return Axis(leaf["type"], leaf["minval"], leaf["maxval"])


def values_of(space: Mapping[Path, Any], params: Mapping[str, Any]) -> Values | None:
    """Return the values of hyperparameters, or None if they belong to another search space."""
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
    axis = axis_of(leaf)
    return min(max(value, axis.low), axis.high)


def nested(hyperparameters: Mapping[str, Any], values: Values) -> Hyperparameters:
    """Return the hyperparameters of a trial.

    :param hyperparameters: search space in the form of the configuration
    :param values: of each leaf that is not constant
    """
    return _nested(hyperparameters, values, ())


def _nested(group: Mapping[str, Any], values: Values, above: Path) -> Hyperparameters:
    found: Hyperparameters = {}
    for name in sorted(group):
        leaf = group[name]
        path = (*above, name)
        if isinstance(leaf, Mapping) and "type" not in leaf:
            found[name] = _nested(leaf, values, path)
        elif path in values:
            found[name] = own(leaf["vals"][values[path]]) if leaf["type"] == "categorical" else values[path]
        else:
            found[name] = value_of(leaf)
    return found
