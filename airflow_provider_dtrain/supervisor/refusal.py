"""Refusals of commands, with a code for the control side."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from .names import Json


class Refused(Exception):
    """A refused command.

    :param code: machine-readable reason that the control side decides by
    :param message: fact, limit, next step
    :param details: more fields of the answer
    """

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def answer(self) -> Json:
        """Return the refusal as an answer frame."""
        return {"ok": False, "code": self.code, "message": self.message, **self.details}


def refuse_os_error(error: OSError) -> Refused:
    """Return the refusal for a failed system call. Full and read-only disks have their own codes."""
    where = error.filename if isinstance(error.filename, str) else "a file"
    message = f"{error.strerror or error} ({where})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused("disk_full", f"No space left: {message}. Free space there, or choose another folder.")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Refused("read_only", f"Not writable: {message}. Remount it, change its owner, or choose another folder.")
    return Refused("os_error", message)


def refusal_of(error: BaseException) -> Refused:
    """Return the refusal for any error. An unexpected error keeps its last frame for debugging."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, OSError):
        return refuse_os_error(error)
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" (line {place[0].lineno} of the supervisor's {os.path.basename(place[0].filename)})" if place else ""
    return Refused("internal", f"{type(error).__name__}: {error}{at}")


def print_traceback() -> None:
    """Write the error that is being handled to standard error."""
    # Each channel imports this module, and only errors need that one, whose import takes 2 ms.
    import traceback

    traceback.print_exc()
    sys.stderr.flush()


def fenced_refusal(run: str) -> Refused:
    """Return the refusal for a run that has a tombstone."""
    return Refused("tombstone", f"Run {run} was stopped or fenced on this host and never starts again.")
