"""Numbers among the values that a framework logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are one number: int, float, tensor or array of one element. Texts are left out."""
    found = {}
    for name, value in values.items():
        if isinstance(value, (bool, str, bytes)):
            continue
        try:
            # Raises for more than one element.
            found[str(name)] = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError):
            continue
    return found
