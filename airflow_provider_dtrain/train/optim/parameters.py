"""Parameter groups for weight decay and layer-wise scaling."""

from __future__ import annotations

from typing import Any

import torch

from airflow_provider_dtrain.train.values import ParameterGroup


def split_parameters(model: Any) -> list[ParameterGroup]:
    """Return two parameter groups: weights, and parameters without decay and layer-wise scaling.

    The second group holds biases, all parameters of normalization layers, and everything else of less than two
    dimensions, with ``weight_decay`` 0 and ``adapt`` False (read by LAMB, ignored by optimizers of torch).
    Parameters that need no gradient are omitted, and so is a group without parameters.

    Source: You et al. 2020, "Large Batch Optimization for Deep Learning", and the authors' code.

    :param model: torch.nn.Module, before or after ``ctx.prepare``
    """
    norms = {
        id(parameter)
        for module in model.modules()
        if _is_norm(module)
        for parameter in module.parameters(recurse=False)
    }
    weights: list[Any] = []
    rest: list[Any] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (rest if parameter.ndim < 2 or id(parameter) in norms else weights).append(parameter)
    groups: list[ParameterGroup] = [{"params": weights}, {"params": rest, "weight_decay": 0.0, "adapt": False}]
    return [group for group in groups if group["params"]]


def _is_norm(module: Any) -> bool:
    kinds = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.LocalResponseNorm)
    return isinstance(module, kinds) or "Norm" in type(module).__name__
