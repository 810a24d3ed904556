"""Error file with the reason why this rank failed, for the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

#: The middle of a longer text is cut.
LIMIT_CHARACTERS = 64 * 1024

_state: dict[str, Any] = {"installed": False, "failed": False}
#: Functions that add a sentence to the message of an error, empty for an error of another kind.
_explainers: list[Callable[[BaseException], str]] = []
#: Identity of the error that was recorded last, and its message.
_latest: list[Any] = [0, ""]


def install(path: Path | None, rank: int) -> None:
    """Write an uncaught exception to ``path`` before the interpreter shows it.

    :param path: ``TORCHELASTIC_ERROR_FILE``; None writes nothing
    """
    _state.update(path=path, rank=rank)
    if _state["installed"]:
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record(error)
        before(kind, error, trace)

    sys.excepthook = hook
    _state["installed"] = True


def explain_by(explainer: Callable[[BaseException], str]) -> None:
    """Add a function that adds a sentence to the messages of errors, in place of the one before."""
    _explainers[:] = [explainer]


def failed() -> bool:
    """Return whether an exception of this process was recorded."""
    return bool(_state["failed"])


def record(error: BaseException) -> None:
    """Write the error file: message and traceback, in the format of torchrun.

    Nothing is raised, because a full disk must not hide the exception itself.
    """
    _state["failed"] = True
    message = _message(error)
    path = _state.get("path")
    if path is None:
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    document = {
        "message": _shorten(message),
        "traceback": _shorten(text),
        "timestamp": str(int(time.time())),
        "rank": _state.get("rank", 0),
    }
    with contextlib.suppress(OSError):
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(path)


def _message(error: BaseException) -> str:
    """Return the message of an error, which is recorded again on its way out of the program."""
    if _latest[0] != id(error):
        _latest[:] = [id(error), f"{type(error).__name__}: {error}"]
        for explainer in _explainers:
            with contextlib.suppress(Exception):
                _latest[1] = f"{_latest[1]} {explainer(error)}".rstrip()
    return str(_latest[1])


def _shorten(text: str) -> str:
    if len(text) <= LIMIT_CHARACTERS:
        return text
    half = LIMIT_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
