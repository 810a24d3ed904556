"""Test of what a launch needs on this host: files, locks, processes, and the proof that a run is gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from ..files.layout import Layout
from ..limits import LOW_INODES, SELF_TEST_S
from ..machine.host import mount_of
from ..machine.locks import take_lock
from ..refusal import Refused, refusal_of
from ..run.fencing import fence

#: Run that no store grants. Its fence shows whether the one of a lost run would be answered.
_UNKNOWN_RUN = "t0.0.0"


def self_test(layout: Layout) -> tuple[list[str], list[str]]:
    """Return the problems that prevent every launch here, and those that affect some.

    Each text names the fault, the path, and what helps.
    """
    problems = list(_failures(layout))
    return problems, [] if problems else list(_doubts(layout))


def _failures(layout: Layout) -> Iterator[str]:
    folders = [os.path.join(layout.state_dir, name) for name in ("runs", "slots", "tombstones")]
    folders += [layout.remote_dir, *([layout.lock_dir] if layout.lock_dir else [])]
    # The folders are usually on one file system, whose fault is named once.
    found: dict[str, None] = {}
    checks: list[tuple[str, Callable[[], object]]] = [(layout.state_dir, layout.ensure)]
    checks += [(folder, functools.partial(_write_and_lock, folder)) for folder in folders]
    for folder, check in checks:
        try:
            check()
        except Refused as error:
            # The later checks of such folders say less.
            found = {error.message: None}
            break
        except OSError as error:
            found[_message(folder, error)] = None
    yield from found
    if (message := _why_no_interpreter()) is not None:
        yield message


def _write_and_lock(folder: str) -> None:
    """Create, flush, lock and remove a file, as every record of a run.

    :raises Refused: the lock does not keep another one out
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f".dtrain-test-{os.getpid()}-{threading.get_ident()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.write(fd, b"x" * 4096)
        os.fsync(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if take_lock(path, shared=True) is not None:
            raise Refused("state_dir", f"locks have no effect on {mount_of(folder)[1]}. Set a folder on a local disk")
    finally:
        os.close(fd)
        os.unlink(path)


def _message(path: str, error: OSError) -> str:
    point, kind = mount_of(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with contextlib.suppress(OSError):
            if os.statvfs(path).f_favail == 0 and os.statvfs(path).f_files:
                return f"{point} has no inodes left (df -i {point}): remove files there, or set state_dir or remote_dir"
        return f"{point} has no space left (df {point}): free some there, or set state_dir or remote_dir"
    if error.errno == errno.EROFS:
        return f"{point} ({kind}) is mounted read-only: check dmesg for its fault, then mount -o remount,rw {point}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} cannot be written by uid {os.getuid()}: change its owner, or set another folder"
    return f"{path}: {error.strerror or error}"


def _why_no_interpreter() -> str | None:
    argv = [sys.executable, "-I", "-c", "import json, socket, subprocess"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=SELF_TEST_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"it did not end within {SELF_TEST_S:g} s"
        return (
            f"{sys.executable} cannot be started: {reason}. Check ulimit -u, the memory, and the interpreter's folder"
        )
    if done.returncode == 0:
        return None
    errors = done.stderr.decode("utf-8", "replace").strip()[-200:]
    return (
        f"{sys.executable} ends with exit status {done.returncode}: {errors}. Repair it, or name another one (--python)"
    )


def _doubts(layout: Layout) -> Iterator[str]:
    try:
        found = fence(layout, _UNKNOWN_RUN, 0, wait_s=SELF_TEST_S / 5)
    except (OSError, Refused) as error:
        yield f"the fence of an unknown run fails: {refusal_of(error).message}"
    else:
        if not found["clear"]:
            names = ", ".join(f"process {one['pid']} ({one['command']})" for one in found.get("survivors", ())[:5])
            yield (
                f"the fence of an unknown run is not clear: {names}. A run whose folder was removed may own them: end "
                "them, or reboot the host"
            )
    finally:
        with contextlib.suppress(OSError):
            os.unlink(layout.run(_UNKNOWN_RUN).tombstone)
    for path in dict.fromkeys((layout.state_dir, layout.remote_dir)):
        with contextlib.suppress(OSError):
            disk = os.statvfs(path)
            if disk.f_files and disk.f_favail < LOW_INODES:
                yield f"{mount_of(path)[0]} has only {disk.f_favail} inodes left (df -i): remove files there"
