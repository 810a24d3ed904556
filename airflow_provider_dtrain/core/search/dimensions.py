"""Dimensions of a hyperparameter space, as charts and tables show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_dtrain.core.hyperparameters.sampling import LOG_BASE
from airflow_provider_dtrain.core.hyperparameters.space import Path, dotted, is_constant, named_leaves

DimensionKind = Literal["float", "int", "categorical", "const"]


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One hyperparameter."""

    #: Names of the groups around it, and its own.
    path: Path
    #: The path as a readable string, unique in its space.
    name: str
    kind: DimensionKind
    #: True: it is drawn evenly on a logarithmic scale.
    is_log: bool = False
    minimum: float | None = None
    maximum: float | None = None
    #: Choices of a categorical, or the value of a constant.
    values: Sequence[Any] | None = None


def dimensions(space: Mapping[str, Any] | None) -> list[Dimension]:
    """Return the dimensions of a valid space, those that vary first, names sorted.

    :param space: ``hyperparameters`` of an effective configuration
    """
    found = list(named_leaves(space or {}))
    names = dotted([path for path, _ in found])
    all_of_them = [_dimension(path, name, leaf) for (path, leaf), name in zip(found, names, strict=True)]
    return sorted(all_of_them, key=lambda one: (one.kind == "const", one.name))


def _dimension(path: Path, name: str, leaf: Any) -> Dimension:
    if is_constant(leaf):
        value = leaf.get("val") if isinstance(leaf, Mapping) else leaf
        return Dimension(path=path, name=name, kind="const", values=[value])
    if leaf["type"] == "categorical":
        return Dimension(path=path, name=name, kind="categorical", values=list(leaf["vals"]))
    is_log = leaf["type"] == "log"
    ends = [_end(leaf[end], leaf.get("base") if is_log else None, is_log=is_log) for end in ("minval", "maxval")]
    kind: DimensionKind = "int" if leaf["type"] == "int" else "float"
    return Dimension(path=path, name=name, kind=kind, is_log=is_log, minimum=ends[0], maximum=ends[1])


def _end(value: Any, base: Any, *, is_log: bool) -> float | None:
    try:
        found = float(LOG_BASE if base is None else base) ** float(value) if is_log else float(value)
    except (OverflowError, ZeroDivisionError):
        return None
    return found if math.isfinite(found) else None


def value_at(hparams: Mapping[str, Any], path: Path) -> Any:
    """Return the value of a hyperparameter of a trial, None when it has none."""
    found: Any = hparams
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
