"""Standard streams that print no control characters: texts of hosts, servers and users cannot control a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from airflow_provider_dtrain.core.control_characters import escaped


class SafeStream:
    """A text stream whose control characters become visible before they reach the stream below.

    It has no ``buffer``, which would be a way around it.
    """

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream below."""
        if name in ("buffer", "detach"):
            raise AttributeError(f"a stream without control characters has no {name}")
        return getattr(self.below, name)

    def write(self, text: str, /) -> int:
        """Write a text, and return its length."""
        self.below.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)


def prepare_streams() -> None:
    """Print no control characters from now on, and let no text fail because the encoding of a stream lacks a character.

    Handlers of Python's logging that write to a standard stream write to its replacement.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, SafeStream):
            continue
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        safe = SafeStream(stream)
        setattr(sys, name, safe)
        # ``dtrain`` does without the module, whose import takes 5 ms.
        logging = sys.modules.get("logging")
        for handler in () if logging is None else logging.getLogger().handlers:
            if getattr(handler, "stream", None) is stream:
                handler.setStream(safe)


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream that passes control characters on: for views that move the cursor, and for logs."""
    return stream.below if isinstance(stream, SafeStream) else stream
