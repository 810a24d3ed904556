"""Locks of files, shared by the processes of this account or by all accounts of a machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import stat
import time

from ..file_access import kind_of, read_text, user_name
from ..names import NETWORK_FILE_SYSTEMS, Json
from ..refusal import Refused
from .host import mount_of
from .processes import Proc, all_procs, command_of, user_of


def take_lock(path: str, *, shared: bool = False, create: bool = True) -> int | None:
    """Return a descriptor that holds the lock of a file, None if another process holds it.

    :param shared: only probe the lock; concurrent probes do not block each other
    :raises FileNotFoundError: the file does not exist, and ``create`` is false
    """
    while True:
        fd = open_lock(path, create=create)
        if not lock_file(fd, shared=shared):
            return None
        if is_file_at(fd, path):
            return fd
        os.close(fd)


def open_lock(path: str, *, create: bool) -> int:
    """Return a descriptor of a lock file.

    On a file system that cannot be written, an existing file is opened for reading, which is enough for a lock.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        try:
            return os.open(path, flags | os.O_RDONLY)
        except OSError:
            raise error from None


def lock_file(fd: int, *, shared: bool) -> bool:
    """Lock an open file without waiting. Close it and return False if another process holds the lock."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def is_file_at(fd: int, path: str) -> bool:
    """Return whether an open file is still the one at a path.

    Another process may replace the file between this process's open and lock.
    """
    here = os.fstat(fd)
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return here.st_nlink > 0 and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def wait_lock(path: str, timeout_s: float) -> int:
    """Wait for the lock of a file and return a descriptor that holds it.

    :raises Refused: another process holds it for longer than ``timeout_s``
    """
    deadline = time.monotonic() + timeout_s
    while True:
        fd = take_lock(path)
        if fd is not None:
            return fd
        if time.monotonic() > deadline:
            raise Refused("busy", f"{path} was locked for {timeout_s:g} s. Check with lslocks whether its owner hangs.")
        time.sleep(0.005)


def is_locked(path: str) -> bool:
    """Return whether any process holds the lock of a file."""
    try:
        fd = take_lock(path, shared=True, create=False)
    except FileNotFoundError:
        return False
    if fd is None:
        return True
    os.close(fd)
    return False


def why_no_lock_dir(path: str) -> str | None:
    """Return the reason why a folder cannot hold the lock files of all accounts, None if it can."""
    try:
        found = os.lstat(path)
    except OSError as error:
        message = f"it cannot be read: {error.strerror}"
    else:
        owner = user_name(found.st_uid)
        kind = mount_of(path)[1]
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode):
            message = f"it is {kind_of(found)}"
        elif found.st_uid != 0 or not mode & stat.S_ISVTX or not mode & stat.S_IWOTH:
            message = f"it has mode {mode:04o} and belongs to user {owner}"
        elif kind in NETWORK_FILE_SYSTEMS:
            message = f"it is on {kind}, not on a file system of the host itself"
        else:
            return None
    return (
        f"lock_dir {path} must be a folder of root with mode 1777, {message}. "
        f"As root on the host: install -d -o root -g root -m 1777 {shlex.quote(path)}"
    )


def open_machine_lock(path: str, *, create: bool) -> int:
    """Open a lock file that all accounts share.

    With ``create`` the process must be single-threaded, because the umask changes. Sticky folders refuse
    O_CREAT on a file of another account (fs.protected_regular), so an open without it comes first.

    :raises FileNotFoundError: the file does not exist, and ``create`` is false
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(100):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            if not create:
                raise
        before = os.umask(0)
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
        except FileExistsError:
            continue
        finally:
            os.umask(before)
    raise OSError(errno.EBUSY, "appears and disappears", path)


def take_machine_lock(path: str, *, create: bool) -> int | None:
    """Return a descriptor that holds a slot's lock for all accounts, None if another process holds it.

    :param create: create the file if it does not exist
    :raises Refused: ``slot_busy``, the file is not a valid lock file; names its owner and the command that repairs it
    :raises FileNotFoundError: the file does not exist, and ``create`` is false
    """
    while True:
        try:
            fd = open_machine_lock(path, create=create)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EACCES, errno.ENXIO):
                raise unusable_lock(path) from error
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_nlink > 1:
            os.close(fd)
            raise unusable_lock(path)
        if not lock_file(fd, shared=False):
            return None
        if is_file_at(fd, path):
            return fd
        os.close(fd)


def unusable_lock(path: str) -> Refused:
    """Return the refusal for a lock file that another user made unusable."""
    try:
        found = os.lstat(path)
        message = f"found {kind_of(found)} with mode {stat.S_IMODE(found.st_mode):04o} and {found.st_nlink} name(s)"
        message += f" of user {user_name(found.st_uid)}"
    except OSError as error:
        message = f"it cannot be read: {error.strerror}"
    return Refused(
        "slot_busy",
        f"Lock file {path} must be a regular file with mode 0444 and one name, {message}. "
        f"As root on the host: rm {shlex.quote(path)}",
    )


def machine_holder(path: str | None) -> str | None:
    """Return a description of the holder of a slot's lock for all accounts, None if it is free."""
    if path is None:
        return None
    try:
        fd = take_machine_lock(path, create=False)
    except FileNotFoundError:
        return None
    except Refused as error:
        return error.message
    if fd is None:
        return lock_taker(path)
    os.close(fd)
    return None


def lock_taker(path: str) -> str:
    """Return a description of the process that took the lock of a file, according to /proc/locks."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return "an unknown process"
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in (read_text("/proc/locks") or "").splitlines():
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[5:6] == [wanted] and fields[4].isdigit():
            return f"process {fields[4]} ({command_of(int(fields[4]))[:100]}) of user {user_of(int(fields[4]))}"
    return f"a process that user {user_name(os.getuid())} cannot see"


def write_label(fd: int, label: Json) -> None:
    """Write the holder of a slot into its lock file. The caller holds the lock."""
    data = json.dumps(label).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def lock_holders(path: str, *, shared: bool = False) -> list[Proc]:
    """Return the processes that hold the lock of a file, according to /proc/<pid>/fdinfo.

    :param shared: those that hold a shared lock
    """
    try:
        wanted = os.stat(path)
    except OSError:
        return []
    found = []
    for proc in all_procs().values():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{proc.pid}/fd"):
                if holds_lock(proc.pid, fd, wanted, shared=shared):
                    found.append(proc)
                    break
    return found


def holds_lock(pid: int, fd: str, wanted: os.stat_result, *, shared: bool = False) -> bool:
    """Return whether a descriptor of a process holds the lock of a file. An open file alone does not."""
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
        return False
    return any(
        line.startswith("lock:") and "FLOCK" in line and ("READ" if shared else "WRITE") in line
        for line in (read_text(f"/proc/{pid}/fdinfo/{fd}") or "").splitlines()
    )
