"""Trained parameters that no checkpoint holds, because the object with them was neither prepared nor registered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.sharded_tensors import local_part

log = logging.getLogger(__name__)


def warn_of_unsaved(prepared: Prepared, states: Sequence[Any]) -> None:
    """Log a warning for each prepared optimizer that trains parameters which are in no state to save.

    A resumed program would continue with the optimizer's state and with the initial values of these parameters.

    :param states: states of the objects that are no model, optimizer or scheduler
    """
    saved = {id(parameter) for model in prepared.models for parameter in model.parameters()}
    # The states of other objects, such as a module that was registered, share the memory of their parameters.
    memory = {_address(tensor) for tensor in _tensors(states)}
    for optimizer in prepared.optimizers:
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        missing = [p for p in trained if id(p) not in saved and p.numel() and _address(p) not in memory]
        if missing:
            log.warning(
                "Checkpoints do not hold %d of the %d parameters that %s trains, one of shape %s: they belong to no "
                "object of ctx.prepare or ctx.register. A resumed run starts with their initial values. Register the "
                "object that holds them: ctx.register(name=object).",
                len(missing),
                len(trained),
                type(optimizer).__name__,
                tuple(missing[0].shape),
            )


def _address(tensor: Any) -> int | None:
    """Return the address of a tensor's memory on this rank, None for a layout without one, such as a sparse one."""
    try:
        return int(local_part(tensor).data_ptr())
    except (RuntimeError, NotImplementedError):
        return None


def _tensors(state: Any) -> Iterator[Any]:
    if isinstance(state, Mapping):
        state = state.values()
    elif not isinstance(state, (list, tuple)):
        if hasattr(state, "data_ptr"):
            yield state
        return
    for value in state:
        yield from _tensors(value)
