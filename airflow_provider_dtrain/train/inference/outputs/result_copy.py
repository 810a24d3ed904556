"""Copies of results, which are written while the processor computes the next batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch


def copied(result: Any) -> Any:
    """Return a result whose memory the processor does not use again, as it does with a buffer for all batches.

    Arrow data cannot be changed, and is returned as it is.
    """
    if isinstance(result, torch.Tensor):
        return result.clone()
    if isinstance(result, Mapping):
        return {name: copied(value) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [copied(item) for item in result] if result and _is_changeable(result[0]) else list(result)
    return result.copy() if _is_changeable(result) else result


def _is_changeable(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, Mapping, list)):
        return True
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return True
    return pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series))
