"""Templates of configurations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Template:
    """One version of a stored template."""

    name: str
    #: Grows by one with every change, removals included.
    version: int
    #: YAML as the user gave it; empty in the version that records a removal, and in lists.
    text: str
    set_by: str
    set_at: datetime
    removed: bool = False


@dataclass(frozen=True, kw_only=True)
class TemplateList:
    """Templates, or versions of one."""

    rows: list[Template]
