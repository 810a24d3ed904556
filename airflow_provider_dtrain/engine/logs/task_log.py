"""The log of a trial's task: events of the engine, and rank 0's own lines by :mod:`.rank_log`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Hashable, MutableMapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.redaction import Redactor

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.buffer import Shown

#: Files of task logs that one process remembers.
MOST_FILES = 4096
#: Seconds between two records of lines about events, and lines of such a record. Airflow needs 2 ms for each record.
EVENTS_EVERY_S, MOST_EVENT_LINES = 1.0, 20
#: Characters of one record. A log tail of a rank fits.
MOST_RECORD_CHARS = 128 * 1024
_COLOR = re.compile(r"\x1b\[[0-9;]{0,40}m")


def printable(text: str) -> str:
    """Return a text without colors and with escaped control characters. Newlines and tabs stay."""
    lines = _COLOR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return escaped(lines)


def section_prefix(trial_id: int | None) -> str:
    """Return the beginning of a trial's lines in a task log that several trials share, else an empty text."""
    return "" if trial_id is None else f"[trial {trial_id}] "


class Housekeeping(logging.LoggerAdapter[logging.Logger]):
    """Adapter for work on hosts and trials that are not those of the log. Only developers read its lines.

    The process of a task works for other trials while it waits, and all that it logs is in the log of its task.
    """

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line with the name of its trial."""
        trial_id = (self.extra or {}).get("trial_id")
        return msg if trial_id is None else f"Trial {trial_id}: {msg}", kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line for developers, whatever its level."""
        super().log(logging.DEBUG, msg, *args, **kwargs)


class TaskLog:
    """Log for events of the engine, with the settings for rank 0's lines.

    Messages may contain text of hosts: every record is printable.

    :param logger: the operator's or the trigger's logger
    :param rate_bytes_per_s: most bytes of rank 0's log per second; None: this log gets none of it
    :param file: key of this file of the task log; None = Airflow appends to the file
    :param section: trial that begins every line, in a task log that several trials share; None = it has one trial
    """

    def __init__(
        self,
        logger: logging.Logger | Any,
        rate_bytes_per_s: int | None,
        *,
        file: Hashable | None = None,
        section: int | None = None,
    ) -> None:
        self._logger = logger
        self._prefix = section_prefix(section)
        #: Mask for the trial's secrets, once its follower knows them.
        self.redactor = Redactor()
        self.rate_bytes_per_s = rate_bytes_per_s
        self.file = file
        #: Lines about events that wait, how many more are left out, and whether one of them is a warning.
        self._lines: list[str] = []
        self._left_out = 0
        self._is_warning = False
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def _record(self, message: str, args: tuple[Any, ...]) -> str:
        """Return the text of a record, of which lines after the first are indented: none looks like a record."""
        text = self.redactor.text(message % args if args else message)
        if len(text) > MOST_RECORD_CHARS:
            text = f"{text[:MOST_RECORD_CHARS]}... ({len(text) - MOST_RECORD_CHARS} characters more)"
        return self.prefixed(printable(text).replace("\n", "\n  "))

    def prefixed(self, text: str) -> str:
        """Return a text with the trial of this log before each line, if several trials share the task log."""
        return self._prefix + text.replace("\n", f"\n{self._prefix}") if self._prefix else text

    def debug(self, message: str, *args: Any) -> None:
        """Log a line for developers."""
        self._logger.debug("%s", self._record(message, args))

    def info(self, message: str, *args: Any) -> None:
        """Log a line, after the lines that wait."""
        self.flush()
        self._logger.info("%s", self._record(message, args))

    def warning(self, message: str, *args: Any) -> None:
        """Log a warning, after the lines that wait."""
        self.flush()
        self._logger.warning("%s", self._record(message, args))

    def error(self, message: str, *args: Any) -> None:
        """Log an error, after the lines that wait."""
        self.flush()
        self._logger.error("%s", self._record(message, args))

    def rank_lines(self, lines: list[str]) -> None:
        """Log lines of a rank, which are printable and have their prefix, as one record."""
        self._logger.info("%s", self.prefixed(self.redactor.text("\n".join(lines))))

    def event(self, message: str, *args: Any, is_warning: bool = False) -> None:
        """Log a line about an event of a host, of which there may be thousands a second.

        Lines that come within a second share a record. Lines beyond the limit are counted.
        """
        if len(self._lines) < MOST_EVENT_LINES:
            self._lines.append(self._record(message, args))
            self._is_warning = self._is_warning or is_warning
        else:
            self._left_out += 1
        wait_s = self._not_before - time.monotonic()
        if wait_s <= 0:
            self.flush()
        elif self._timer is None:
            # Without a loop, the next line logs them.
            with contextlib.suppress(RuntimeError):
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Log the lines about events that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        more = [self.prefixed(f"and {self._left_out} more lines like these")] if self._left_out else []
        write = self._logger.warning if self._is_warning else self._logger.info
        lines = self._lines + more
        self._lines = []
        self._left_out = 0
        self._is_warning = False
        self._not_before = time.monotonic() + EVENTS_EVERY_S
        write("%s", "\n".join(lines))


class _TaskLogFiles:
    """Record of what this process has handed to each file of a task log.

    Airflow empties a trigger's file when the trigger returns to the same triggerer, so its earlier lines are lost.
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[Hashable, list[Shown]] = OrderedDict()

    def reopened(self, file: Hashable | None) -> list[Shown]:
        """Return the parts that a file showed before Airflow emptied it, and forget them."""
        return [part for part in self._shown.pop(file, []) if part.begin != part.end]

    def note(self, file: Hashable | None, shown: Shown) -> None:
        """Remember that a file shows a part of a log, which may still grow."""
        if file is None:
            return
        self._shown.setdefault(file, []).append(shown)
        while len(self._shown) > MOST_FILES:
            self._shown.popitem(last=False)


FILES = _TaskLogFiles()
