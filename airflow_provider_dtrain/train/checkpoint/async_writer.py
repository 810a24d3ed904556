"""Background work of the training loop: one piece at a time, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

#: A longer wait is logged, once per process, seconds.
LONG_WAIT_S = 1.0


class Background:
    """At most one piece of work at a time. The interpreter waits for it before it exits."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._has_reported = False

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start a piece of work and return. The previous one must have been waited for.

        :param name: name of the thread
        """
        if self._thread is not None:
            raise RuntimeError("start() was called before wait() for the previous work")
        # Not a daemon: the interpreter joins it before the exit handlers run.
        self._thread = threading.Thread(target=self._run, args=(work,), name=name)
        try:
            self._thread.start()
        except RuntimeError:
            # Python starts no thread once its exit handlers run.
            self._thread = None
            self._run(work)

    def wait(self) -> None:
        """Wait until the work is done. Raise its error, once."""
        thread = self._thread
        started = time.monotonic()
        if thread is not None:
            thread.join()
            self._thread = None
            self._report(time.monotonic() - started)
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def _report(self, waited_s: float) -> None:
        if waited_s > LONG_WAIT_S and not self._has_reported:
            self._has_reported = True
            log.warning(
                "Training waited %.1f s until the previous checkpoint was on disk: storage is slower than checkpoints "
                "are taken. Save less often, or to a faster disk.",
                waited_s,
            )
