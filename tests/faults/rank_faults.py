"""Faults of a rank of a batch inference, at a chosen operation on the output folder or at a chosen row.

``DTRAIN_FUZZ_FAULT`` is one of:

- ``kill before 7``, ``kill after 7``: SIGKILL at the rank's seventh operation on the folder
- ``stop before 7``: SIGSTOP instead
- ``full 7``: the rank's seventh sync finds a full disk, and the others do not
- ``die 40 FILE``, ``raise 40 FILE``: once, in the batch of row 40; the file remembers it
- ``poison 40``: each time in the batch of row 40
- ``hold 40 FILE``: waits in the batch of row 40 until the file exists
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.files import local
from airflow_provider_dtrain.train.files.lease import Lease
from airflow_provider_dtrain.train.files.local import LocalPlace
from testbed.standalone import wait_until

#: Changes of the folder, and the sync in the middle of a delivery.
OPERATIONS = ("write", "create", "deliver", "rename", "remove")
#: Interval of the owner's counter in fuzz runs, seconds. A dead owner is replaced after six of them.
BEAT_S = 0.5


def faults() -> list[list[str]]:
    """Return the words of this rank's faults."""
    return [one.split() for one in os.environ.get("DTRAIN_FUZZ_FAULT", "").split(";") if one]


def arm() -> None:
    """Prepare this rank's faults. Its script calls it before the program."""
    Lease.__init__.__kwdefaults__.update(beat_s=BEAT_S, settle_s=0.2)
    for words in faults():
        if words[0] in ("kill", "stop", "full"):
            _Counter(words).install()


class _Counter:
    """Counts the operations of all threads, and acts at one of them."""

    def __init__(self, words: list[str]) -> None:
        self._kind, self._when, self._at = words[0], words[1], int(words[-1])
        self._number = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        for name in () if self._kind == "full" else OPERATIONS:
            setattr(LocalPlace, name, self._counted(getattr(LocalPlace, name)))
        local.sync = self._counted(local.sync)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._number += 1
                is_it = self._number == self._at
            if is_it and self._kind == "full":
                raise OSError(errno.ENOSPC, "No space left on device")
            if is_it and self._when == "before":
                self._act()
            found = function(*arguments, **options)
            if is_it and self._when == "after":
                self._act()
            return found

        return counted

    def _act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL if self._kind == "kill" else signal.SIGSTOP)


def at_rows(ids: Collection[int]) -> None:
    """Inject the faults of a batch. The processor calls it.

    :raises ValueError: the fault is an exception
    """
    for kind, row, *rest in faults():
        if kind in ("die", "raise", "poison", "hold") and int(row) in ids:
            _in_batch(kind, row, Path(rest[0]) if rest else None)


def _in_batch(kind: str, row: str, file: Path | None) -> None:
    if kind == "poison":
        raise ValueError(f"row {row} is poison")
    assert file is not None
    if kind == "hold":
        wait_until(file.exists, timeout_s=90, what=str(file), poll_s=0.05)
    elif not file.exists():
        file.touch()
        if kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"row {row} fails once")
