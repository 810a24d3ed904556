"""Snapshots: immediate copies of a program's state, so that training continues while they are written."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from typing import Any

from airflow_provider_dtrain.train import sharded_tensors
from airflow_provider_dtrain.train.checkpoint.checkpoint_file import unsafe_types
from airflow_provider_dtrain.train.checkpoint.unsaveable import UnsaveableError
from airflow_provider_dtrain.train.errors import CheckpointError

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Snapshots:
    """Copies states into buffers that the next copy reuses.

    A copy is valid until the next one is taken. Memory is bounded by one copy of the largest state.
    """

    def __init__(self) -> None:
        #: (position in the walk, shape, strides, dtype) -> buffer
        self._buffers: dict[Any, Any] = {}

    def take(self, state: Any) -> Any:
        """Return a copy of nested dicts, lists and tuples with every tensor copied to the CPU.

        Two references to the same tensor stay references to one tensor.

        :raises CheckpointError: the state holds an object that cannot be loaded without running a pickle
        """
        walk = _Walk(self._buffers)
        try:
            taken = walk.copy(state)
        except _ShardedError:
            sharded_tensors.refuse_in_state(state)
            raise
        if walk.on_device:
            import torch

            torch.cuda.synchronize()
        # Free the buffers that this state did not use, so that they do not pile up when the state changes its shape.
        self._buffers = walk.used
        return taken


class _Walk:
    def __init__(self, buffers: dict[Any, Any]) -> None:
        self.buffers = buffers
        self.used: dict[Any, Any] = {}
        self.seen: dict[Any, Any] = {}
        self.on_device = False

    def copy(self, value: Any) -> Any:
        import torch

        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in {torch.Tensor, torch.nn.Parameter}:
            return self._tensor(value.detach())
        if kind is dict:
            return {self.copy(key): self.copy(item) for key, item in value.items()}
        if kind is OrderedDict:
            taken = OrderedDict((self.copy(key), self.copy(item)) for key, item in value.items())
            # A model's state carries the versions of its modules as an attribute.
            taken.__dict__.update(copy.deepcopy(value.__dict__))
            return taken
        if kind is list:
            return [self.copy(item) for item in value]
        if kind is tuple:
            return tuple(self.copy(item) for item in value)
        return self._other(value)

    def _tensor(self, tensor: Any) -> Any:
        import torch

        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.cpu().clone()
        shape = tuple(tensor.shape)
        strides = tensor.stride()
        identity = (tensor.data_ptr(), shape, strides, tensor.dtype, tensor.device)
        if tensor.numel() and identity in self.seen:
            return self.seen[identity]
        key = (len(self.used), shape, strides, tensor.dtype)
        buffer = self.buffers.get(key)
        if buffer is None:
            buffer = self._buffer(tensor)
        buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        self.on_device = self.on_device or tensor.is_cuda
        self.used[key] = self.seen[identity] = buffer
        return buffer

    def _buffer(self, tensor: Any) -> Any:
        import torch

        if tensor.is_cuda:
            try:
                return torch.empty_like(tensor, device="cpu", pin_memory=True)
            except RuntimeError:  # The limit of locked memory is reached.
                pass
        return torch.empty_like(tensor, device="cpu")

    def _other(self, value: Any) -> Any:
        """Return a copy of an object that is neither a tensor nor a plain container."""
        if sharded_tensors.is_sharded(value):
            raise _ShardedError(f"The state to save holds a {type(value).__name__}. {sharded_tensors.REMEDY}")
        refuse_unsafe(value)
        return copy.deepcopy(value)


class _ShardedError(CheckpointError):
    """Raised for a sharded tensor. The caller finds its path."""


def refuse_unsafe(value: Any) -> None:
    """Raise unless ``torch.load(weights_only=True)`` can read the value.

    :raises UnsaveableError: names its type
    """
    import torch

    if type(value) in {torch.Size, torch.dtype, torch.device}:
        return
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:
        # __reduce__ of a class may raise anything.
        raise UnsaveableError(value, f"which cannot be saved: {str(error).rstrip('.')}") from error
    buffer.seek(0)
    if unsafe_types(buffer):
        raise UnsaveableError(value, "which a checkpoint must not hold, because only a pickle could load it")
