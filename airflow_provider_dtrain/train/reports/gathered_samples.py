"""Values of samples, e.g. predictions, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError


def gather_samples(allgather: Callable[[Any], list[Any]], values: Any, samples: int | None) -> Any:
    """Return the values of all ranks, the same on each rank. Called by all ranks.

    :param values: a tensor whose first dimension is the samples, or such tensors in a dict, list or tuple; None on a
        rank without samples
    :param samples: size of a data set that is dealt to the ranks in turn: the result is in its order. None, or another
        number of values: rank after rank
    :raises SetupError: no rank has values, or their structures differ
    """
    parts = allgather(_on_cpu(values))
    held = [part for part in parts if part is not None]
    if not held:
        raise SetupError("There is no value on any rank to gather. Check that the validation data is not empty.")
    return _merged(parts, held[0], samples)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_cpu, value))
    return value.detach().cpu() if hasattr(value, "detach") else value


def _merged(parts: list[Any], first: Any, samples: int | None) -> Any:
    import torch

    if isinstance(first, Mapping):
        return {key: _merged([_item(p, key) for p in parts], first[key], samples) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_merged([_item(p, i) for p in parts], item, samples) for i, item in enumerate(first))
    if not isinstance(first, torch.Tensor) or not first.dim():
        raise SetupError(
            "Values to gather must be tensors whose first dimension is the samples, or dicts and lists of them, got "
            f"{type(first).__name__}. For numbers, use ctx.reduce."
        )
    tensors = [first[:0] if part is None else part for part in parts]
    whole = torch.cat(tensors)
    size = len(parts)
    if len(whole) != samples or [len(t) for t in tensors] != [len(range(r, samples, size)) for r in range(size)]:
        return whole
    ordered = torch.empty_like(whole)
    for rank, part in enumerate(tensors):
        ordered[rank::size] = part
    return ordered


def _item(part: Any, key: Any) -> Any:
    try:
        return None if part is None else part[key]
    except (KeyError, IndexError, TypeError):
        raise SetupError(
            f"Values to gather must have the same structure on all ranks; one of them lacks {key!r}."
        ) from None
