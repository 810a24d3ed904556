"""Hyperparameter spaces: leaves and groups, validation, points of a grid, and samples."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from airflow_provider_dtrain.core.documents import ConfigDocument, Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.grid import GRID_LIMIT, missing_counts, points, size
from airflow_provider_dtrain.core.hyperparameters.sampling import LOG_BASE, draws_of, sampler, value_of
from airflow_provider_dtrain.core.safe_repr import shown
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Names of the groups around a hyperparameter, and its own.
Path = tuple[str, ...]
#: Type of a leaf -> (required fields, optional fields).
LEAF_FIELDS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "const": (frozenset({"val"}), frozenset()),
    "int": (frozenset({"minval", "maxval"}), frozenset({"count"})),
    "double": (frozenset({"minval", "maxval"}), frozenset({"count"})),
    "log": (frozenset({"minval", "maxval"}), frozenset({"base", "count"})),
    "categorical": (frozenset({"vals"}), frozenset()),
}
#: Largest absolute end of a double, so that the distance of both ends is a finite number as well.
_LARGEST: Final = 8e307


def is_leaf(value: object) -> bool:
    """Return whether a value below ``hyperparameters`` is one hyperparameter and not a nested group."""
    return not isinstance(value, Mapping) or "type" in value


def present_fields(leaf: Mapping[str, Any]) -> ConfigDocument:
    """Return the fields of a leaf that are not None. None means absent, except for ``val``."""
    return {name: value for name, value in leaf.items() if value is not None or name in ("type", "val")}


def _without_nulls(group: Mapping[str, Any]) -> ConfigDocument:
    return {name: _without_null(value) for name, value in group.items()}


def _without_null(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return present_fields(value) if is_leaf(value) else _without_nulls(value)


def is_constant(leaf: object) -> bool:
    """Return whether a leaf is a single value."""
    return not isinstance(leaf, Mapping) or leaf.get("type") == "const"


def varies(leaf: object) -> bool:
    """Return whether a leaf can have different values in two trials. A choice of equal values cannot."""
    if not isinstance(leaf, Mapping) or leaf.get("type") != "categorical":
        return not is_constant(leaf)
    return len({json.dumps(value, sort_keys=True, default=str) for value in leaf["vals"]}) > 1


def leaves(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, leaf) of every hyperparameter, names sorted at each level."""
    for path, leaf in named_leaves(group):
        yield ".".join(("hyperparameters", *path)), leaf


def named_leaves(group: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (names from the top, leaf) of every hyperparameter. A name may contain dots."""
    for name in sorted(group):
        value = group[name]
        path = (*above, name)
        if is_leaf(value):
            yield path, value
        else:
            yield from named_leaves(value, path)


def dotted(paths: Sequence[Path]) -> list[str]:
    """Return paths as readable strings. Names with dots are quoted where two paths would look the same."""
    texts = Counter(map(".".join, paths))
    return [".".join(path) if texts[".".join(path)] == 1 else _quoted(path) for path in paths]


def _quoted(path: Path) -> str:
    return ".".join(f'"{name}"' if "." in name else name for name in path)


def constants(group: Mapping[str, Any]) -> Hyperparameters:
    """Return the nested values of a space that has constants only.

    :raises ValueError: a leaf is not a constant
    """
    values: Hyperparameters = {}
    for name, value in group.items():
        if not is_leaf(value):
            values[name] = constants(value)
        elif not is_constant(value):
            raise ValueError(f"hyperparameter '{name}' is not a constant")
        else:
            values[name] = value_of(value)
    return values


def has_dimension(group: Mapping[str, Any]) -> bool:
    """Return whether trials of this space can differ."""
    return any(varies(leaf) for _, leaf in leaves(group))


def sample(hyperparameters: Mapping[str, Any], *, experiment_seed: int, trial: int, draw: int = 0) -> Hyperparameters:
    """Return the hyperparameters of one trial. They depend on nothing but the arguments.

    :param hyperparameters: space, as the configuration writes it
    :param experiment_seed: 0 .. 2^31-1
    :param trial: number of the trial in its experiment, from 0
    :param draw: number of samples of this trial that the training code has refused
    :raises ConfigError: the space is not valid
    """
    space = _without_nulls(hyperparameters)
    _refuse(check_space(space))
    return sampler(space)(draws_of(experiment_seed, trial, draw))


def grid_size(hyperparameters: Mapping[str, Any]) -> int:
    """Return the number of points of a grid without creating them.

    :param hyperparameters: space, as the configuration writes it
    :raises ConfigError: the space is not valid, or a range has no count
    """
    space = _without_nulls(hyperparameters)
    _refuse(check_space(space) or missing_counts(leaves(space)))
    return size(leaves(space))


def grid(hyperparameters: Mapping[str, Any]) -> list[Hyperparameters]:
    """Return the points of a grid. Names are sorted at each level, and the last one varies fastest.

    :param hyperparameters: space, as the configuration writes it
    :raises ConfigError: the space is not valid, a range has no count, or there are more than ``GRID_LIMIT`` points
    """
    count = grid_size(hyperparameters)
    if count > GRID_LIMIT:
        message = f"the grid has {shown(count)} points, and at most {GRID_LIMIT} are accepted; lower a count"
        _refuse([Problem(path="hyperparameters", message=message)])
    return list(points(_without_nulls(hyperparameters)))


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(problems)


def check_space(group: Mapping[str, Any]) -> list[Problem]:
    """Return everything that is wrong with the leaves of a space."""
    problems: list[Problem] = []
    for path, leaf in leaves(group):
        if isinstance(leaf, Mapping):
            found = _check_leaf(path, present_fields(leaf))
            problems.extend(Problem(path=where, message=what) for where, what in found)
    return problems


def _check_leaf(path: str, leaf: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = leaf["type"]
    if not isinstance(kind, str) or kind not in LEAF_FIELDS:
        yield f"{path}.type", f"{shown(kind)} is not one of {', '.join(LEAF_FIELDS)}"
        return
    required, optional = LEAF_FIELDS[kind]
    for name in sorted(leaf.keys() - required - optional - {"type"}):
        yield f"{path}.{name}", f"unknown field of {kind}; accepted: {', '.join(sorted(required | optional))}"
    for name in sorted(required - leaf.keys()):
        yield f"{path}.{name}", f"missing; {kind} requires it"
    if kind == "categorical" and "vals" in leaf and not (isinstance(leaf["vals"], list) and leaf["vals"]):
        yield f"{path}.vals", "must be a list with at least one value"
    if kind in ("int", "double", "log"):
        yield from _check_range(path, kind, leaf)


def _check_range(path: str, kind: str, leaf: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    good = True
    for name in ("minval", "maxval"):
        if name in leaf and not _is_number(leaf[name], integer=kind == "int"):
            good = False
            yield f"{path}.{name}", f"{shown(leaf[name])} is not {'an integer' if kind == 'int' else 'a number'}"
        elif name in leaf and kind == "double" and abs(leaf[name]) > _LARGEST:
            yield f"{path}.{name}", f"{shown(leaf[name])} is beyond {_LARGEST:g}"
    if good and "minval" in leaf and "maxval" in leaf and not leaf["minval"] < leaf["maxval"]:
        yield f"{path}.minval", f"{shown(leaf['minval'])} is not below maxval {shown(leaf['maxval'])}"
    if "count" in leaf and not (_is_number(leaf["count"], integer=True) and leaf["count"] >= 1):
        yield f"{path}.count", f"{shown(leaf['count'])} is not an integer >= 1"
    if kind == "log" and good:
        yield from _check_log(path, leaf)


def _check_log(path: str, leaf: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    base = leaf.get("base", LOG_BASE)
    if not _is_number(base) or not 0 < base <= _LARGEST or base == 1:
        yield f"{path}.base", f"{shown(base)} is not a number above 0 and at most {_LARGEST:g} other than 1"
        return
    for name in ("minval", "maxval"):
        if name in leaf and abs(leaf[name]) > 700 / abs(math.log(base)):
            yield f"{path}.{name}", f"{shown(base)} to the power of {shown(leaf[name])} is not a finite number"


def _is_number(value: object, *, integer: bool = False) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (not integer and isinstance(value, float) and math.isfinite(value))
