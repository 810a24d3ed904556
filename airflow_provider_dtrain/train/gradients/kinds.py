"""Kinds of gradients in one optimizer: torch's functions of lists take plain tensors, or DTensors of one mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from airflow_provider_dtrain.train.sharded_tensors import is_dtensor


def by_kind(parameters: Iterable[Any]) -> list[list[Any]]:
    """Return the parameters that have gradients, in lists of one kind. The kinds have the same order on all ranks."""
    kinds: dict[Any, list[Any]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            kinds.setdefault(_kind(gradient), []).append(parameter)
    return list(kinds.values())


def _kind(gradient: Any) -> Any:
    """Return what the gradients of one list must have in common.

    The placements are part of it: the GradScaler reduces what it finds as the first gradient of a list is placed.
    """
    return (gradient.device_mesh, tuple(gradient.placements)) if is_dtensor(gradient) else None


def total_norm(kinds: Sequence[Sequence[Any]]) -> Any:
    """Return the norm of all gradients together, as a plain tensor. Called by all ranks.

    :param kinds: return value of :func:`by_kind`
    """
    import torch

    norms = [_whole(torch.nn.utils.get_total_norm([p.grad for p in parameters])) for parameters in kinds]
    if len(norms) < 2:
        return norms[0] if norms else torch.tensor(0.0)
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def _whole(norm: Any) -> Any:
    return norm.full_tensor() if is_dtensor(norm) else norm


def unscale(scaler: Any, optimizer: Any) -> None:
    """Divide the gradients of an optimizer by the scale, and note whether one is not finite. Called by all ranks.

    :param scaler: ``torch.amp.GradScaler``
    """
    kinds = by_kind(parameter for group in optimizer.param_groups for parameter in group["params"])
    if len(kinds) < 2:
        scaler.unscale_(optimizer)
        return
    of_one_kind = scaler._unscale_grads_

    def of_each_kind(_: Any, *scale: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for parameters in kinds:
            for device, value in of_one_kind(SimpleNamespace(param_groups=[{"params": parameters}]), *scale).items():
                found[device] = value.maximum(found[device]) if device in found else value
        return found

    scaler._unscale_grads_ = of_each_kind
    try:
        scaler.unscale_(optimizer)
    finally:
        del scaler._unscale_grads_
