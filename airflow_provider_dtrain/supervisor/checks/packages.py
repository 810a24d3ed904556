"""Packages of an interpreter, read from the names of their folders. Nothing of them is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ..file_access import names_in, read_text
from ..names import Json

#: Most packages that are listed, and most characters of a name or a version.
_PACKAGES_MOST, _CHARS_MOST = 4000, 128
_EGG_PYTHON = re.compile(r"-py\d+(\.\d+)*(-[\w.]+)?\Z")
#: Line of ``torch/version.py``.
_CUDA = re.compile(r"^cuda\s*(?::[^=\n]*)?=\s*(?:None|['\"]([\w.]{1,32})['\"])\s*$", re.MULTILINE)
#: Metadata with which PyTorch finds the hook of the training library.
_OWN = frozenset({"dtrain-rendezvous"})


def packages_in(folders: Iterable[str]) -> Json:
    """Return the packages below the folders that an interpreter imports from.

    ``packages``: name -> version, None if the folder of the package does not name it. As for the interpreter, the first
    of several packages of one name counts. ``cuda``: version for which PyTorch was built, ``none`` for a build without
    CUDA, None if it is not known.
    """
    packages: dict[str, str | None] = {}
    cuda = None
    for folder in dict.fromkeys(folders):
        for entry in sorted(names_in(folder)):
            name, version = _named(entry)
            if name and name not in packages and name not in _OWN and len(packages) < _PACKAGES_MOST:
                packages[name] = version
        if cuda is None:
            cuda = _cuda_of(os.path.join(folder, "torch", "version.py"))
    return {"packages": packages, "cuda": cuda}


def _named(entry: str) -> tuple[str, str | None]:
    """Return normalized name and version of the package whose metadata has this name in a folder."""
    stem, _, kind = entry.rpartition(".")
    if kind not in ("dist-info", "egg-info") or stem.startswith("~"):
        return "", None
    stem = _EGG_PYTHON.sub("", stem) if kind == "egg-info" else stem
    name, _, version = stem.rpartition("-") if "-" in stem else (stem, "", "")
    if len(name) > _CHARS_MOST or len(version) > _CHARS_MOST:
        return "", None
    return re.sub(r"[-_.]+", "-", name).lower(), version or None


def _cuda_of(path: str) -> str | None:
    found = _CUDA.search(read_text(path) or "")
    return None if found is None else found[1] or "none"
