"""Transfer of batches to a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow_provider_dtrain.train.nested import map_leaves

log = logging.getLogger(__name__)


def move(batch: Any, device: Any) -> Any:
    """Return the batch on the device, including tensors and numeric arrays in mappings, sequences and dataclasses."""
    return map_leaves(batch, partial(_moved, device=device), _can_move)


def move_or_warn(batch: Any, device: Any, warned_types: set[type]) -> Any:
    """Return :func:`move` of the batch, and log each type that stays where it is.

    :param warned_types: types that are not logged again; the new ones are added
    """

    def change(value: Any) -> Any:
        moved = _moved(value, device)
        if moved is value and not _can_move(value) and type(value) not in warned_types:
            warned_types.add(type(value))
            log.warning("Was not able to move data of type %s to the device: it stays as it is.", type(value).__name__)
        return moved

    return map_leaves(batch, change, _can_move)


def _can_move(value: Any) -> bool:
    return hasattr(value, "to")


def _moved(value: Any, device: Any) -> Any:
    if hasattr(value, "to"):
        # This check takes a tenth of the time of a to() that has nothing to do.
        return value if getattr(value, "device", None) == device else value.to(device, non_blocking=True)
    if type(value).__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "O") in "biufc":
        import torch

        return torch.as_tensor(value).to(device, non_blocking=True)
    return value


def mover(device: Any) -> Callable[[Any], Any]:
    """Return :func:`move` for one device.

    :param device: None without PyTorch: batches stay as they are
    """
    if device is None:
        return lambda batch: batch
    return partial(map_leaves, change=partial(_moved, device=device), is_leaf=_can_move)
