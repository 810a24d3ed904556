"""Copies of results, which are written while the processor computes the next batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

#: Classes whose objects a processor may change after it has returned them: library -> their names. The names suffice,
#: so that a library that another thread imports at this moment is never used.
_CHANGEABLE = {"numpy": ("ndarray",), "pandas": ("DataFrame", "Series")}


def copied(result: Any) -> Any:
    """Return a result whose memory the processor does not use again, as it does with a buffer for all batches.

    Arrow data cannot be changed, and is returned as it is.
    """
    if isinstance(result, torch.Tensor):
        return result.clone()
    if isinstance(result, Mapping):
        return {name: copied(value) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        kinds = set(map(type, result))
        return [copied(item) for item in result] if any(map(_is_changeable, kinds)) else list(result)
    return result.copy() if _is_changeable(type(result)) else result


def _is_changeable(kind: type) -> bool:
    return issubclass(kind, (torch.Tensor, Mapping, list)) or any(
        is_of(kind, library, name) for library, names in _CHANGEABLE.items() for name in names
    )


def is_of(kind: type, library: str, name: str) -> bool:
    """Return whether a class is one of a library that need not be installed, or inherits from it."""
    return any(one.__name__ == name and one.__module__.partition(".")[0] == library for one in kind.__mro__)
