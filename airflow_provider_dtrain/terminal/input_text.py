"""Texts that a user names: a file, or standard input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_dtrain.core.regular_files import read_regular
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Largest text, as every reader of configurations accepts it.
MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class InputText:
    """A text as the user gave it."""

    #: For messages: the path, or ``standard input``.
    name: str
    #: Base folder of relative paths in the text.
    folder: Path
    text: str


def read_input(path: str, *, what: str) -> InputText:
    """Return the text of a file, or of standard input for ``-``.

    :param what: kind of file, for messages
    :raises ConfigError: it cannot be read, is too large, or is not UTF-8
    """
    name, folder = ("standard input", Path.cwd()) if path == "-" else (path, Path(path).absolute().parent)
    data = _bytes(path, what)
    if len(data) > MOST_BYTES:
        raise _refusal(f"larger than {MOST_BYTES} bytes (1 MiB), the most that is accepted", name)
    try:
        return InputText(name=name, folder=folder, text=data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _refusal(f"not UTF-8: {error.reason} at byte {error.start}", name) from None


def _bytes(path: str, what: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        return read_regular(path, limit_bytes=MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refusal(f"the {what} cannot be read: {reason}. Name a file, or - for standard input", path) from None


def _refusal(message: str, source: str) -> ConfigError:
    return ConfigError([Problem(path="", message=message)], source=source)
