"""Bounds of numbers, which the client's decoder checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Between:
    """Bounds of a number: ``Annotated[int, Between(0, 10)]``."""

    low: float
    high: float


#: A number of bytes or rows, or an offset.
Count = Annotated[int, Between(0, 2**53)]
#: An id or the number of an attempt.
Id = Annotated[int, Between(1, 2**63 - 1)]
