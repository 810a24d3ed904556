"""Text and level of the lines of a rank's log, whose bytes may be anything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

#: Colors, cursor movements and titles of a terminal. None of them reaches beyond its line.
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)")
#: Characters at the beginning of a line in which its level is expected.
LEVEL_CHARS: Final = 160
#: Marks of torchrun and torch in front of a line.
_RANK: Final = re.compile(r"^\[(?:rank|default)\d+\]:? ?")
_GLOG: Final = re.compile(r"^\[?([IWEF])\d{4} \d\d:")
_NAME: Final = re.compile(r"\b(?:(DEBUG|TRACE)|(INFO|NOTICE)|(WARN|WARNING)|(ERROR|CRITICAL|FATAL|SEVERE))\b")
_ERROR: Final = re.compile(
    r"^(?:[\w.]+(?:Error|Exception|Interrupt|Exit)(?::|$)|error:|Fatal Python error|Segmentation fault|dtrain: )"
)
_WARNING: Final = re.compile(r"\b\w*Warning: |^warning:", re.ASCII)
_TRACEBACK: Final = "Traceback (most recent call last)"
#: A text without any of these has no error, or no warning, unless it has a line of glog.
_ERROR_PARTS: Final = (
    "ERROR", "CRITICAL", "FATAL", "SEVERE", "Traceback", "rror", "Exception", "Interrupt", "Exit", "Segmentation",
    "dtrain",
)  # fmt: skip
_PARTS: Final = {"error": _ERROR_PARTS, "warning": (*_ERROR_PARTS, "WARN", "arning")}
_GLOG_LETTERS: Final = re.compile(r"[EFW]\d{4} \d")


class LogLevel(StrEnum):
    """Level of a line, from the least important one on."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def weight(self) -> int:
        """Its place in the order."""
        return _ORDER.index(self)


_ORDER: Final = tuple(LogLevel)
_LETTERS: Final = {"I": LogLevel.INFO, "W": LogLevel.WARNING, "E": LogLevel.ERROR, "F": LogLevel.ERROR}


def plain_text(content: bytes) -> str:
    """Return a part of a log without escape sequences. Bytes that are not UTF-8 become U+FFFD."""
    text = content.decode("utf-8", "replace")
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def lines_of(content: bytes) -> list[str]:
    """Return the lines of a part of a log as a terminal would leave them.

    Of a line that was overwritten with carriage returns the last version stays, as do other control characters. There
    is one text for each line of the content.
    """
    lines = plain_text(content).split("\n")
    if not lines[-1] and (content.endswith(b"\n") or not content):
        lines.pop()
    return [_last_version(line) if "\r" in line else line for line in lines]


def _last_version(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def count_lines(content: bytes) -> int:
    """Return the number of texts of :func:`lines_of`. A line without an end counts."""
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def levels_of(lines: Iterable[str]) -> list[LogLevel | None]:
    """Return the level of each line, None for a line that names none. All lines of a traceback are errors."""
    found: list[LogLevel | None] = []
    is_traceback = False
    for line in lines:
        # Most lines have no mark, and a match costs more than this test.
        start = _RANK.sub("", line[:LEVEL_CHARS]) if line.startswith("[") else line[:LEVEL_CHARS]
        if _TRACEBACK in start:
            is_traceback = True
            found.append(LogLevel.ERROR)
        elif is_traceback:
            is_traceback = start[:1] in (" ", "\t", "")
            found.append(LogLevel.ERROR)
        else:
            found.append(_level(start))
    return found


def may_have(text: str, level: LogLevel | None) -> bool:
    """Return False if no line of a text has a level or a more important one. It is faster than to read each line."""
    parts = None if level is None else _PARTS.get(level)
    # A search for several words by one expression takes ten times as long.
    return parts is None or any(part in text for part in parts) or _GLOG_LETTERS.search(text) is not None


def _level(start: str) -> LogLevel | None:
    if match := _GLOG.match(start):
        return _LETTERS[match[1]]
    if match := _NAME.search(start):
        return _ORDER[(match.lastindex or 1) - 1]
    if _ERROR.match(start):
        return LogLevel.ERROR
    return LogLevel.WARNING if _WARNING.search(start) else None
