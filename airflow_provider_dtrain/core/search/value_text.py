"""Values of hyperparameters as texts: two values of a choice that differ have different texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def _general(value: float) -> str:
    return f"{value:g}"


def value_text(value: Any, number: Callable[[float], str] = _general) -> str:
    """Return a value as JSON, except that a text which is no JSON has no quotes: ``resnet``, ``"1"``, ``1``, ``1.0``.

    :param number: returns the text of a float
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if _is_json(value) else value
    if isinstance(value, float):
        text = number(value)
        return f"{text}.0" if math.isfinite(value) and text.lstrip("-").isdigit() else text
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
