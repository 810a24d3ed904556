"""The log of a trial's task: events of the engine, and rank 0's own lines by :mod:`.rank_log`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.rank_log import Shown

#: Files of task logs that one process remembers.
MOST_FILES = 4096


class OfTrial(logging.LoggerAdapter[logging.Logger]):
    """Puts a trial's name before each line, for a log that is not the trial's own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line with the name."""
        return f"Trial {(self.extra or {})['trial_id']}: {msg}", kwargs


class TaskLog:
    """Writes events of the engine to one logger, and says how rank 0's lines are written to it.

    :param logger: the operator's or the trigger's logger
    :param rate_bytes_per_s: most bytes of rank 0's log per second; None: this log gets none of it
    :param file: what tells this file of the task log from others; None = Airflow appends to it
    """

    def __init__(
        self, logger: logging.Logger | Any, rate_bytes_per_s: int | None, *, file: Hashable | None = None
    ) -> None:
        self.debug, self.info, self.warning, self.error = logger.debug, logger.info, logger.warning, logger.error
        self.rate_bytes_per_s, self.file = rate_bytes_per_s, file


class _Files:
    """Record of what this process has handed to each file of a task log.

    Airflow opens a trigger's file anew when the trigger returns to the same triggerer: what it showed is gone.
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[Hashable, list[Shown]] = OrderedDict()

    def reopened(self, file: Hashable | None) -> list[Shown]:
        """Return what was in a file before Airflow emptied it, and forget it."""
        return [part for part in self._shown.pop(file, []) if part.begin != part.end]

    def note(self, file: Hashable | None, shown: Shown) -> None:
        """Remember that a file shows a part of a log, which may still grow."""
        if file is None:
            return
        self._shown.setdefault(file, []).append(shown)
        while len(self._shown) > MOST_FILES:
            self._shown.popitem(last=False)

    def forget(self, file: Hashable | None) -> None:
        """Forget a file that is complete."""
        self._shown.pop(file, None)


FILES = _Files()
