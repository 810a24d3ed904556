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
    """Adapter that puts a trial's name before each line, for a log that is not the trial's own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line with the name."""
        return f"Trial {(self.extra or {})['trial_id']}: {msg}", kwargs


class TaskLog:
    """Log for events of the engine, with the settings for rank 0's lines.

    :param logger: the operator's or the trigger's logger
    :param rate_bytes_per_s: most bytes of rank 0's log per second; None: this log gets none of it
    :param file: key of this file of the task log; None = Airflow appends to the file
    """

    def __init__(
        self, logger: logging.Logger | Any, rate_bytes_per_s: int | None, *, file: Hashable | None = None
    ) -> None:
        self.debug, self.info, self.warning, self.error = logger.debug, logger.info, logger.warning, logger.error
        self.rate_bytes_per_s, self.file = rate_bytes_per_s, file


class _Files:
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

    def forget(self, file: Hashable | None) -> None:
        """Forget a file that is complete."""
        self._shown.pop(file, None)


FILES = _Files()
