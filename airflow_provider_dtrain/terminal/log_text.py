"""Logs of ranks on standard output."""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from typing import Final

from airflow_provider_dtrain.core.control_characters import CONTROLS, visible
from airflow_provider_dtrain.terminal.safe_streams import unescaped

#: Colors and carriage returns stay: programs print progress bars with them. Everything else that a terminal obeys is
#: escaped, because a host could control the terminal by it.
_ESCAPED: Final = re.compile(rf"\x1b(?!\[[0-9;]{{0,40}}m)|(?![\r\x1b])[{CONTROLS}]")
#: The beginning of a color at the end of a piece.
_UNFINISHED: Final = re.compile(r"\x1b(\[[0-9;]{0,40})?\Z")


class LogWriter:
    """Writes the log of a rank to standard output as it comes.

    A regular file gets the bytes of the log. A terminal or another program gets text without control sequences, except
    colors and carriage returns.

    :param prefix: of each line
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix.encode()
        self.is_exact = _is_regular_file()
        self._line = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._text = ""

    def write(self, data: bytes) -> None:
        """Write the next bytes. With a prefix, a line is written once it is complete."""
        if self.prefix:
            *lines, self._line = (self._line + data).split(b"\n")
            data = b"".join(self.prefix + line + b"\n" for line in lines)
        self._put(data, is_end=False)

    def end(self) -> None:
        """Write the rest, and end a line that has a prefix."""
        last, self._line = self._line, b""
        self._put(self.prefix + last + b"\n" if last else b"", is_end=True)

    def _put(self, data: bytes, *, is_end: bool) -> None:
        sys.stdout.flush()
        out = unescaped(sys.stdout)
        if self.is_exact:
            out.buffer.write(data)
        else:
            # A character or a color may be divided between two pieces.
            text = self._text + self._decoder.decode(data, is_end)
            rest = None if is_end else _UNFINISHED.search(text)
            self._text = rest[0] if rest else ""
            out.write(_ESCAPED.sub(visible, text[: rest.start()] if rest else text))
        out.flush()


def _is_regular_file() -> bool:
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        # A stream of a notebook or of a test has no descriptor.
        return False
