"""Processes as /proc shows them, and signals that reach no other process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

from ..file_access import read_bytes, read_text, user_name
from ..limits import MAX_LINE
from ..names import ROLES, WARM_ROLE, Json

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)
#: Fields that distinguish a process from any other with the same pid.
IDENTITY = ("pid", "start_time", "boot_id", "pid_ns")


class Proc(NamedTuple):
    """A process as /proc shows it. The pair of pid and start time is never reused."""

    pid: int
    ppid: int
    session: int
    state: str
    start_time: int


def boottime() -> float:
    """Return the seconds since boot, including suspended time. Clock changes do not affect it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the id of the current boot."""
    return (read_text("/proc/sys/kernel/random/boot_id") or "unknown").strip()


def pid_namespace() -> int:
    """Return the id of this pid namespace. Pids are meaningless in another one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def read_proc(pid: int) -> Proc | None:
    """Return a process, None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b") ")
        fields = rest.split()
        return Proc(pid, int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def all_procs() -> dict[int, Proc]:
    """Return every process of the pid namespace by its pid."""
    found = (read_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def is_dead(proc: Proc) -> bool:
    """Return whether only the process table entry is left. A zombie with running threads is alive."""
    if proc.state not in "ZX":
        return False
    try:
        return len(os.listdir(f"/proc/{proc.pid}/task")) <= 1
    except OSError:
        return True


def descendants(roots: Iterable[int], procs: dict[int, Proc]) -> list[Proc]:
    """Return all living descendants of some processes, without these processes themselves."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: dict[int, Proc] = {}
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found[pid] = procs[pid]
                waiting.append(pid)
    return [proc for proc in found.values() if not is_dead(proc)]


def pids_of(pid: int) -> list[int]:
    """Return the pids of a process in all pid namespaces that it is in: in this one first, in its own last."""
    found = re.search(r"^NSpid:\s+(.+)$", read_text(f"/proc/{pid}/status") or "", re.MULTILINE)
    return [int(word) for word in found[1].split()] if found else []


@functools.lru_cache(4096)
def find_inner(root: int, root_start: int, pid: int, start_time: int) -> int:
    """Return the pid here of a process that has another one in a container, 0 if it is gone.

    A process writes its pid while it lives, so one that was not found once never appears.

    :param root: first process of the container, with its start time
    :param pid: what the process itself calls its pid
    """
    first = read_proc(root)
    if first is None or first.start_time != root_start:
        return 0
    depth = len(pids_of(root)) - 1
    for proc in descendants([root], all_procs()):
        # A process of a container inside the container has one more.
        if proc.start_time == start_time and pids_of(proc.pid)[depth : depth + 1] == [pid]:
            return proc.pid
    return 0


def kill_descendants(most_s: float = 5.0) -> None:
    """Kill all descendants of this process, to which orphans come back. It returns once none is left."""
    until = time.monotonic() + most_s
    while (left := descendants([os.getpid()], all_procs())) and time.monotonic() < until:
        for proc in left:
            send_signal(proc, signal.SIGKILL)
        time.sleep(0.002)


def identity(pid: int | None = None) -> Json:
    """Return the fields that distinguish a process from any other with the same pid."""
    proc = read_proc(os.getpid() if pid is None else pid)
    return {
        "pid": proc.pid if proc else 0,
        "start_time": proc.start_time if proc else 0,
        "boot_id": boot_id(),
        "pid_ns": pid_namespace(),
    }


def is_same(one: Json, other: Json) -> bool:
    """Return whether two records have the identity of the same process."""
    return all(one.get(key) is not None and one.get(key) == other.get(key) for key in IDENTITY)


def start_time(pid: int) -> int:
    """Return the start time of a process, 0 if it is gone."""
    proc = read_proc(pid)
    return proc.start_time if proc else 0


def find_process(known: Json | None) -> Proc | None:
    """Return the living process with this identity, None if it is gone or its pid was reused."""
    if not known or known.get("boot_id") != boot_id() or known.get("pid_ns", pid_namespace()) != pid_namespace():
        return None
    pid = known.get("pid")
    proc = read_proc(pid) if isinstance(pid, int) and pid > 0 else None
    if proc is None or proc.start_time != known.get("start_time") or is_dead(proc):
        return None
    return proc


def open_pidfd(pid: int) -> int:
    """Return a pidfd, -1 if there is none."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return -1
    try:
        fd: int = opener(pid)
    except OSError:
        return -1
    return fd


def send_signal(proc: Proc, number: int) -> None:
    """Send a signal to exactly this process, never to a later one with its pid."""
    fd = open_pidfd(proc.pid)
    try:
        now = read_proc(proc.pid)
        if now is None or now.start_time != proc.start_time:
            return
        with contextlib.suppress(OSError):
            if fd >= 0:
                signal.pidfd_send_signal(fd, number)
            else:
                os.kill(proc.pid, number)
    finally:
        if fd >= 0:
            os.close(fd)


def command_of(pid: int) -> str:
    """Return a process's command line, shortened, or its name if it has none."""
    raw = (read_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    return (raw or f"[{(read_text(f'/proc/{pid}/comm') or '?')}]")[:200]


def describe(proc: Proc) -> Json:
    """Return the record that describes a surviving process in an answer."""
    return {"pid": proc.pid, "state": proc.state, "command": command_of(proc.pid)}


def user_of(pid: int) -> str:
    """Return the user of a process, ``?`` if it is hidden."""
    uid = real_uid(pid)
    return "?" if uid is None else user_name(uid)


def real_uid(pid: int) -> int | None:
    """Return the real uid of a process, None if it is hidden.

    The owner of /proc/<pid> is not used, because it is root for some programs.
    """
    match = re.search(r"^Uid:\s+(\d+)", read_text(f"/proc/{pid}/status") or "", re.MULTILINE)
    return int(match.group(1)) if match else None


def signals_in(pid: int, *fields: str) -> set[int]:
    """Return the signals in some masks of a process's main thread, e.g. ``SigCgt`` for those with a handler."""
    status = read_text(f"/proc/{pid}/status") or ""
    masks = (re.search(rf"^{field}:\s*([0-9a-f]+)$", status, re.MULTILINE) for field in fields)
    bits = [int(found[1], 16) for found in masks if found]
    return {number for number in range(1, signal.NSIG) if any(mask >> (number - 1) & 1 for mask in bits)}


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Return the environment that a process was started with, {} if it is hidden."""
    content = read_bytes(f"/proc/{pid}/environ", MAX_LINE) or b""
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def ancestors(pid: int, procs: dict[int, Proc]) -> set[int]:
    """Return the pids of a process and of its ancestors."""
    found: set[int] = set()
    while pid in procs and pid not in found:
        found.add(pid)
        pid = procs[pid].ppid
    return found


#: Folder of this program on hosts.
OWN_PATH = re.compile(r"(.*/)?supervisor/[0-9a-f]{64}")


def program() -> str:
    """Return the folder that this program runs from."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def read_arguments(pid: int) -> list[str]:
    """Return the words of a process's command line, followed by an empty one."""
    return (read_text(f"/proc/{pid}/cmdline") or "").split("\0")


def is_ours(pid: int) -> bool:
    """Return whether a process is a role of this program. No role ever executes user code.

    Ranks that were forked from a warm parent have the command line of their program.
    """
    argv = read_arguments(pid)
    if len(argv) > 2 and OWN_PATH.fullmatch(argv[1].removesuffix("/__main__.py")):
        return argv[2] == WARM_ROLE
    return len(argv) > 3 and argv[1] == "-I" and OWN_PATH.fullmatch(argv[2]) is not None and argv[3] in ROLES


def die_with_parent() -> None:
    """Let the kernel kill this process together with the thread that forked it. For use between fork and exec."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def set_name(name: str) -> None:
    """Set the name of this process that ps and top show. It also distinguishes the roles of this program.

    :param name: at most 15 bytes
    """
    LIBC.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def has_name(pid: int, name: str) -> bool:
    """Return whether a process is a role of this program that has set this name."""
    return read_text(f"/proc/{pid}/comm") == name and is_ours(pid)


def recorded_processes(procs: dict[int, Proc]) -> set[int]:
    """Return the pids of all roles of this program, of any ``state_dir``, and of their descendants."""
    roles = [proc.pid for proc in procs.values() if is_ours(proc.pid)]
    return {*roles, *(proc.pid for proc in descendants(roles, procs))}


def has_children() -> bool:
    """Return whether this process has any child, including zombies."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def close_all_but(*kept: int) -> None:
    """Close all inherited descriptors but some. Standard streams go to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
