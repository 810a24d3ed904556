"""Marks of the training state, which show what has changed between two moments without a copy of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import memory
from airflow_provider_dtrain.train.prepared import Prepared, bare
from airflow_provider_dtrain.train.process import seeding
from airflow_provider_dtrain.train.sharded_tensors import sharded_kind

#: Name of the part that counts backward passes and steps.
TRAINING = "training"


class StateMark:
    """State of the prepared objects and of the random generators at one moment.

    :param parts: name of a part of the state -> a value that differs when the part does
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts

    @classmethod
    def of(cls, prepared: Prepared, work: Any) -> StateMark:
        """Return the mark of now.

        :param work: object with the number of backward passes, and of steps
        """
        return cls({TRAINING: _count(work), **dict(_parts(prepared)), "random numbers": _random()})

    def changes(self, later: StateMark) -> list[str]:
        """Return the names of what has changed until a later mark."""
        return [name for name, value in later._parts.items() if self._parts.get(name) != value]


def _count(work: Any) -> tuple[int, int]:
    return work.backwards, getattr(work, "steps", 0)


def _parts(prepared: Prepared) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(prepared.models):
        # FSDP2 exchanges the parameters of a sharded model in each pass. Its steps are counted.
        if sharded_kind(model) is None:
            yield f"models[{index}] ({type(bare(model)).__name__})", _versions(model)
    for index, optimizer in enumerate(prepared.optimizers):
        groups = [{**group, "params": None} for group in optimizer.param_groups]
        yield f"optimizers[{index}] ({type(optimizer).__name__})", repr(groups)
    for index, scheduler in enumerate(prepared.schedulers):
        yield f"schedulers[{index}] ({type(scheduler).__name__})", repr(scheduler.state_dict())
    for index, item in enumerate(prepared.further):
        if hasattr(item, "parameters") and hasattr(item, "buffers"):
            yield f"{prepared.names.get(index, f'others[{index}]')} ({type(item).__name__})", _versions(item)


def _versions(module: Any) -> list[tuple[int, int]]:
    """Return for each tensor of a module its identity, and the number of its changes in place."""
    tensors = (*module.parameters(), *module.buffers())
    return [(id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


def _random() -> Any:
    states = seeding.capture()
    return [bytes(memory(value.contiguous())) if hasattr(value, "data_ptr") else value for value in states.values()]
