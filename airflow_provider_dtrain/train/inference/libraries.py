"""Libraries of batch inference that not every host has: pyarrow and Pillow."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError

#: Module -> its distribution on the package index.
DISTRIBUTIONS = {"pyarrow": "pyarrow", "PIL.Image": "pillow"}


def require(module: str, purpose: str) -> ModuleType:
    """Import a library, with everything that it would import later, when several threads use it.

    Two threads that import libraries with cycles may get modules that are not complete.

    :param purpose: subject of the message, e.g. ``Reading Parquet``
    :raises SetupError: it is not installed; the message has the command that installs it
    """
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        name = DISTRIBUTIONS[module]
        raise SetupError(
            f"{purpose} needs {name}, which is not installed ({error}). "
            f"Install it where the ranks run: python -m pip install {name}"
        ) from error
    _COMPLETIONS[module](found)
    return found


def _complete_pyarrow(pa: Any) -> None:
    importlib.import_module("pyarrow.compute")
    # The first list imports pandas if it is installed, and the first time with a zone the modules of time zones.
    pa.array([0], pa.timestamp("us", "UTC")).to_pylist()


def _complete_pillow(image: Any) -> None:
    importlib.import_module("PIL.ImageOps")
    image.init()


_COMPLETIONS = {"pyarrow": _complete_pyarrow, "PIL.Image": _complete_pillow}
