"""An interpreter that finds only what a host has with PyTorch alone: no NumPy, and none of the other packages here."""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import Any

#: Folders of installed packages. The library and a test's own files lie elsewhere.
INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def required_by(name: str) -> set[str]:
    """Return the top-level modules of a distribution and of all that it requires."""
    modules: set[str] = set()
    waiting, seen = [name], set()
    while waiting:
        key = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            found = metadata.distribution(key)
        except metadata.PackageNotFoundError:  # of another platform
            continue
        modules |= {file.parts[0].partition(".")[0] for file in found.files or ()}
        lines = [line for line in found.requires or () if "extra ==" not in line]
        waiting += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines]
    return modules


class _Without:
    """A finder that does not find the other packages."""

    def __init__(self, finder: Any, kept: set[str]) -> None:
        self._finder = finder
        self._kept = kept

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec: ModuleSpec | None = self._finder.find_spec(name, path, target)
        if spec is None or name.partition(".")[0] in self._kept:
            return spec
        places = [spec.origin or "", *(spec.submodule_search_locations or ())]
        return None if any(place.startswith(INSTALLED) for place in places) else spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide_other_packages() -> None:
    """Find no installed package from now on but PyTorch and what it requires. Called before the first of them."""
    kept = required_by("torch")
    sys.meta_path[:] = [_Without(finder, kept) for finder in sys.meta_path]
