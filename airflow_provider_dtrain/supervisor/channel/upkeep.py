"""Upkeep of runs whose supervisor is dead, in threads."""

from __future__ import annotations

from collections.abc import Callable

from ..files.layout import RunFolder
from ..names import Json
from ..refusal import Refused, refuse_os_error
from ..run.fencing import recover, restore_end


class Upkeep:
    """Upkeep of the runs of a host, by one channel.

    :param start_thread: starts work in a thread, or raises :class:`Refused`
    """

    def __init__(self, start_thread: Callable[[Callable[[], Json]], None]) -> None:
        self._start_thread = start_thread
        #: Names of the runs for which a task is running.
        self.recovering: set[str] = set()
        #: Run -> why its end could not be recorded.
        self.failures: dict[str, str] = {}

    def recover(self, folder: RunFolder) -> None:
        """Recover a run whose supervisor is dead, in a thread."""
        if not folder.ended() and folder.has("started"):
            self._do(folder, recover)

    def restore_end(self, folder: RunFolder) -> None:
        """Restore the ``ended`` event of a run whose file lost it after the end, in a thread."""
        self._do(folder, restore_end)

    def _do(self, folder: RunFolder, task: Callable[[RunFolder], object]) -> None:
        """Do a task for a run in a thread, one task at a time for each run."""
        if folder.name in self.recovering:
            return

        def work() -> Json:
            try:
                task(folder)
                self.failures.pop(folder.name, None)
            except OSError as error:
                self.failures[folder.name] = refuse_os_error(error).message
            finally:
                self.recovering.discard(folder.name)
            return {}

        # Before the thread exists, because a quick one removes the name at once.
        self.recovering.add(folder.name)
        try:
            self._start_thread(work)
        except Refused:
            self.recovering.discard(folder.name)
