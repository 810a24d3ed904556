"""Files of a rank that a launcher has started, which the supervisor makes for its own ranks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

#: File in the rank's folder by which the supervisor finds the process.
WORKER_FILE = "worker.json"


def begin(own: Path | None, launcher_log: Path | None) -> None:
    """Make this rank's files, and send what it prints from here on to its own log.

    Output that the launcher has sent elsewhere stays there. Nothing happens in a rank that the supervisor started.

    :param own: folder of this rank
    :param launcher_log: log of the launcher that started it; None for a rank that the supervisor started
    """
    if own is None or launcher_log is None:
        return
    own.mkdir(mode=0o700, exist_ok=True)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    part = own / f"{WORKER_FILE}.part"
    part.write_text(json.dumps({"pid": os.getpid(), "start_time": started}), encoding="utf-8")
    part.replace(own / WORKER_FILE)
    with contextlib.suppress(OSError):
        shared = os.stat(launcher_log)
        log = os.open(own / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if os.path.samestat(os.fstat(number), shared):
                stream.flush()
                os.dup2(log, number)
        os.close(log)
