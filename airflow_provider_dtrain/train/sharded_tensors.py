"""Sharded tensors. Each rank holds a part of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, SetupError

#: Kinds that checkpoints do not hold: the predecessors of ``fully_shard`` and ``DTensor``.
_OLD_TENSORS = frozenset({"ShardedTensor"})
_OLD_MODULES = frozenset({"FullyShardedDataParallel"})
_DTENSOR = frozenset({"DTensor"})
#: ``fully_shard`` and the checkpoints of DTensor are complete since this version of torch.
TORCH_NEEDED = (2, 6)

REMEDY = (
    "Shard the model with torch.distributed.fsdp.fully_shard or as DTensor, whose checkpoints ctx saves. Or keep the "
    "object out of ctx.prepare (ctx.backward and ctx.step work without it), or set checkpoint_policy: none."
)


def is_dtensor(value: Any) -> bool:
    """Return whether a value is a DTensor, which ``fully_shard`` and tensor parallelism use as parameters."""
    kind: Any = type(value)
    return _is_kind(kind, _DTENSOR)


def is_sharded(value: Any) -> bool:
    """Return whether a value is a tensor of which each rank holds a part."""
    return is_dtensor(value) or _is_old(value)


def _is_old(value: Any) -> bool:
    kind: Any = type(value)
    return bool(getattr(value, "_is_flat_param", False)) or _is_kind(kind, _OLD_TENSORS)


@lru_cache(maxsize=1024)
def _is_kind(kind: type, names: frozenset[str]) -> bool:
    return any(one.__name__ in names and one.__module__.startswith("torch.") for one in kind.__mro__)


def local_part(tensor: Any) -> Any:
    """Return the part of a tensor that this rank holds. It is the whole of a plain one."""
    return tensor.detach().to_local() if is_dtensor(tensor) else tensor.detach()


def held_part(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...], Any] | None:
    """Return the first index and the sizes of the part of a DTensor that this rank holds, and the part, or None."""
    part = local_part(tensor)
    if tensor.device_mesh.get_coordinate() is None or not part.numel():
        return None
    # The protocol by which torch.distributed.checkpoint asks a tensor for its parts.
    (chunk,) = tensor.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes), part


def sharded_as(whole: Any, like: Any) -> Any:
    """Return a tensor that is sharded as another one. Each rank has the whole tensor, so that nothing is sent.

    :param whole: plain tensor
    :param like: DTensor of the same shape
    """
    import torch

    sharded = torch.empty_like(like, dtype=whole.dtype, requires_grad=False)
    held = held_part(sharded)
    if held is not None:
        offsets, sizes, part = held
        part.copy_(whole[tuple(slice(start, start + size) for start, size in zip(offsets, sizes))])
    return sharded


def find_old(state: Any, path: str = "") -> tuple[str, str] | None:
    """Return the path and the type name of a tensor that checkpoints do not hold, in nested containers, or None."""
    if _is_old(state):
        return path, type(state).__name__
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, Mapping):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    for key, value in items:
        found = find_old(value, f"{path}.{key}" if path else str(key))
        if found is not None:
            return found
    return None


def refuse_in_state(state: Any) -> None:
    """Raise when a state to save holds a sharded tensor that is no DTensor.

    :raises CheckpointError: names the path of the tensor
    """
    found = find_old(state)
    if found is not None:
        raise CheckpointError(
            f"The state to save must hold whole tensors or DTensors, got a {found[1]} at {found[0]}. {REMEDY}"
        )


def sharded_kind(item: Any) -> str | None:
    """Return the type name of a module or tensor that shards an object's parameters, or None if they are whole."""
    return old_kind(item) or ("DTensor" if any(is_dtensor(tensor) for tensor in _tensors(item)) else None)


def old_kind(item: Any) -> str | None:
    """Return the type name of a module or tensor whose shards checkpoints do not hold, or None."""
    for module in item.modules() if hasattr(item, "modules") else ():
        if any(kind.__name__ in _OLD_MODULES for kind in type(module).__mro__):
            return type(module).__name__
    return next((type(tensor).__name__ for tensor in _tensors(item) if _is_old(tensor)), None)


def refuse_item(item: Any) -> None:
    """Raise when checkpoints cannot hold an object that ``ctx.prepare`` was given.

    :raises SetupError: names the object and the kind of its parameters
    """
    kind = old_kind(item)
    if kind is not None:
        raise SetupError(
            f"ctx.prepare takes objects with whole tensors or DTensors, got {type(item).__name__} with {kind} "
            f"parameters. {REMEDY}"
        )
    meta = next((tensor for tensor in _tensors(item) if tensor.is_meta), None)
    if meta is not None:
        raise SetupError(
            f"ctx.prepare takes objects with memory, got {type(item).__name__} with parameters on the meta device. "
            "Call model.to_empty(device=ctx.device) and initialize the parameters before ctx.prepare. "
            "ctx.restore_checkpoint overwrites them."
        )
    if any(is_dtensor(tensor) for tensor in _tensors(item)):
        refuse_old_torch()


def refuse_old_torch() -> None:
    """Raise when this version of torch is too old for checkpoints of sharded models.

    :raises SetupError: names the version that is needed
    """
    import torch

    digits = torch.__version__.split("+")[0].split(".")[:2]
    if tuple(int(digit) for digit in digits) < TORCH_NEEDED:
        needed = ".".join(map(str, TORCH_NEEDED))
        raise SetupError(
            f"Sharded models (fully_shard, DTensor) need torch {needed} or newer, found {torch.__version__}. Install a "
            f"newer one: python -m pip install 'torch>={needed}'"
        )


def _tensors(item: Any) -> Iterator[Any]:
    if hasattr(item, "parameters") and hasattr(item, "buffers"):
        yield from item.parameters()
        yield from item.buffers()
    for group in getattr(item, "param_groups", ()):
        yield from group["params"]
