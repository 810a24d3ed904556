"""Imports of Determined's names: modules that have another name here, and remedies for all that is not offered."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from airflow_provider_dtrain.train.errors import NotOfferedNameError
from airflow_provider_dtrain.train.foreign_names.determined import MODULES, PACKAGE, remedy

#: Packages here -> name that they have in Determined.
_ROOTS = {f"{PACKAGE}.": "determined.", "airflow_provider_dtrain.train.pytorch.": "determined.pytorch."}


class _Alias(Loader):
    """Loads a module under a second name."""

    def __init__(self, actual: str) -> None:
        self._actual = actual

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._actual)


class DeterminedFinder(MetaPathFinder):
    """Finds modules under their names in Determined, after all other finders have found nothing.

    :raises NotOfferedNameError: Determined has the module, and it is not offered here
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module of that name here, or None for a name that Determined lacks as well."""
        if fullname == "determined":
            raise NotOfferedNameError(
                "Determined is not installed here. Change 'import determined as det' to 'from "
                "airflow_provider_dtrain.train import determined as det', see docs/training/core-api.md."
            )
        root = next((root for root in _ROOTS if fullname.startswith(root)), None)
        if root is None:
            return None
        name = _ROOTS[root] + fullname[len(root) :]
        if name in MODULES:
            return ModuleSpec(fullname, _Alias(MODULES[name]))
        _refuse(name)
        return None


def install() -> None:
    """Add the finder to those of this process, once and as the last one."""
    if not any(isinstance(finder, DeterminedFinder) for finder in sys.meta_path):
        sys.meta_path.append(DeterminedFinder())


def attribute(module: str, name: str) -> Any:
    """Return a submodule as an attribute of its module.

    :param module: name in Determined, e.g. ``determined.pytorch``
    :raises NotOfferedNameError: Determined has the name, and it is not offered here
    :raises AttributeError: Determined lacks the name as well
    """
    full = f"{module}.{name}"
    if full in MODULES:
        return importlib.import_module(MODULES[full])
    _refuse(full)
    raise AttributeError(f"module {MODULES[module]!r} has no attribute {name!r}")


def _refuse(name: str) -> None:
    instead = remedy(name)
    if instead is not None:
        raise NotOfferedNameError(f"{name} is not offered. {instead}")
