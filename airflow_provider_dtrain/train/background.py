"""Work behind the back of the training loop: one piece at a time, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

#: A wait longer than this is said, once per process, seconds.
LONG_WAIT_S = 1.0


class Background:
    """At most one piece of work, which the end of the interpreter waits for."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._said = False

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Begin a piece of work and return; the one before must have been waited for.

        :param name: of the thread
        """
        if self._thread is not None:
            raise RuntimeError("wait() comes before start()")
        # Not a daemon: the interpreter joins it before the exit handlers run.
        self._thread = threading.Thread(target=self._run, args=(work,), name=name)
        self._thread.start()

    def wait(self) -> None:
        """Return when the work is done; raise what it raised, once."""
        thread, started = self._thread, time.monotonic()
        if thread is not None:
            thread.join()
            self._thread = None
            self._say(time.monotonic() - started)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def _say(self, waited_s: float) -> None:
        if waited_s > LONG_WAIT_S and not self._said:
            self._said = True
            log.warning(
                "Training waited %.1f s for the checkpoint before to be on the disk: storage is slower than "
                "checkpoints are taken. Save less often, or to a faster disk.", waited_s,
            )  # fmt: skip
