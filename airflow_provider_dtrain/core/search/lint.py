"""Lint rules for search configurations: settings that are valid, but probably a mistake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.hyperparameters.sampling import LOG_BASE
from airflow_provider_dtrain.core.hyperparameters.space import LEAF_FIELDS, is_leaf, leaves

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.core.search.plan import Outline

BATCH_SIZE = "hyperparameters.global_batch_size"
#: Fields of all types of hyperparameters.
_FIELDS = frozenset().union(*(names for fields in LEAF_FIELDS.values() for names in fields))


def slips(config: ExperimentConfig, shape: Outline) -> list[str]:
    """Return warnings, one line each.

    :param shape: of the same configuration
    """
    found: list[str] = []
    for path, leaf in leaves(config.hyperparameters):
        found += [*_exponents(path, leaf), *_ranges_in_lists(path, leaf)]
        if path == BATCH_SIZE:
            found += _batch_sizes(leaf, config.resources.slots_per_trial)
    return [*found, *_ranges_without_type(config.hyperparameters, "hyperparameters"), *_equal_rungs(shape)]


def _exponents(path: str, leaf: Any) -> Iterator[str]:
    """Yield a warning for a ``log`` whose ends look like values instead of exponents."""
    if not isinstance(leaf, Mapping) or leaf.get("type") != "log":
        return
    low = leaf["minval"]
    high = leaf["maxval"]
    base = leaf.get("base", LOG_BASE)
    if low > 0 and high <= 1 and not (float(low).is_integer() and float(high).is_integer()):
        ends = f"{base**low:.4g} to {base**high:.4g}"
        yield f"{path}: minval and maxval are exponents, so this is {ends}; 0.001 to 0.1 is written -3 and -1"


def _ranges_in_lists(path: str, leaf: Any) -> Iterator[str]:
    if not isinstance(leaf, list):
        return
    for place, item in enumerate(leaf):
        if isinstance(item, Mapping) and item.get("type") in LEAF_FIELDS:
            yield f"{path}: a list is one constant, so the {item['type']} at [{place}] in it is not sampled"


def _ranges_without_type(group: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield a warning for each group whose names are the fields of a range or a choice."""
    if group.keys() & {"minval", "maxval", "vals"} and group.keys() <= _FIELDS:
        names = " and ".join(sorted(group))
        yield f"{path}: without a type this is a group with the constants {names}; type: {_type_of(group)} is missing"
    for name, value in group.items():
        if not is_leaf(value):
            yield from _ranges_without_type(value, f"{path}.{name}")


def _type_of(group: Mapping[str, Any]) -> str:
    return "categorical" if "vals" in group else "log" if "base" in group else "int, double or log"


def _batch_sizes(leaf: Any, slots: int) -> Iterator[str]:
    values = [leaf]
    if isinstance(leaf, Mapping):
        values = leaf["vals"] if leaf["type"] == "categorical" else [leaf.get("val", leaf.get("minval"))]
    of_numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    is_exponent = isinstance(leaf, Mapping) and leaf["type"] == "log"
    if of_numbers and not is_exponent and min(of_numbers) < slots:
        yield f"{BATCH_SIZE}: {min(of_numbers)} is less than one sample for each of the {slots} slots of a trial"


def _equal_rungs(shape: Outline) -> Iterator[str]:
    for rungs, trials in shape.brackets:
        if trials and any(low == high for low, high in pairwise(rungs)):
            units = ", ".join(map(str, rungs))
            yield (
                f"searcher: rungs at {units} {shape.unit}: one validation judges a trial at every equal rung; "
                f"raise max_length or lower the number of rungs"
            )
