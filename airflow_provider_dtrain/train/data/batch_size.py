"""Division of a global batch over slots."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.errors import BatchSizeError, HparamError
from airflow_provider_dtrain.train.values import Hyperparameters

log = logging.getLogger(__name__)


class Hparams(dict):  # type: ignore[type-arg]
    """Hyperparameters of the trial: a dict whose KeyError lists the existing names."""

    def __missing__(self, name: object) -> Any:
        known = ", ".join(sorted(map(str, self))) or "none at all"
        raise HparamError(
            f"There is no hyperparameter {name!r}; there are: {known}. Add it to hyperparameters of the "
            "configuration, or give a default: dtrain.init(hparams={...})."
        )


def constants(space: Mapping[str, Any]) -> Hyperparameters:
    """Return the hyperparameters that a configuration fixes, without ranges and choices.

    :param space: section ``hyperparameters``: constants, ``{type: const, val: ...}``, nested groups
    """
    found: Hyperparameters = {}
    for name, value in space.items():
        if not isinstance(value, Mapping):
            found[name] = value
        elif "type" not in value:
            found[name] = constants(value)
        elif value["type"] == "const":
            found[name] = value["val"]
    return found


@dataclass(frozen=True)
class BatchSizes:
    """A global batch divided over the ranks of a gang."""

    #: Value of the configuration.
    configured: int
    per_slot: int
    #: Value in use: ``per_slot`` times the number of slots.
    effective: int


def divide(global_batch_size: int, slots: int) -> BatchSizes:
    """Return the per-slot batch, rounded down, and the global batch that results.

    :param global_batch_size: samples per optimizer step, all ranks together
    :param slots: ranks of the gang, >= 1
    :raises BatchSizeError: fewer samples than slots
    """
    if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int):
        raise BatchSizeError(f"global_batch_size must be a whole number, got {global_batch_size!r}.")
    if global_batch_size < slots:
        raise BatchSizeError(
            f"global_batch_size must be at least {slots}, one sample per slot, got {global_batch_size}. "
            f"Set global_batch_size to {slots} or more, or request fewer slots."
        )
    per_slot = global_batch_size // slots
    return BatchSizes(global_batch_size, per_slot, per_slot * slots)


def from_hparams(hparams: Mapping[str, Any], slots: int, *, warn: bool) -> BatchSizes:
    """Return the batch sizes that ``hparams["global_batch_size"]`` gives.

    :param warn: log a warning when the remainder is dropped; one rank does
    :raises HparamError: there is no such hyperparameter
    """
    sizes = divide(hparams["global_batch_size"], slots)
    if warn and sizes.effective != sizes.configured:
        log.warning(
            "global_batch_size %d is not divisible by %d slots: each slot takes %d, so the effective global batch size "
            "is %d.",
            sizes.configured,
            slots,
            sizes.per_slot,
            sizes.effective,
        )
    return sizes


def suggest_weak_scaling(before: Mapping[str, Any], slots: int, global_batch_size: int) -> None:
    """Log a hint when the number of slots grew and the global batch did not.

    :param before: metadata of the checkpoint that training resumes from
    """
    old_slots = before.get("world_size") or slots
    old_batch = before.get("global_batch_size")
    if slots > old_slots and old_batch == global_batch_size:
        log.info(
            "The gang grew from %d to %d slots and global_batch_size stayed %d: each slot now does less work per "
            "exchange of gradients. For weak scaling, set global_batch_size to %d and adapt the learning rate.",
            old_slots,
            slots,
            global_batch_size,
            global_batch_size * slots // old_slots,
        )
