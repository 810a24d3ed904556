"""Nested containers of tensors: batches of data, and outputs of models."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


def map_leaves(value: Any, change: Callable[[Any], Any], is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return the value with each leaf changed, in containers of the same types.

    Mappings, lists, tuples, named tuples and dataclasses are containers, and subclasses keep their type and attributes.
    A container in which nothing changes is returned itself, so a batch that needs no change is not copied.

    :param change: called with everything that is no container; returns the same object for what stays
    :param is_leaf: containers for which it returns true are passed to ``change`` as a whole
    """
    if is_leaf is not None and is_leaf(value):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: map_leaves(item, change, is_leaf) for key, item in value.items()}
        return value if _same(changed.values(), value.values()) else _mapping(value, changed)
    if isinstance(value, (list, tuple)):
        items = [map_leaves(item, change, is_leaf) for item in value]
        return value if _same(items, value) else _sequence(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, change, is_leaf)
    return change(value)


def _same(new: Any, old: Any) -> bool:
    return all(one is other for one, other in zip(new, old))


def _mapping(value: Any, changed: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return changed
    if not isinstance(value, MutableMapping):
        return changed
    fresh = copy.copy(value)
    for key, item in changed.items():
        fresh[key] = item
    return fresh


def _sequence(value: Any, items: list[Any]) -> Any:
    if hasattr(value, "_fields"):
        return type(value)(*items)
    if type(value) is list:
        return items
    if isinstance(value, list):
        fresh = copy.copy(value)
        fresh[:] = items
        return fresh
    return type(value)(items)


def _dataclass(value: Any, change: Callable[[Any], Any], is_leaf: Callable[[Any], bool] | None) -> Any:
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    changed = {name: map_leaves(getattr(value, name), change, is_leaf) for name in names}
    if all(changed[name] is getattr(value, name) for name in names):
        return value
    fresh = copy.copy(value)
    for name, item in changed.items():
        object.__setattr__(fresh, name, item)  # also of a frozen one
    return fresh
