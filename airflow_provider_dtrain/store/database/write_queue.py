"""Queue of the writers to a SQLite database: one at a time, in order of arrival, over all processes.

SQLite has no such queue. Its writers sleep between tries, longer each time, so that under contention some writers wait
for the whole busy time-out while other writers get the lock again and again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: Longest wait for a turn. After it, a writer tries all the same, and SQLite's own lock decides.
WRITE_WAIT_S = 30.0
#: A writer at the front for longer is skipped: its process is stopped, or its transaction is a long one.
STUCK_S = 2.0
#: Poll period of the next writer in line. A writer n places behind polls n times less often, up to ``POLL_MOST_S``.
POLL_S, POLL_MOST_S = 0.0003, 0.005
#: A longer transaction is polled less often, each time after this part of its time so far: polls take CPU from it.
POLL_PART = 0.125
#: A file with a higher number was not written by this code, and its numbers restart at 0.
LAST_TICKET = 2**60
#: ``struct flock``: type, whence, start, length, pid.
_FLOCK = "hhqqi4x"
#: Number of the last ticket, and of the last skipped writer's ticket.
_NUMBERS = struct.Struct("<QQ")
#: The byte that guards the numbers. The following bytes are the tickets.
_NUMBERS_LOCK = 0


class ThreadQueue:
    """A lock that threads receive in the order of their requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def acquire(self, timeout_s: float) -> bool:
        """Wait for the lock, and return whether the caller has it now."""
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait(timeout_s)
        except BaseException:
            # A signal handler raised, as Airflow's task time-out does.
            if self._has_got(mine):
                self.release()
            raise
        return self._has_got(mine)

    def _has_got(self, mine: threading.Event) -> bool:
        with self._lock:
            if not mine.is_set():
                self._waiting.remove(mine)
            return mine.is_set()

    def release(self) -> None:
        """Hand the lock to the thread that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


class FileQueue:
    """Queue of processes, as tickets in a file: each process holds the kernel's lock on the byte of its ticket.

    The kernel releases the lock of a process that dies, at any place in the queue. Only the order depends on the file:
    if it cannot be used, or two writers take their turn at once, SQLite's own lock still excludes them.

    :param path: of the file, which is created
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @contextmanager
    def turn(self, deadline: float) -> Iterator[None]:
        """Wait until every earlier writer is done.

        :param deadline: time.monotonic() after which the caller proceeds without a turn
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.debug("The write queue %s cannot be used: %s", self._path, error)
            yield
            return
        try:
            self._line_up(descriptor, deadline)
            yield
        finally:
            # A child that was forked meanwhile shares the open file, so a close alone would not release the lock.
            _unlock(descriptor)
            os.close(descriptor)

    def _line_up(self, descriptor: int, deadline: float) -> None:
        try:
            _wait(descriptor, _take_ticket(descriptor, deadline), deadline)
        except OSError as error:
            log.debug("The write queue %s cannot be used: %s", self._path, error)


def _take_ticket(descriptor: int, deadline: float) -> int:
    """Return the caller's ticket, with its byte locked.

    :raises OSError: the lock of the numbers is not released in time, or the file cannot be written
    """
    while not _try_lock(descriptor, _NUMBERS_LOCK):
        if time.monotonic() > deadline:
            raise TimeoutError("the lock of the ticket numbers was not released in time")
        time.sleep(POLL_S)
    last, passed_by = _numbers(descriptor)
    os.pwrite(descriptor, _NUMBERS.pack(last + 1, passed_by), 0)
    _try_lock(descriptor, last + 1)
    _unlock(descriptor, _NUMBERS_LOCK, 1)
    return last + 1


def _wait(descriptor: int, ticket: int, deadline: float) -> None:
    """Wait until no earlier ticket is held, except those of skipped writers."""
    first = -1
    since = time.monotonic()
    while (found := _first_holder(descriptor, _numbers(descriptor)[1] + 1, ticket)) is not None:
        now = time.monotonic()
        if found != first:
            first = found
            since = now
        elif now - since > STUCK_S:
            os.pwrite(descriptor, struct.pack("<Q", found), 8)
        if now > deadline:
            return
        time.sleep(min(POLL_MOST_S, max(POLL_S, POLL_PART * (now - since)) * (ticket - found)))


def _numbers(descriptor: int) -> tuple[int, int]:
    raw = os.pread(descriptor, _NUMBERS.size, 0)
    last, passed_by = _NUMBERS.unpack(raw) if len(raw) == _NUMBERS.size else (0, 0)
    return (last, min(last, passed_by)) if last < LAST_TICKET else (0, 0)


def _first_holder(descriptor: int, start: int, end: int) -> int | None:
    """Return a held ticket from ``start`` to below ``end``, None without one.

    With several, it is the first one in the kernel's list.
    """
    if start >= end:
        return None
    asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, start, end - start, 0)
    kind, _, found, _, _ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(found)


def _try_lock(descriptor: int, byte: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int, byte: int = 0, length: int = 0) -> None:
    """Unlock bytes. A length of 0 means all bytes from the first one on."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, byte, length, 0))


_making = threading.Lock()
_queues: dict[str, tuple[ThreadQueue, FileQueue]] = {}


@contextmanager
def write_turn(database: str) -> Iterator[None]:
    """Serialize writers to a SQLite database, over all processes and in the order of their calls.

    :param database: path of the database
    """
    with _making:
        if (found := _queues.get(database)) is None:
            found = _queues[database] = ThreadQueue(), FileQueue(f"{database}-queue")
    threads, processes = found
    deadline = time.monotonic() + WRITE_WAIT_S
    is_mine = threads.acquire(WRITE_WAIT_S)
    try:
        with processes.turn(deadline):
            yield
    finally:
        if is_mine:
            threads.release()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _queues.clear()


os.register_at_fork(after_in_child=_after_fork)
