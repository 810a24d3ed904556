"""Gradients: from a loss to an optimizer step, as ``optimizations`` of the configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.state import wrap

DEFAULT_BUCKET_MIB = 25


class Gradients:
    """The models and optimizers of one rank on their way through backward passes and steps.

    :param optimizations: the group of that name in the configuration; empty off-cluster
    """

    def __init__(self, distributed: Distributed, device: Any, optimizations: Mapping[str, Any]) -> None:
        self._distributed, self._device = distributed, device
        self._bucket_mib = optimizations.get("tensor_fusion_threshold") or DEFAULT_BUCKET_MIB

    def wrap_model(self, model: Any, *, find_unused_parameters: bool = False) -> Any:
        """Return the model on its device, in DistributedDataParallel when there are several ranks."""
        return wrap(
            model, device=self._device, size=self._distributed.get_size(), bucket_mib=self._bucket_mib,
            find_unused_parameters=find_unused_parameters,
        )  # fmt: skip

    def backward(self, loss: Any) -> None:
        """Compute gradients."""
        loss.backward()

    def step(self, optimizer: Any, *, clip_grad_norm: float | None = None) -> tuple[bool, Any]:
        """Take an optimizer step where one is due; return whether it was taken, and the norm before clipping."""
        norm = _clip(optimizer, clip_grad_norm) if clip_grad_norm is not None else None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return True, norm


def _clip(optimizer: Any, limit: float) -> Any:
    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, limit)
