"""Places in Python's tracebacks and stacks: the line of the user's program at which a rank was. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from airflow_provider_dtrain.core.lifecycle.rank_text import ranks_text

#: Most places that a message names.
MOST_PLACES = 8

#: Frame of a traceback, or of a stack that faulthandler wrote, which has no comma.
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9}),? in (?P<name>.{1,200})$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
#: Code that is not the user's: libraries, Python itself, this library, frozen modules.
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|/airflow_provider_dtrain/|^<")
#: Folder of a run in which the user's code is.
_WORK = re.compile(r"^.*/runs/[^/]+/work/")


class CodeFrame(NamedTuple):
    """Frame of a stack."""

    file: str
    line: int
    name: str

    @property
    def is_of_user(self) -> bool:
        """True for a frame in the user's own code."""
        return _LIBRARY.search(self.file) is None

    @property
    def text(self) -> str:
        """File, line and function in words."""
        return f"{short_file(self.file)}:{self.line}" + ("" if self.name == "<module>" else f" in {self.name}")


def short_file(file: str) -> str:
    """Return the path of a file, relative to the folder of the user's code if it is in there."""
    return _WORK.sub("", file)


def _frame(found: re.Match[str]) -> CodeFrame:
    return CodeFrame(found["file"], int(found["line"]), found["name"].strip())


def frames_of_traceback(text: str) -> list[CodeFrame]:
    """Return the frames of the last traceback in a text, outermost first."""
    last = text.rpartition("Traceback (most recent call last)")[2]
    return [_frame(found) for found in _FRAME.finditer(last)]


def frames_of_stack(text: str) -> list[CodeFrame]:
    """Return the frames of the main thread in the output of faulthandler, outermost first.

    The main thread is the last one, because the other ones were started later.
    """
    return _frames(_THREAD.split(text)[-1])


def frames_of_crash(text: str) -> list[CodeFrame]:
    """Return the frames of the thread that crashed, as faulthandler wrote them into a log, outermost first."""
    found = re.search(r"^Current thread 0x[0-9a-f]+.*$", text, re.MULTILINE)
    return _frames(_THREAD.split(text[found.end() :])[0]) if found else []


def _frames(text: str) -> list[CodeFrame]:
    """Return the frames of one thread. Faulthandler writes the innermost one first, and a crash adds further lines."""
    return [_frame(found) for found in _FRAME.finditer(text)][::-1]


def place_text(frames: Sequence[CodeFrame]) -> str:
    """Return the innermost place in the user's code, else the innermost place, else an empty text.

    :param frames: outermost first
    """
    own = [frame for frame in frames if frame.is_of_user]
    chosen = own or list(frames)
    return chosen[-1].text if chosen else ""


def waiting_frame(stack: str) -> str:
    """Return where the main thread of a rank was by the output of faulthandler, empty without one."""
    return place_text(frames_of_stack(stack))


def places_of_ranks(stacks: Mapping[int, str]) -> str:
    """Return where the main threads of ranks are, those at the same place together. Empty without a stack.

    :param stacks: rank -> output of faulthandler
    """
    places: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        if place := waiting_frame(stack):
            places.setdefault(place, []).append(rank)
    parts = [f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} at {place}" for place, ranks in places.items()]
    return "; ".join(parts[:MOST_PLACES])
