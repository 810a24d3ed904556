"""Optimizers by the name that a hyperparameter gives."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from airflow_provider_dtrain.train.errors import OptimizerError
from airflow_provider_dtrain.train.optim.parameters import split_parameters

#: Of the package pytorch-optimizer.
LARGE_BATCH = ("lamb", "lars")
#: Needs a closure that computes the loss again, which neither door has.
_LEFT_OUT = ("Optimizer", "LBFGS")


def names() -> list[str]:
    """Return the names that :func:`get` knows, sorted; ``lamb`` and ``lars`` also where their package is missing."""
    return sorted({*_of_torch(), *LARGE_BATCH})


def get(name: str) -> Any:
    """Return the class of an optimizer.

    :param name: of ``torch.optim`` (``adam``, ``adamw``, ``radam``, ``sgd``, ...), ``lars`` or ``lamb``; upper and
        lower case are the same
    :raises OptimizerError: there is no such optimizer, or its package is not installed
    """
    key = str(name).lower()
    if key in LARGE_BATCH:
        return _of_pytorch_optimizer(key)
    found = _of_torch().get(key)
    if found is None:
        raise OptimizerError(f"There is no optimizer {name!r}; there are: {', '.join(names())}.")
    return found


def create(name: str, parameters: Any, **options: Any) -> Any:
    """Return a new optimizer.

    :param name: as for :func:`get`
    :param parameters: parameters, groups of parameters, or a model. Of a model, LAMB leaves biases and the
        parameters of normalization layers out of weight decay and of the scaling by layers, as its authors do
        (:func:`split_parameters`); LARS does so with every tensor of less than two dimensions, wherever it comes from
    :param options: of the optimizer, e.g. ``lr``, ``weight_decay``, ``betas``
    :raises OptimizerError: no such optimizer, its package is missing, or an option does not fit
    """
    chosen = get(name)
    accepted = [
        option.name for option in inspect.signature(chosen).parameters.values()
        if option.name != "params" and option.kind is not inspect.Parameter.VAR_KEYWORD
    ]  # fmt: skip
    wrong = sorted(set(options) - set(accepted))
    if wrong:
        raise OptimizerError(f"Optimizer {name!r} takes no {', '.join(wrong)}; it takes: {', '.join(accepted)}.")
    if isinstance(parameters, torch.nn.Module):
        parameters = split_parameters(parameters) if str(name).lower() == "lamb" else parameters.parameters()
    try:
        return chosen(parameters, **options)
    except (TypeError, ValueError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise OptimizerError(f"Optimizer {name!r} refused its options ({shown}): {error}") from error


def _of_torch() -> dict[str, Any]:
    return {
        attribute.lower(): value for attribute, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and attribute not in _LEFT_OUT
    }  # fmt: skip


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
