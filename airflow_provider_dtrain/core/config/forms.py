"""Forms in which users and tasks pass a configuration: a path, YAML text, a map, or a rendered configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Longest text that is treated as a path.
MAX_PATH_CHARS: Final = 1024


def is_rendered(config: str | Mapping[str, Any]) -> bool:
    """Return whether a configuration is the result of a ``RenderConfigOperator``."""
    return isinstance(config, Mapping) and set(config) == {"config_id", "digest"}


def is_path_like(value: str) -> bool:
    """Return whether a text names a file rather than being YAML itself."""
    return len(value) <= MAX_PATH_CHARS and "\n" not in value and value.endswith((".yaml", ".yml"))
