"""Checked access to values that arrive from the network."""

from __future__ import annotations

import json
import re
from typing import Any

from .names import ENV_NAME, RUN_NAME, Json
from .refusal import Refused

REQUIRED: Any = object()


class Fields:
    """Typed and bounded access to an object from the network.

    :raises Refused: ``bad_plan``, naming the field
    """

    def __init__(self, values: Any, where: str = "") -> None:
        self.where = where
        if not isinstance(values, dict):
            raise self.bad("", "must be an object")
        self.values: Json = values

    def bad(self, name: str, message: str) -> Refused:
        """Return the refusal for a field."""
        path = ".".join(part for part in (self.where, name) if part) or "message"
        return Refused("bad_plan", f"{path}: {message}", field=path)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is REQUIRED:
            raise self.bad(name, "is missing")
        return value

    def text(
        self, name: str, pattern: re.Pattern[str] | None = None, *, limit: int = 4096, default: Any = REQUIRED
    ) -> Any:
        """Return a string of at most ``limit`` characters without NUL, or None if that is the default."""
        value = self._get(name, default)
        if value is None and default is None:
            return None
        if not isinstance(value, str) or len(value) > limit or "\0" in value:
            raise self.bad(name, f"must be a string of at most {limit} characters, got {shorten(value)}")
        if pattern is not None and not pattern.fullmatch(value):
            raise self.bad(name, f"must match {pattern.pattern}, got {shorten(value)}")
        return value

    def integer(self, name: str, low: int, high: int, *, default: Any = REQUIRED) -> Any:
        """Return a whole number within bounds, or None if that is the default."""
        value = self._get(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(name, f"must be a whole number from {low} to {high}, got {shorten(value)}")
        return value

    def number(self, name: str, low: float, high: float, *, default: Any = REQUIRED) -> Any:
        """Return a number within bounds, or None if that is the default."""
        value = self._get(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.bad(name, f"must be a number from {low:g} to {high:g}, got {shorten(value)}")
        return value

    def flag(self, name: str, *, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.bad(name, f"must be true or false, got {shorten(value)}")
        return value

    def items(self, name: str, *, least: int = 0, limit: int = 4096, default: Any = REQUIRED) -> list[Any]:
        """Return a list with a bounded number of items."""
        value = self._get(name, default)
        if not isinstance(value, list) or not least <= len(value) <= limit:
            raise self.bad(name, f"must be a list of {least} to {limit} items, got {shorten(value)}")
        return value

    def texts(
        self,
        name: str,
        pattern: re.Pattern[str] | None = None,
        *,
        least: int = 0,
        limit: int = 4096,
        length: int = 4096,
        default: Any = REQUIRED,
    ) -> list[str]:
        """Return a list of strings."""
        found = self.items(name, least=least, limit=limit, default=default)
        inner = Fields({str(i): item for i, item in enumerate(found)}, self._path(name))
        return [inner.text(str(i), pattern, limit=length) for i in range(len(found))]

    def inner(self, name: str, *, default: Any = REQUIRED) -> Fields:
        """Return a nested object."""
        return Fields(self._get(name, default), self._path(name))

    def environment(self, name: str) -> dict[str, str]:
        """Return environment variables, {} when absent."""
        inner = self.inner(name, default={})
        if len(inner.values) > 2048:
            raise self.bad(name, "must have at most 2048 variables")
        for key in inner.values:
            if not isinstance(key, str) or not ENV_NAME.fullmatch(key):
                raise self.bad(name, f"must have names of environment variables as keys, got {shorten(key)}")
            inner.text(key, limit=128 << 10)
        return dict(inner.values)

    def port_range(self, name: str) -> tuple[int, int] | None:
        """Return the first and last port, None if any port may be used."""
        if self.values.get(name) is None:
            return None
        pair = self.items(name, least=2, limit=2)
        inner = Fields({"0": pair[0], "1": pair[1]}, self._path(name))
        low = inner.integer("0", 1, 65535)
        return low, inner.integer("1", low, 65535)

    def run(self, name: str = "run") -> str:
        """Return the name of a run, which is safe as the name of a folder."""
        return str(self.text(name, RUN_NAME, limit=64))

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def shorten(value: Any) -> str:
    """Return a value from the network as ASCII text of at most 80 characters, for a message."""
    text = ascii(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def parse_object(line: bytes) -> Json | None:
    """Return the JSON object of a line, None when it is anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def number(value: Any) -> int:
    """Return a recorded integer, -1 for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
