"""Sharded tensors. Each rank holds a part of them, so rank 0 alone cannot save them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, SetupError

_NAMES = {"DTensor", "ShardedTensor"}
_MODULES = {"FullyShardedDataParallel"}

REMEDY = (
    "Checkpoints of ctx hold rank 0's state only, so this would lose the other ranks' parts. Keep the object out of "
    "ctx.prepare (ctx.backward and ctx.step work without it) and save it with torch.distributed.checkpoint, or set "
    "checkpoint_policy: none."
)


def is_sharded(value: Any) -> bool:
    """Return whether a value is a tensor of which each rank holds a part."""
    if getattr(value, "_is_flat_param", False):
        return True
    return any(kind.__name__ in _NAMES and kind.__module__.startswith("torch.") for kind in type(value).__mro__)


def find(state: Any, path: str = "") -> tuple[str, str] | None:
    """Return the path and the type name of a sharded tensor in nested dicts, lists and tuples, or None."""
    if is_sharded(state):
        return path, type(state).__name__
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, Mapping):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    for key, value in items:
        found = find(value, f"{path}.{key}" if path else str(key))
        if found is not None:
            return found
    return None


def refuse_in_state(state: Any) -> None:
    """Raise when a state to save holds a sharded tensor.

    :raises CheckpointError: names the path of the tensor
    """
    found = find(state)
    if found is not None:
        raise CheckpointError(f"The state to save must hold whole tensors, got a {found[1]} at {found[0]}. {REMEDY}")


def sharded_kind(item: Any) -> str | None:
    """Return the type name of a module or tensor that shards an object's parameters, or None if they are whole."""
    for module in item.modules() if hasattr(item, "modules") else ():
        if any(kind.__name__ in _MODULES for kind in type(module).__mro__):
            return type(module).__name__
    return next((type(tensor).__name__ for tensor in _tensors(item) if is_sharded(tensor)), None)


def refuse_item(item: Any) -> None:
    """Raise when an object that ``ctx.prepare`` was given has sharded parameters.

    :raises SetupError: names the object and the kind of its parameters
    """
    kind = sharded_kind(item)
    if kind is not None:
        raise SetupError(
            f"ctx.prepare takes objects with whole tensors, got {type(item).__name__} with {kind} parameters. {REMEDY}"
        )


def _tensors(item: Any) -> Iterator[Any]:
    if hasattr(item, "parameters") and hasattr(item, "buffers"):
        yield from item.parameters()
        yield from item.buffers()
    for group in getattr(item, "param_groups", ()):
        yield from group["params"]
