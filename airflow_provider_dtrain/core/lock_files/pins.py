"""Pinned packages, as a lock file names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

#: ``algorithm:hex``, as pip and uv write it.
HASH: Final = re.compile(r"(sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})\Z", re.ASCII)
#: Variables of the markers of dependencies, e.g. ``python_version`` and ``sys_platform``.
Markers = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package in one version."""

    #: Normalized, as in the names of wheels but with hyphens.
    name: str
    version: str
    #: Of its files, any of which may be installed.
    hashes: tuple[str, ...] = ()
    #: Names of its files -> hash, where the lock file has them.
    files: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class LockFile(Protocol):
    """Packages that a lock file pins."""

    #: Specifier of the Python versions that it is for, None for any.
    python: str | None

    def pins(self, markers: Markers | None) -> Sequence[Pin]:
        """Return the packages of a platform, or with None those of all platforms."""
        ...
