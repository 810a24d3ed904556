"""Patience of commands that follow something: a server that restarts, a line that drops, a login that expires."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_dtrain.client.failures import AwayError
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.safe_repr import as_sentence
from airflow_provider_dtrain.errors import LoginError

Result = TypeVar("Result")

#: First and longest pause between two tries.
FIRST_S, LONGEST_S = 1.0, 15.0


class Patience:
    """Repeats reads until the server answers. Two messages frame each interruption.

    :param notify: prints a message
    :param sleep: waits
    """

    def __init__(
        self, session: Session, notify: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.session = session
        self.notify = notify
        self.sleep = sleep
        self._draw = random.Random()  # noqa: S311 - spreads requests

    def of(self, read: Callable[[], Result]) -> Result:
        """Return the result of a read, however long it takes until the server answers.

        :raises LoginError: the token expired, and no login on this machine can replace it
        """
        pause_s, waits_for = FIRST_S, ""
        while True:
            try:
                found = read()
            except AwayError as error:
                words = f"{as_sentence(error)} Trying again until it answers; Ctrl-C ends this."
                waits_for = self._once(waits_for, "server", words)
            except LoginError:
                if not self.session.is_renewable:
                    raise
                words = "The login has expired. In another terminal, run: dtrain login. This command then continues."
                waits_for = self._once(waits_for, "login", words)
            else:
                if waits_for:
                    self.notify(f"{self.session.server.url} answers again.")
                return found
            # Many followers of one server do not return at the same moment.
            self.sleep(pause_s * self._draw.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, LONGEST_S)

    def _once(self, before: str, now: str, words: str) -> str:
        if before != now:
            self.notify(words)
        return now
