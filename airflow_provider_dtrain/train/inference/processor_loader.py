"""Loader of the processor that a configuration names."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.inference.adapters import OfFunction, OfObject, Processor
from airflow_provider_dtrain.train.inference.processor import BatchProcessor, InferenceContext
from airflow_provider_dtrain.train.process.code_folder import check_is_own


def load(name: str, ctx: InferenceContext, *, needs_data: bool) -> Processor:
    """Return the processor that a configuration names, set up. Called by all ranks.

    :param name: ``module:Name``
    :param needs_data: the input comes from code
    :raises SetupError: there is no such object, or it is no processor
    """
    found = _find(name)
    if isinstance(found, type) and issubclass(found, BatchProcessor):
        return OfObject(found(), ctx, needs_data=needs_data)
    if isinstance(found, type):
        from airflow_provider_dtrain.train.inference.trial_class import OfTrialClass
        from airflow_provider_dtrain.train.trial.base import PyTorchTrial

        if issubclass(found, PyTorchTrial):
            return OfTrialClass(found, ctx, needs_data=needs_data)
    if inspect.isfunction(found):
        return OfFunction(found, ctx)
    raise SetupError(
        f"inference.processor must be a subclass of BatchProcessor or PyTorchTrial, or a function, got {name}, which "
        f"is {found!r}."
    )


def _find(name: str) -> Any:
    where, _, attribute = name.rpartition(":")
    with _named(name, where):
        module = importlib.import_module(where)
    check_is_own(module, where)
    found = getattr(module, attribute, None)
    if found is None:
        raise SetupError(f"{module.__file__ or where} does not define {attribute!r}, which inference.processor names.")
    return found


@contextlib.contextmanager
def _named(name: str, module: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        if not (module + ".").startswith(error.name + "."):
            raise SetupError(
                f"inference.processor is {name}, which imports module {error.name!r}, and that is neither in "
                f"{os.getcwd()} nor installed in {sys.executable}."
            ) from error
        raise SetupError(
            f"inference.processor is {name}, but module {error.name!r} is neither in {os.getcwd()} nor installed."
        ) from error
