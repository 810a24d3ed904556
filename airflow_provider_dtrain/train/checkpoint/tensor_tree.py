"""States without their tensors: a skeleton that holds a key in the place of each tensor."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor, local_part
from airflow_provider_dtrain.train.values import Tensors

#: Only key of the dict that stands for a tensor in a skeleton.
PLACEHOLDER = "dtrain.tensor"


def split(state: Any) -> tuple[Any, Tensors]:
    """Return the skeleton of a state, and its tensors by key.

    A key is the path of the tensor. Two references to the same tensor get one key. Tensors without dimensions and of
    types that a tensor file does not hold stay in the skeleton, unless they are sharded.

    :raises CheckpointError: a sharded tensor has a type that a tensor file does not hold
    """
    walk = _Split()
    return walk.of(state, ()), walk.tensors


class _Split:
    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._seen: dict[Any, str] = {}

    def of(self, value: Any, path: tuple[str, ...]) -> Any:
        if type(value) is dict:
            if PLACEHOLDER in value:
                raise CheckpointError(f"The state of {'.'.join(path)} must not have the key {PLACEHOLDER!r}.")
            return {key: self.of(item, (*path, str(key))) for key, item in value.items()}
        if type(value) is OrderedDict:
            taken = OrderedDict((key, self.of(item, (*path, str(key)))) for key, item in value.items())
            # A model's state carries the versions of its modules as an attribute.
            taken.__dict__.update(copy.deepcopy(value.__dict__))
            return taken
        if type(value) in {list, tuple}:
            return type(value)(self.of(item, (*path, str(index))) for index, item in enumerate(value))
        return {PLACEHOLDER: self._key(value, path)} if _belongs_in_file(value, path) else value

    def _key(self, tensor: Any, path: tuple[str, ...]) -> str:
        identity = _identity(tensor)
        if identity in self._seen:
            return self._seen[identity]
        key = name = ".".join(path)
        count = 1
        while key in self.tensors:
            count += 1
            key = f"{name}#{count}"
        self.tensors[key] = tensor.detach()
        if identity is not None:
            self._seen[identity] = key
        return key


def _belongs_in_file(value: Any, path: tuple[str, ...]) -> bool:
    import torch

    if is_dtensor(value):
        if value.dtype not in DTYPES.by_dtype:
            raise CheckpointError(f"{'.'.join(path)} is a sharded tensor of {value.dtype}, which no tensor file holds.")
        return True
    if type(value) not in {torch.Tensor, torch.nn.Parameter}:
        return False
    is_whole = value.layout is torch.strided and not value.is_quantized and not value.is_meta
    return is_whole and value.dim() > 0 and value.numel() > 0 and value.dtype in DTYPES.by_dtype


def _identity(tensor: Any) -> Any:
    """Return a value that two references to the same tensor share. An empty part of a tensor has None."""
    part = local_part(tensor)
    if part.numel() == 0:
        return None
    placements = str(tensor.placements) if is_dtensor(tensor) else ""
    return part.data_ptr(), tuple(tensor.shape), part.stride(), part.dtype, part.device, placements


def key_of(value: Any) -> str | None:
    """Return the key that a value of a skeleton stands for, or None if it is no placeholder."""
    if type(value) is dict and len(value) == 1 and PLACEHOLDER in value:
        key = value[PLACEHOLDER]
        if type(key) is str:
            return key
    return None


def fill(skeleton: Any, tensor_for: Callable[[str], Any]) -> Any:
    """Return a state: a skeleton with a tensor in the place of each key."""
    key = key_of(skeleton)
    if key is not None:
        return tensor_for(key)
    if type(skeleton) is dict:
        return {name: fill(item, tensor_for) for name, item in skeleton.items()}
    if type(skeleton) is OrderedDict:
        taken = OrderedDict((name, fill(item, tensor_for)) for name, item in skeleton.items())
        taken.__dict__.update(skeleton.__dict__)
        return taken
    if type(skeleton) in {list, tuple}:
        return type(skeleton)(fill(item, tensor_for) for item in skeleton)
    return skeleton


def holds_sharded(value: Any) -> bool:
    """Return whether nested containers hold a DTensor."""
    if isinstance(value, dict):
        return any(holds_sharded(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_sharded(item) for item in value)
    return is_dtensor(value)


def keys(skeleton: Any) -> list[str]:
    """Return the keys in a skeleton."""
    found: list[str] = []
    fill(skeleton, found.append)
    return found
