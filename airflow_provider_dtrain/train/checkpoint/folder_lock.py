"""Lock of a folder or bucket of checkpoints: one run at a time writes to it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.errors import CheckpointError

log = logging.getLogger(__name__)

NAME = ".writer.json"
#: Interval at which the writer raises the counter of its lock, seconds.
BEAT_S = 5.0
#: The same in a bucket, where each one is a paid request.
BUCKET_BEAT_S = 20.0
#: Intervals without a new counter after which a writer on another host is dead, by the observer's own clock.
DEAD_AFTER_BEATS = 6
#: Largest lock file that is read, bytes.
_LIMIT_BYTES = 4096


class LockFile:
    """Lock as a file of a folder.

    :param folder: folder of checkpoints
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        #: Place of the checkpoints, and the lock itself, for messages.
        self.folder, self.shown = str(folder), str(self._path)
        self.beat_s = BEAT_S

    def create(self, text: str) -> bool:
        """Create the lock, or return False if there is one.

        :raises OSError: the folder does not accept files
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return True

    def write(self, text: str) -> None:
        """Replace the lock at once.

        :raises OSError: the folder does not accept files
        """
        temporary = self._path.with_name(f"{NAME}.{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, self._path)

    def read(self) -> bytes:
        """Return the content.

        :raises OSError: there is no lock, or it cannot be read
        """
        with open(self._path, "rb") as file:
            return file.read(_LIMIT_BYTES)

    def remove(self) -> None:
        """Remove the lock.

        :raises OSError: it cannot be removed
        """
        self._path.unlink()


class LockObject:
    """Lock as an object of a bucket. Buckets create no object exclusively that all of them know.

    Of two runs that start in the same moment, the one whose lock was replaced notices it at its next save.

    :param fs: file system of fsspec
    :param root: URL of the checkpoints
    """

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self.folder, self.shown = root, f"{root}/{NAME}"
        self.beat_s = BUCKET_BEAT_S

    def create(self, text: str) -> bool:
        """Create the lock, or return False if there is one, also one of the same moment.

        :raises OSError: the bucket does not answer
        """
        with _as_os_error():
            if self._fs.exists(self.shown):
                return False
        self.write(text)
        return self.read() == text.encode()

    def write(self, text: str) -> None:
        """Replace the lock.

        :raises OSError: the bucket does not answer
        """
        with _as_os_error():
            self._fs.pipe_file(self.shown, text.encode())

    def read(self) -> bytes:
        """Return the content.

        :raises OSError: there is no lock, or the bucket does not answer
        """
        with _as_os_error():
            return bytes(self._fs.cat_file(self.shown, start=0, end=_LIMIT_BYTES))

    def remove(self) -> None:
        """Remove the lock.

        :raises OSError: the bucket does not answer
        """
        with _as_os_error():
            self._fs.rm_file(self.shown)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise OSError for the errors of a bucket's client, each of which has its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class FolderLock:
    """Lock of one process, renewed by a thread.

    An earlier attempt of the same trial has ended for certain, so it is replaced at once. On the same host, the writer
    is alive if its process is. A writer on another host must have stopped to raise its counter.

    :param place: folder of checkpoints, or the lock in a bucket
    :param beat_s: interval of renewals, seconds; default: that of the place
    """

    def __init__(
        self,
        place: Path | LockObject,
        env: Environment,
        *,
        beat_s: float | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._place = LockFile(place) if isinstance(place, Path) else place
        self._beat_s = self._place.beat_s if beat_s is None else beat_s
        self._pause = pause
        self._mine: dict[str, Any] = {
            "run": env.run or "off-cluster",
            "trial": env.run.partition(".")[0] if env.run else None,
            "host": socket.gethostname(),
            "boot": _boot(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
        }
        self._beat = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock, and keep it until :meth:`release`. A second call does nothing.

        :raises CheckpointError: another run writes to the folder
        :raises OSError: the folder does not accept files
        """
        if self._thread is not None:
            return
        if not self._place.create(self._text()):
            found = self._read()
            if found is not None and not self._is_over(found):
                raise CheckpointError(self._in_use(found))
            self._place.write(self._text())
        self._over.clear()
        self._thread = threading.Thread(target=self._renew, name="dtrain-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise when another run has taken the lock since.

        :raises CheckpointError: names the other run
        """
        found = self._read()
        if self._thread is not None and found is not None and not self._is_mine(found):
            raise CheckpointError(self._in_use(found))

    def release(self) -> None:
        """Give the lock back."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._thread = None
        found = self._read()
        if found is not None and self._is_mine(found):
            with contextlib.suppress(OSError):
                self._place.remove()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _in_use(self, found: dict[str, Any]) -> str:
        return (
            f"Another run writes checkpoints to {self._place.folder}: run {found.get('run')} on host "
            f"{found.get('host')}, process {found.get('pid')}. Each would delete the checkpoints of the other. Use "
            f"another checkpoint_dir, or end that run. To only read weights, use dtrain.load_weights. If that run has "
            f"ended, delete {self._place.shown}."
        )

    def _is_mine(self, found: dict[str, Any]) -> bool:
        return all(found.get(name) == self._mine[name] for name in ("host", "boot", "pid", "started"))

    def _is_over(self, found: dict[str, Any]) -> bool:
        """Return whether the writer of a lock writes no longer."""
        trial = found.get("trial")
        if self._is_mine(found) or (trial is not None and trial == self._mine["trial"]):
            return True
        pid = found.get("pid")
        if found.get("host") == self._mine["host"] and found.get("boot") == self._mine["boot"] and type(pid) is int:
            return not found.get("started") or _started(pid) != found["started"]
        return self._has_stopped(found)

    def _has_stopped(self, found: dict[str, Any]) -> bool:
        """Watch the counter of a writer on another host."""
        log.warning(
            "Checkpoint folder %s is locked by run %s on host %s: waiting up to %.0f s for a sign of life.",
            self._place.folder,
            found.get("run"),
            found.get("host"),
            self._beat_s * DEAD_AFTER_BEATS,
        )
        for _ in range(DEAD_AFTER_BEATS):
            self._pause(self._beat_s)
            if self._read() != found:
                return self._read() is None
        return True

    def _text(self) -> str:
        return json.dumps({**self._mine, "beat": self._beat})

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._place.read())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _renew(self) -> None:
        while not self._over.wait(self._beat_s):
            self._beat += 1
            found = self._read()
            if found is not None and not self._is_mine(found):
                return
            with contextlib.suppress(OSError):
                self._place.write(self._text())


def _boot() -> str | None:
    """Return what identifies this start of the host and the process numbers in use, or None if the system is silent.

    Containers of a host share its start and often its name, but number their processes by themselves.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return the start time of a process in the kernel's own unit, or None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return None
