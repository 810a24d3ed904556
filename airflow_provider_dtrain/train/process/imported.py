"""Modules that the process has imported, without those that another thread imports at this moment."""

from __future__ import annotations

import sys
from types import ModuleType


def imported(name: str) -> ModuleType | None:
    """Return a module that this process has imported completely, else None.

    ``sys.modules`` has a module from the beginning of its import on, and most of its names are missing until the end.
    """
    module = sys.modules.get(name)
    # Source: importlib._bootstrap, which sets it for the duration of the import.
    is_incomplete = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_incomplete else module
