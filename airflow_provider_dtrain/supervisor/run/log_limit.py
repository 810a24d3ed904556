"""Limit of the log of a rank: the middle of a log that grew too long is freed."""

from __future__ import annotations

import ctypes
import errno
import os

from ..limits import CUT_SLACK, CUT_TAIL
from ..machine.processes import LIBC
from ..refusal import print_traceback
from .ranks import Rank


def cap_log(rank: Rank, limit: int) -> bool:
    """Free the middle of a rank's log that grew too long, without a change of offsets.

    :param limit: bytes of the plan's ``log_limit_bytes``
    :return: whether a part was freed
    """
    path = os.path.join(rank.folder, "log")
    try:
        found = os.stat(path, follow_symlinks=False)
        if found.st_blocks * 512 <= limit or found.st_size <= limit:
            return False
        start = limit // 2 & ~4095
        end = (found.st_size - limit // 4) & ~4095
        if rank.gap == [start, end] or end <= start:
            return False
        rank.note_gap(start, end)
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            free(rank, fd, start, end, limit)
        finally:
            os.close(fd)
    except OSError:
        print_traceback()
        return False
    return True


def free(rank: Rank, fd: int, start: int, end: int, limit: int) -> None:
    """Free a part of a log, by a cut if the file system cannot free the middle of a file.

    A cut loses what is written at that moment. The gap is recorded as too long rather than too short.
    """
    try:
        punch_hole(fd, start, end - start)
        return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
    size = os.fstat(fd).st_size
    kept = min(limit // 4, CUT_TAIL)
    tail = os.pread(fd, kept, max(start, size - kept))
    rank.note_gap(start, size + CUT_SLACK)
    # Make it longer than before: a reader that has reached its end must not mistake it for another file.
    os.ftruncate(fd, start)
    os.ftruncate(fd, size + CUT_SLACK)
    os.pwrite(fd, tail, size + CUT_SLACK - len(tail))
    rank.note_gap(start, size + CUT_SLACK - len(tail))


def punch_hole(fd: int, start: int, length: int) -> None:
    """Free a part of a file and keep its size."""
    call = LIBC.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, 0x1 | 0x2, start, length) != 0:
        number_ = ctypes.get_errno()
        raise OSError(number_, os.strerror(number_))
