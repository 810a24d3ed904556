"""Logs of ranks on a terminal."""

from __future__ import annotations

import re

# Colours stay. All other control sequences are escaped, because a host could control the terminal by them.
_STEERS = re.compile(rb"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]")


def escaped(data: bytes) -> bytes:
    """Return text whose control sequences are visible, except colours."""
    return _STEERS.sub(lambda found: repr(found.group())[2:-1].encode(), data)
