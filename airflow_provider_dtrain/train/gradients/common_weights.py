"""Models whose tensors must be the same on all ranks, although the ranks do not exchange them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.prepared import plain_name, unwrap
from airflow_provider_dtrain.train.sharded_tensors import is_dtensor, is_sharded, local_part
from airflow_provider_dtrain.train.wrapped_tensors import plain_parts

#: Odd number whose multiples spread over all 64 bits, and distance at which these are mixed.
_SPREAD, _SHIFT = -0x61C8864680B583EB, 29


def refuse_different(models: Sequence[Any], distributed: Distributed) -> None:
    """Raise when models that the ranks do not exchange differ between them. Called by all ranks.

    Each rank has its own part of a sharded tensor, which is left out.

    :raises SetupError: names the model, the tensor and the rank
    """
    if not models or distributed.get_size() == 1:
        return
    mine = [_fingerprints(model) for model in models]
    digest = blake2b(repr(mine).encode(), digest_size=8).digest()
    if len(set(distributed.allgather(digest))) == 1:
        return
    for rank, theirs in enumerate(distributed.allgather(mine)):
        for model, own, other in zip(models, mine, theirs):
            name = next((name for name in (*own, *other) if own.get(name) != other.get(name)), None)
            if name is not None:
                raise SetupError(
                    f"{type(unwrap(model)).__name__} must be the same on all ranks, because they do not exchange it, "
                    f"but {name} differs between rank {distributed.get_rank()} and rank {rank}. Create the model "
                    "before the first epoch, batch or ctx.backward, where all ranks draw the same random numbers, or "
                    "load its weights. An object that has a state of its own on each rank belongs into "
                    "ctx.register(name=object)."
                )


def _fingerprints(model: Any) -> dict[str, str]:
    """Return type, shape and a number of the content of each tensor of a model that is whole on this rank."""
    import torch

    inner = unwrap(model)
    kinds = {}
    found = []
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        if is_dtensor(tensor) and all(placement.is_replicate() for placement in tensor.placements):
            tensor = local_part(tensor)
        if is_sharded(tensor):
            continue
        for number, part in enumerate(plain_parts(tensor.detach())):
            if part.layout is torch.strided and not part.is_quantized:
                kinds[f"{plain_name(name)}{f' (part {number})' if number else ''}"] = (
                    f"{part.dtype} {tuple(part.shape)}"
                )
                found.append(_fingerprint(part))
    # One copy from the device.
    numbers = torch.stack([number.to(found[0].device) for number in found]).tolist() if found else []
    return {name: f"{kind} {number}" for (name, kind), number in zip(kinds.items(), numbers)}


def _fingerprint(tensor: Any) -> Any:
    """Return a number of all bits of a tensor and of their places, on its device.

    The bits are whole numbers, whose sums do not depend on the order or the device. The sums of the rows and columns of
    a square of all of them are weighted, so that no weight per number is needed.
    """
    import torch

    data = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0).byte()
    # Eight bytes are read as one number, which must begin at a multiple of eight.
    data = data.clone() if data.storage_offset() % 8 else data
    whole = data.numel() // 8 * 8
    numbers = data[:whole].view(torch.int64)
    width = math.isqrt(numbers.numel())
    square = numbers[: width * width].view(width, width)
    sums = torch.cat((square.sum(0), square.sum(1), numbers[width * width :], data[whole:].to(torch.int64)))
    weights = torch.arange(1, len(sums) + 1, device=data.device) * _SPREAD
    return (sums * (weights ^ (weights >> _SHIFT))).sum()
