"""Provenance of attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Parts that the ranks of an attempt were made of."""

    #: ``path`` and ``digest``; None: the ranks use the packages of an interpreter.
    lock: Mapping[str, Any] | None
    #: Host -> ``devices``, ``driver``, ``image``, ``python``, ``executable``, ``cuda``, and ``packages``, a digest.
    hosts: Mapping[str, Mapping[str, Any]]
