"""Errors of a Python traceback. Frames of the user's own code are apart from those of libraries. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.lifecycle.stack_text import CodeFrame, short_file

#: Most errors of a chain, and most frames of an error.
MOST_ERRORS: Final = 8
MOST_FRAMES: Final = 50
#: Most characters of a message, and of a line of code.
_TEXT_CHARS = 2000
_CODE_CHARS = 300

_BEGIN = "Traceback (most recent call last)"
#: The last frame of a SyntaxError names no function.
_FRAME = re.compile(r'^  File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<name>.{1,200}))?$')
_CHAINED = re.compile(
    r"^(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):$",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class SourceFrame:
    """Frame of a traceback in the user's own code."""

    #: Relative to the folder of the code where that is known.
    file: str
    line: int
    #: Empty for the body of a module.
    function: str
    #: The line of code; empty if the traceback has none.
    code: str


@dataclass(frozen=True, kw_only=True)
class RaisedError:
    """Error of a traceback."""

    #: Type and message.
    text: str
    #: Frames of the user's own code, the innermost one first.
    frames: list[SourceFrame]
    #: Further frames, which are those of libraries.
    library_frames: int


def raised_errors(text: str) -> list[RaisedError]:
    """Return the errors of the tracebacks in a text, the one that ended the program first.

    :param text: traceback as Python prints it, after other lines
    """
    begin = text.find(_BEGIN)
    if begin < 0:
        return []
    parts = [part for part in _CHAINED.split(text[begin:]) if _BEGIN in part]
    found = [_error(part.partition(_BEGIN)[2].splitlines()[1:]) for part in parts]
    return [one for one in reversed(found) if one.text][:MOST_ERRORS]


def _error(lines: Sequence[str]) -> RaisedError:
    frames: list[tuple[CodeFrame, str]] = []
    message: list[str] = []
    for line in lines:
        found = _FRAME.match(line) if not message else None
        if found is not None:
            frames.append((CodeFrame(found["file"], int(found["line"]), (found["name"] or "").strip()), ""))
        elif message or line[:1].strip():
            message.append(line)
        elif frames and not frames[-1][1] and line.startswith("    "):
            frames[-1] = frames[-1][0], line.strip()[:_CODE_CHARS]
    own = [_source(frame, code) for frame, code in reversed(frames) if frame.is_of_user]
    return RaisedError(
        text="\n".join(message).strip()[:_TEXT_CHARS],
        frames=own[:MOST_FRAMES],
        library_frames=len(frames) - len(own),
    )


def _source(frame: CodeFrame, code: str) -> SourceFrame:
    function = "" if frame.name == "<module>" else frame.name
    return SourceFrame(file=short_file(frame.file), line=frame.line, function=function, code=code)
