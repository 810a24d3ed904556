"""Inline metadata of a script: the packages that it needs, in a comment at its start."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

#: Source: the reference implementation of the specification of inline script metadata (PEP 723).
_BLOCK: Final = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


def read_metadata(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the table of a script's inline metadata, and its problems."""
    found = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if len(found) != 1:
        many = "no inline metadata (# /// script)" if not found else "two blocks of inline metadata"
        return {}, [f"has {many}"]
    lines = found[0]["content"].splitlines()
    content = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        return tomllib.loads(content), []
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return {}, [f"has inline metadata that is not TOML: {error}"]
