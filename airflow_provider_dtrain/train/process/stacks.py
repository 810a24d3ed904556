"""Stacks of this rank's threads, written on a signal that the host sends for ``trials stack``."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

#: The supervisor sends it, and has the same number. Few programs use a real-time signal.
STACK_SIGNAL = signal.SIGRTMAX - 7
#: File in the rank's folder. The supervisor empties and reads it.
STACK_FILE = "stacks"

#: The open file of this process: faulthandler keeps only its number.
_open: list[int] = []


def install(events: Path | None) -> None:
    """Write the stacks of all threads to a file beside the events on each signal. Costs nothing until then.

    The handler runs in C and needs no lock of the interpreter, so a rank answers that hangs in native code.

    :param events: events file of this rank; None off-cluster, where nothing is installed
    """
    if events is None or _open:
        return
    with contextlib.suppress(OSError, AttributeError, RuntimeError, ValueError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(events.parent / STACK_FILE, flags, 0o600)
        _open.append(file)
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, AttributeError, RuntimeError, ValueError):
            # For a crash in native code: its stack goes to the log.
            faulthandler.enable()
