"""Tensors of a class of their own: those that are made of other tensors, as quantized ones are, and plain ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.process.imported import imported
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor
from airflow_provider_dtrain.train.values import Tensors


def is_wrapped(value: Any) -> bool:
    """Return whether a value is made of other tensors, into which torch can take it apart, and no DTensor."""
    torch: Any = imported("torch")
    if torch is None or type(value) is torch.Tensor or not isinstance(value, torch.Tensor) or is_dtensor(value):
        return False
    # Sizes that are no plain numbers, such as those of a nested tensor, belong to the process.
    return hasattr(value, "__tensor_flatten__") and all(type(size) is int for size in value.shape)


def is_thin(value: Any) -> bool:
    """Return whether a tensor has another class than torch's own, and the same memory as one of torch's own."""
    import torch

    kind = type(value)
    is_own = kind is torch.Tensor or kind is torch.nn.Parameter
    return not is_own and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and not is_wrapped(value)


def name_of(kind: type) -> str:
    """Return the name by which a checkpoint has a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def known() -> Mapping[str, Any]:
    """Return the classes that torch may make of the content of a file, by name.

    A library of tensors adds its classes to torch's list, as torchao does, and a program can:
    ``torch.serialization.add_safe_globals``.
    """
    import torch

    listed = (entry[0] if isinstance(entry, tuple) else entry for entry in torch.serialization.get_safe_globals())
    return {name_of(entry): entry for entry in listed if isinstance(entry, type)}


def is_unknown(value: Any) -> bool:
    """Return whether a value is a tensor that is made of others and has a class that torch may not make."""
    return is_wrapped(value) and name_of(type(value)) not in known()


def taken_apart(tensor: Any) -> tuple[Tensors, Any]:
    """Return the tensors that a wrapped one is made of, by name, and what its class needs beside them."""
    names, context = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}, context


def made(name: str, parts: Mapping[str, Any], context: Any, shape: list[int], strides: list[int]) -> Any:
    """Return the tensor of a class of :func:`known`.

    :raises CheckpointError: torch's list lacks the class
    :raises ValueError: the class cannot be made of this
    """
    import torch

    kind = known().get(name)
    if kind is None or not hasattr(kind, "__tensor_unflatten__"):
        raise CheckpointError(
            f"The checkpoint has a tensor of the class {name[:200]}, which is not in the list of those that torch may "
            "make. Import the library that has the class before ctx.restore_checkpoint(), or, if you trust it, call "
            f"torch.serialization.add_safe_globals([{name[:200].rpartition('.')[2]}])."
        )
    try:
        return kind.__tensor_unflatten__(parts, context, torch.Size(shape), tuple(strides))
    except Exception as error:  # a class may raise anything
        raise ValueError(f"{name} cannot be made: {error}") from error


def plain_parts(tensor: Any) -> Iterator[Any]:
    """Yield the plain tensors that a tensor is made of: itself, or the parts of a wrapped one."""
    if not is_wrapped(tensor):
        yield tensor
        return
    for part in taken_apart(tensor)[0].values():
        yield from plain_parts(part)
