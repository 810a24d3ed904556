"""Decisions of the searcher: rank 0 asks in its events file, and a file in the run's folder holds the answers."""

from __future__ import annotations

import bisect
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.process.heartbeat import DECISION, HERE
from airflow_provider_dtrain.train.reports.events import EventWriter

log = logging.getLogger(__name__)

#: File in the run's folder: number of a rung -> decision.
FILE = "decisions.json"
CONTINUE, ENDS = "continue", ("stop", "complete")
#: First and longest pause between two polls for an answer, seconds.
FIRST_POLL_S, POLL_S = 0.002, 0.05
DEFAULT_TIMEOUT_S = 30.0


class RungQuestions:
    """Questions of rank 0 to the searcher, and the answers. The other ranks never ask.

    :param units: length of each rung, ascending; empty without a searcher that decides
    :param folder: folder of the run on this host; None off-cluster, where no process answers
    :param timeout_s: longest time that the ranks wait for an open question, once, seconds. A later answer counts too
    """

    def __init__(
        self, units: Sequence[int], writer: EventWriter, folder: Path | None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        #: Lengths at which rank 0 asks.
        self.units: tuple[int, ...] = tuple(units) if folder is not None else ()
        self._writer = writer
        self._timeout_s = timeout_s
        self._path = folder / FILE if folder is not None else Path(FILE)
        self._asked = -1
        self._is_open = False
        self._has_waited = False
        #: The searcher has ended the trial.
        self.ended = False

    def reach(self, units: int, metric: Any, step: int) -> None:
        """Ask about the highest rung that a validation has reached, unless this process has already asked about it.

        The question is on disk when the call returns, so that only the loss of the disk can lose it.

        :param units: length that the trial has trained
        :param metric: value of the searcher's metric; None if it is not finite
        """
        rung = bisect.bisect_right(self.units, units) - 1
        if rung <= self._asked:
            return
        self._asked = rung
        self._is_open = True
        self._has_waited = False
        self._writer.write("rung", {"rung": rung, "units": units, "metric": metric, "step": step}, sync=True)

    def settle(self) -> None:
        """Stop waiting for the open question, because training ends here with any answer."""
        self._has_waited = True

    def poll(self, gives_up: Callable[[], bool] = bool) -> bool:
        """Return whether the searcher has ended the trial, as far as this rank knows. Wait once for an open question.

        :param gives_up: returns True when waiting is pointless
        """
        if not self._is_open:
            return self.ended
        if not self._read() and not self._has_waited:
            self._has_waited = True
            with HERE.at(DECISION):
                self._wait(gives_up)
        return self.ended

    def _wait(self, gives_up: Callable[[], bool]) -> None:
        until = time.monotonic() + self._timeout_s
        pause_s = FIRST_POLL_S
        while time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
            if self._read() or gives_up():
                return
        log.warning(
            "The searcher has not answered about rung %d within %g s. Training continues, and the answer counts when "
            "it comes.",
            self._asked,
            self._timeout_s,
        )

    def _read(self) -> bool:
        """Return whether the open question now has an answer."""
        try:
            answers = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return False
        if not isinstance(answers, dict):
            return False
        # The searcher may have ended the trial at a rung below the one that rank 0 asked about.
        self.ended = any(answers.get(str(rung)) in ENDS for rung in range(self._asked + 1))
        self._is_open = not (self.ended or answers.get(str(self._asked)) == CONTINUE)
        return not self._is_open
