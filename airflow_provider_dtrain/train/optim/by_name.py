"""Optimizers by name, as a hyperparameter gives it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from airflow_provider_dtrain.train.errors import OptimizerError
from airflow_provider_dtrain.train.optim.parameters import split_parameters

#: From the package pytorch-optimizer.
LARGE_BATCH = ("lamb", "lars")
#: The base class, and LBFGS, which needs a closure that computes the loss again. Neither API supports closures.
_LEFT_OUT = ("Optimizer", "LBFGS")


def names() -> list[str]:
    """Return the sorted names that :func:`get` accepts, with ``lamb`` and ``lars`` even without their package."""
    return sorted({*_of_torch(), *LARGE_BATCH})


def get(name: str) -> Any:
    """Return the class of an optimizer.

    :param name: name in ``torch.optim`` (``adam``, ``adamw``, ``radam``, ``sgd``, ...), ``lars`` or ``lamb``, in upper
        or lower case
    :raises OptimizerError: the optimizer does not exist, or its package is not installed
    """
    key = str(name).lower()
    if key in LARGE_BATCH:
        return _of_pytorch_optimizer(key)
    found = _of_torch().get(key)
    if found is None:
        raise OptimizerError(f"Optimizer {name!r} does not exist. The optimizers are: {', '.join(names())}.")
    return found


def create(name: str, parameters: Any, **options: Any) -> Any:
    """Return a new optimizer.

    :param name: as for :func:`get`
    :param parameters: parameters, groups of parameters, or a model. For a model, LAMB excludes biases and the
        parameters of normalization layers from weight decay and from layer-wise scaling, as its authors do
        (:func:`split_parameters`). LARS excludes every tensor of less than two dimensions, from any source
    :param options: options of the optimizer, e.g. ``lr``, ``weight_decay``, ``betas``
    :raises OptimizerError: the optimizer does not exist, its package is not installed, or it rejects an option
    """
    chosen = get(name)
    accepted = [
        option.name
        for option in inspect.signature(chosen).parameters.values()
        if option.name != "params" and option.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    wrong = sorted(set(options) - set(accepted))
    if wrong:
        raise OptimizerError(f"Optimizer {name!r} does not accept {', '.join(wrong)}. It takes: {', '.join(accepted)}.")
    if isinstance(parameters, torch.nn.Module):
        parameters = split_parameters(parameters) if str(name).lower() == "lamb" else parameters.parameters()
    try:
        return chosen(parameters, **options)
    except (TypeError, ValueError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise OptimizerError(f"Optimizer {name!r} rejected its options ({shown}): {error}") from error


def _of_torch() -> dict[str, type[torch.optim.Optimizer]]:
    return {
        attribute.lower(): value
        for attribute, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and attribute not in _LEFT_OUT
    }


def _of_pytorch_optimizer(key: str) -> Any:
    try:
        from airflow_provider_dtrain.train.optim import layerwise
    except ImportError as error:
        raise OptimizerError(
            f"Optimizer {key!r} comes from the package pytorch-optimizer, which this interpreter cannot import "
            f"({error}). On the hosts: pip install 'pytorch-optimizer>=4.1'; with the provider: "
            "pip install 'airflow-provider-dtrain[large-batch]'."
        ) from error
    return {"lars": layerwise.Lars, "lamb": layerwise.Lamb}[key]
