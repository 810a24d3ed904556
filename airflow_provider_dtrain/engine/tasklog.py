"""Rank 0's log in the task log: whole lines, bounded, free of control characters."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import MutableMapping
from typing import Any

MAX_LINE_CHARS = 8192
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: What torch puts before the lines of a failed rank, and before warnings of its own.
_TORCH_PREFIX = re.compile(r"^\[rank0\]: ?")


def clean(line: str) -> str:
    """Return a line without terminal escapes and control characters; a carriage return keeps its last part."""
    return _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])[:MAX_LINE_CHARS]


class OfTrial(logging.LoggerAdapter[logging.Logger]):
    """Puts a trial's name before each line, for a log that is not the trial's own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line with the name."""
        return f"Trial {(self.extra or {})['trial_id']}: {msg}", kwargs


class TaskLog:
    """Writes events of the engine and lines of rank 0 to one logger.

    :param logger: the operator's or the trigger's logger
    :param rate_bytes_per_s: more than this per second of rank 0's log is left out, and said; None: all of it is
    """

    def __init__(self, logger: logging.Logger | Any, rate_bytes_per_s: int | None) -> None:
        self.debug, self.info, self.warning, self.error = logger.debug, logger.info, logger.warning, logger.error
        self._rate = rate_bytes_per_s
        self._rest = b""
        self._second, self._spent, self._left_out = 0, 0, 0

    def output(self, data: bytes) -> None:
        """Log bytes of rank 0's output, line by line."""
        if self._rate is None:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_CHARS:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._line(line)

    def flush(self) -> None:
        """Log an unfinished last line and what was left out."""
        rest, self._rest = self._rest, b""
        if rest:
            self._line(rest)
        self._say_left_out()

    def _line(self, line: bytes) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._say_left_out()
            self._second, self._spent = second, 0
        if self._rate is not None and self._spent + len(line) > self._rate:
            self._left_out += len(line) + 1
            return
        self._spent += len(line) + 1
        self.info("[rank 0] %s", _TORCH_PREFIX.sub("", clean(line.decode("utf-8", "replace"))))

    def _say_left_out(self) -> None:
        if self._left_out:
            self.warning(
                "%d bytes of rank 0's log left out here (more than %d bytes in a second); "
                "the whole log: airflow dtrain trial logs",
                self._left_out,
                self._rate,
            )
            self._left_out = 0
