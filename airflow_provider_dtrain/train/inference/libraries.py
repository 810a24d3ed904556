"""Libraries of batch inference that not every host has: pyarrow and Pillow."""

from __future__ import annotations

import importlib
from types import ModuleType

from airflow_provider_dtrain.train.errors import SetupError

#: Module -> its distribution on the package index.
DISTRIBUTIONS = {"pyarrow": "pyarrow", "PIL.Image": "pillow"}


def require(module: str, purpose: str) -> ModuleType:
    """Import a library.

    :param purpose: subject of the message, e.g. ``Reading Parquet``
    :raises SetupError: it is not installed; the message has the command that installs it
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = DISTRIBUTIONS[module]
        raise SetupError(
            f"{purpose} needs {name}, which is not installed ({error}). "
            f"Install it where the ranks run: python -m pip install {name}"
        ) from error
