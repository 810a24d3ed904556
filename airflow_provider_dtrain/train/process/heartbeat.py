"""Progress of this rank for the watchdog: a page in the run's folder, rewritten once a second.

The training loop only assigns :attr:`Here.now`, which takes some hundredths of a microsecond. A thread writes the page.
A page that is not rewritten shows a rank that is stopped, or that never lets another thread run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Interval between two writes of the page, seconds.
HEARTBEAT_S = 1.0
#: Size of the page, bytes. Longer names are cut.
PAGE_BYTES = 512
#: Most characters of an error on the page.
ERROR_CHARS = 100
#: Python code that calls a collective, which is native code and has no frame. Deeper folders also write files, and call
#: the program.
_COLLECTIVES = re.compile(r"/torch/distributed/[^/]+\.py$")
#: Folder below the run's folder, one page per rank.
FOLDER = "progress"

#: Kind and name of a rank's activity. ``exchange``: may wait for the other ranks. ``data``: may wait for data, which
#: may take a while. ``wait``: may wait for something that takes long, which is no reason for an alarm.
Place = tuple[str, str]

START: Place = ("start", "its start")
COMPUTE: Place = ("compute", "its training loop")
VALIDATION: Place = ("data", "validation")
DATA: Place = ("data", "data loading")
BACKWARD: Place = ("exchange", "the gradient exchange")
MESSAGE: Place = ("exchange", "an exchange of metrics")
CHECKPOINT: Place = ("wait", "a checkpoint")
TRACE: Place = ("wait", "a trace of the profiler")
DECISION: Place = ("wait", "the searcher's decision")
LEADER: Place = ("wait", "local_leader_first")
FOLLOWERS: Place = ("exchange", "local_leader_first")
CHIEF: Place = ("wait", "what rank 0 does alone")
RANK_0: Place = ("exchange", "what rank 0 does alone")
BUILD: Place = ("wait", "the distributed model")
END: Place = ("ended", "its end")


class Here:
    """Current activity of this process."""

    def __init__(self) -> None:
        self.now: Place = START
        #: The first step of this process is done. From here on, the watchdog expects progress of the rank.
        self.started = False
        #: Count of other signs of progress, e.g. batches of a validation.
        self.moves = 0
        #: Returns the number of batches so far.
        self.steps: Callable[[], int] = int
        #: Returns the number of collectives that this rank has entered; 0: not known.
        self.collectives: Callable[[], int] = int
        self._heart: Heart | None = None
        self._failed: tuple[int, Place] = (0, START)

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Set the activity for the duration of the block, then restore the previous one."""
        before = self.now
        self.now = place
        try:
            yield
        except BaseException as error:
            # The innermost activity of an error counts. A reference to the error would keep all its frames.
            if id(error) != self._failed[0]:
                self._failed = id(error), place
            raise
        finally:
            self.now = before

    def place_of(self, error: BaseException) -> Place:
        """Return the activity in which an error was raised, as long as no other one was raised after it."""
        return self._failed[1] if self._failed[0] == id(error) else self.now

    def begin(self, run_dir: Path | None, rank: int, steps: Callable[[], int]) -> None:
        """Start to report the progress of this rank. Off-cluster, nothing is reported.

        :param steps: returns the number of batches so far
        """
        self.end()
        self.now = START
        self.started = False
        self.steps = steps
        if run_dir is not None:
            # A full disk costs the watchdog, not the training.
            with contextlib.suppress(OSError):
                self._heart = Heart(self, run_dir / FOLDER / str(rank))
                self._heart.start()

    def end(self) -> None:
        """Report that this rank has ended."""
        self.now = END
        if self._heart is not None:
            self._heart.stop()
            self._heart = None


class Heart(threading.Thread):
    """Thread that writes the page once a second."""

    def __init__(self, here: Here, path: Path) -> None:
        super().__init__(name="dtrain-progress", daemon=True)
        self._here = here
        self._seen = (0, 0, here.now)
        self._since = boottime()
        self._beat = 0
        self._collectives = 0
        #: When the main thread began to wait in a collective, None while it does not.
        self._held_since: float | None = None
        self._path = path
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._over = threading.Event()
        self.beat()

    def run(self) -> None:
        """Write the page until the end."""
        try:
            while not self._over.wait(HEARTBEAT_S):
                self.beat()
        except OSError:
            # A page that is no longer rewritten would mean that this rank hangs.
            with contextlib.suppress(OSError):
                self._path.unlink()

    def beat(self) -> None:
        """Write the page once."""
        here = self._here
        now = boottime()
        seen = (here.steps(), here.moves, here.now)
        if seen != self._seen:
            self._seen = seen
            self._since = now
        self._collectives = here.collectives() or self._collectives
        self._beat += 1
        steps, _, (phase, what) = seen
        page = {
            "beat": self._beat,
            "at": round(now, 3),
            "since": round(self._since, 3),
            "steps": steps,
            "started": here.started,
            "phase": phase,
            "what": what[:60],
            "collectives": self._collectives,
            **self._held(now),
        }
        os.pwrite(self._fd, json.dumps(page, separators=(",", ":")).encode().ljust(PAGE_BYTES)[:PAGE_BYTES], 0)

    def _held(self, now: float) -> dict[str, object]:
        """Return since when the main thread waits in a collective, and the error that it handles there.

        After the first step, the main thread is read only while the rank makes no progress.
        """
        moves = self._here.started and self._since == now
        is_held, error = (False, "") if moves else main_thread()
        self._held_since = (self._held_since or now) if is_held else None
        return {} if self._held_since is None else {"held_since": round(self._held_since, 3), "raised": error}

    def stop(self) -> None:
        """Write the last page and end."""
        self._over.set()
        with contextlib.suppress(OSError):
            self.beat()
        if threading.current_thread() is not self:
            self.join(timeout=HEARTBEAT_S)
        if not self.is_alive():
            os.close(self._fd)


def main_thread() -> tuple[bool, str]:
    """Return whether the main thread waits in a collective, and the error that it handles, empty without one."""
    main = threading.main_thread().ident
    # These calls lock the interpreter's list of threads. Before Python 3.12 a collection may begin inside them and free
    # a tensor, which lets another thread run: if that one needs the list, both wait for ever.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(main or 0)
        # Python 3.10 and newer. Before 3.12 the value is a tuple of type, error and traceback.
        handled: dict[int, Any] = getattr(sys, "_current_exceptions", dict)()
    finally:
        if was_enabled:
            gc.enable()
    is_held = frame is not None and _COLLECTIVES.search(frame.f_code.co_filename) is not None
    current = handled.get(main or 0)
    error = current[1] if isinstance(current, tuple) else current
    return is_held, "" if error is None else _error_text(error)


def _error_text(error: BaseException) -> str:
    """Return type and message of an error as printable ASCII."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the method of a user's class
        text = type(error).__name__
    line = text[: 2 * ERROR_CHARS].encode("ascii", "replace").decode().partition("\n")[0][:ERROR_CHARS]
    return "".join(one if one.isprintable() else "?" for one in line)


def boottime() -> float:
    """Return the seconds since the host started, by the clock that the host's supervisor uses."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


#: Activity of this process.
HERE = Here()
