"""Gaps in the events of an attempt, as the command line and pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Part of a host's file that is not in the store."""

    host: str
    #: File of the host.
    stream: str
    offset: int
    bytes: int
    lines: int
    #: ``anew``: the file began again, and misses no bytes of its own.
    code: str
    #: In words.
    reason: str
    #: By the clock of the host.
    at: datetime


def gap_of(host: str, stream: str, body: Mapping[str, Any], at: datetime) -> Gap:
    """Return the gap in an event."""
    numbers = {name: value if isinstance(value := body.get(name), int) else 0 for name in ("offset", "bytes", "lines")}
    code = str(body.get("code") or "anew")
    return Gap(host=host, stream=stream, **numbers, code=code, reason=str(body.get("reason") or ""), at=at)


def limits_hit(gaps: Sequence[Gap]) -> list[str]:
    """Return a text for each limit that the attempt has hit, with what was left out."""
    return [
        f"{gap.reason} ({gap.lines:,} so far, {gap.stream} of host '{gap.host}')"
        for gap in gaps
        if gap.code.endswith("_limit")
    ]
