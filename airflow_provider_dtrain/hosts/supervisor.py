"""Host side of the provider: one file, standard library only, Python >= 3.9.

The same file implements every role. ``follow`` carries commands and bytes over one channel. It
forks the detached *supervisor*, which is the parent of a run's ranks. The other roles are single
commands. ``docs/host-protocol.md`` lists the files and messages.

Sections: constants, values from the network, files, host facts, network facts, devices, folders,
locks, events, samples, containment, archives, outputs, plans, ranks, supervisor, launching, commands,
logs, network checks, streams, channel, roles.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import hashlib
import io
import json
import os
import pwd
import queue
import random
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
import traceback
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

# ---------------------------------------------------------------------------------------- constants

PROTOCOL = 1
#: Longest line in either direction.
MAX_LINE = 8 << 20
#: Most bytes of one stream that the control side has not acknowledged.
WINDOW = 1 << 20
CHUNK = 256 << 10
#: A follower that lags further behind in a log gets a gap, and then the last eighth of this.
LOG_LAG = 8 << 20
#: Bytes of an overlong line that are searched for its end at once.
SKIP = 16 << 20
#: New frames are created only while fewer bytes than this are queued for the control side.
HIGH_WATER = 4 << 20
BEAT_S = 5.0
#: Period at which the progress of ranks is polled.
LOOK_S = 1.0
#: A rank stalled for STANDS_S to STOOD_S is reported at every poll. After that the heartbeat reports it.
STANDS_S, STOOD_S = 3.0, 20.0
#: A process that uses less of one CPU than this is idle.
IDLE_RATIO = 0.05
PAGE_BYTES = 256
LOG_TAIL = 4096
#: Bytes at the end of a failed rank's log that are searched for a traceback.
LOG_SEARCH = 64 << 10
#: Time that a fenced supervisor has to notice the fence, and to kill its ranks. After that it is killed.
OBEY_S, KILLING_S = 1.0, 5.0
FENCE_WAIT_S = 10.0
#: Time that a start waits for a slot whose last run has ended.
SLOT_WAIT_S = 2.0
#: Folder of the lock files that all accounts of a machine share, and the value that disables it.
LOCK_DIR, NO_LOCK_DIR = "/run/lock", "none"
#: A lock must be taken for longer than this before its slot counts as busy. A probe holds it for microseconds.
PROBE_S = 0.1
ATTACH_WAIT_S = 20.0
GO_WAIT_S = 30.0
#: Period of the checks of log sizes: the longest one, and the one at the start and after a log was cut.
LOG_CHECK_S, FLOOD_CHECK_S = 2.0, 0.25
#: For file systems without hole punching: bytes at the end that a cut keeps, and bytes that may be written meanwhile.
CUT_TAIL, CUT_SLACK = 4 << 20, 1 << 20
#: Time that a program has to join the training library before a requested stop is sent to it as SIGTERM.
JOIN_S = 10.0
TOMBSTONE_DAYS = 90
#: Least age of a folder that is collected although its run may still start. A start that sends files holds no lock.
UNSTARTED_S = 3600.0
#: End of the names of folders whose removal has begun.
DELETED = ".deleted"
#: A folder with a longer path is moved up before it is emptied: the system limits paths to 4,096 bytes.
LONG_PATH = 2048
#: Most runs that one command names or removes.
COLLECT_LIMIT = 20_000
#: Most bytes of the runs in one answer to ``status``. Far below MAX_LINE, which would end the channel.
STATUS_BYTES = 2 << 20
MAX_THREADS = 64
UNPACKED_LIMIT = 16 << 30
MEMBER_LIMIT = 500_000
#: Folders of a run whose files are its outputs.
OUTPUT_FOLDERS = ("checkpoints", "work")
#: Most output files that are sent, most that are examined, longest path of one, most folders above one.
OUTPUT_FILES, OUTPUT_LOOKS, OUTPUT_PATH, OUTPUT_DEPTH = 10_000, 500_000, 1024, 31
#: A file that changed within SETTLED_S and is open for writing is not sent yet. SETTLE_WAIT_S limits the wait.
SETTLED_S, SETTLE_WAIT_S = 5.0, 10.0
#: Last member of the outputs archive. It lists what was sent and what was not.
OUTPUTS_END = "end.json"
#: Bytes reserved so that the end of a run can be recorded on a full disk.
RESERVE = 64 << 10
#: A record that must change on a full disk is padded to this size when it is overwritten in place.
IN_PLACE_BYTES = 128
#: Limits of a search in the logs of one run: CPU seconds of each pattern, wall-clock seconds of the whole search.
MATCH_CPU_S, MATCH_WALL_S = 10, 30.0
#: Most decisions of the searcher about one run. No search has more rungs.
DECISIONS_LIMIT = 256
#: Bytes of a line that are searched, and characters of a matching line that are reported.
MATCH_LINE, MATCH_SHOWN = 16 << 10, 500
#: Upper bound of the file of system metrics. The sampling rate falls as the file grows, so it is never reached.
SAMPLES_LIMIT = 64 << 20
#: Time that a killed sampler stuck in a driver may delay the end of a run.
SAMPLER_PATIENCE_S = 2.0

RUN_NAME = re.compile(r"(?:[0-9a-f]{8}-)?t\d{1,18}\.\d{1,9}\.\d{1,18}", re.ASCII)
CGROUP_NAME = re.compile(rf"dtrain-{RUN_NAME.pattern}-[0-9a-f]{{12}}", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}", re.ASCII)
DEVICE = re.compile(r"[A-Za-z0-9:._/-]{1,128}", re.ASCII)
WORD = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)
RUNG = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)
DECISION = re.compile(r"continue|stop|complete")
CARRIED = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
STREAM = re.compile(r"supervisor\.events|rank(\d{1,6})\.(events|log)", re.ASCII)
#: Files that the ``read`` command accepts. Samples are sent on request only.
READABLE = re.compile(rf"{STREAM.pattern}|samples|rank(\d{{1,6}})\.samples", re.ASCII)
KINDS = ("payloads", "libraries")
ROLES = (
    "follow",
    "receive",
    "fetch",
    "outputs",
    "put",
    "start",
    "stop",
    "fence",
    "status",
    "collect",
    "match",
    "probe",
)
ARCHIVE_NAME = re.compile(r"(payloads|libraries)/[0-9a-f]{64}")
BASE_ENV = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
LINGER_DIR = "/var/lib/systemd/linger"
NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "9p", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs",
    "pvfs2", "ocfs2", "gfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse",
)  # fmt: skip
CONTAINER_INTERFACES = re.compile(r"(docker|br-|virbr|cni|flannel|podman|lxcbr|lxdbr|kube-|cali|weave)", re.ASCII)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)

#: Fields that distinguish a process from any other with the same pid.
IDENTITY = ("pid", "start_time", "boot_id", "pid_ns")

Json = dict[str, Any]


class Refused(Exception):
    """A refused command.

    :param code: machine-readable reason that the control side decides by
    :param message: fact, limit, next step
    :param details: more fields of the answer
    """

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details

    def answer(self) -> Json:
        """Return the refusal as an answer frame."""
        return {"ok": False, "code": self.code, "message": self.message, **self.details}


def refuse_os_error(error: OSError) -> Refused:
    """Return the refusal for a failed system call. Full and read-only disks have their own codes."""
    where = error.filename if isinstance(error.filename, str) else "a file"
    words = f"{error.strerror or error} ({where})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused("disk_full", f"No space left: {words}. Free space there, or choose another folder.")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Refused("read_only", f"Not writable: {words}. Remount it, change its owner, or choose another folder.")
    return Refused("os_error", words)


def refusal_of(error: BaseException) -> Refused:
    """Return the refusal for any error. An unexpected error keeps its last frame for debugging."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, OSError):
        return refuse_os_error(error)
    place = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" (line {place[0].lineno} of the supervisor)" if place else ""
    return Refused("internal", f"{type(error).__name__}: {error}{at}")


# ------------------------------------------------------------------------- values from the network

REQUIRED: Any = object()


class Fields:
    """Typed and bounded access to an object from the network.

    :raises Refused: ``bad_plan``, naming the field
    """

    def __init__(self, values: Any, where: str = "") -> None:
        self.where = where
        if not isinstance(values, dict):
            raise self.bad("", "must be an object")
        self.values: Json = values

    def bad(self, name: str, words: str) -> Refused:
        """Return the refusal for a field."""
        path = ".".join(part for part in (self.where, name) if part) or "message"
        return Refused("bad_plan", f"{path}: {words}", field=path)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        if value is REQUIRED:
            raise self.bad(name, "is missing")
        return value

    def text(self, name: str, pattern: re.Pattern[str] | None = None, *, limit: int = 4096,
             default: Any = REQUIRED) -> Any:  # fmt: skip
        """Return a string of at most ``limit`` characters without NUL, or None if that is the default."""
        value = self._get(name, default)
        if value is None and default is None:
            return None
        if not isinstance(value, str) or len(value) > limit or "\0" in value:
            raise self.bad(name, f"must be a string of at most {limit} characters, got {shorten(value)}")
        if pattern is not None and not pattern.fullmatch(value):
            raise self.bad(name, f"must match {pattern.pattern}, got {shorten(value)}")
        return value

    def integer(self, name: str, low: int, high: int, *, default: Any = REQUIRED) -> Any:
        """Return a whole number within bounds, or None if that is the default."""
        value = self._get(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(name, f"must be a whole number from {low} to {high}, got {shorten(value)}")
        return value

    def number(self, name: str, low: float, high: float, *, default: Any = REQUIRED) -> Any:
        """Return a number within bounds, or None if that is the default."""
        value = self._get(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.bad(name, f"must be a number from {low:g} to {high:g}, got {shorten(value)}")
        return value

    def flag(self, name: str, *, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.bad(name, f"must be true or false, got {shorten(value)}")
        return value

    def items(self, name: str, *, least: int = 0, limit: int = 4096, default: Any = REQUIRED) -> list[Any]:
        """Return a list with a bounded number of items."""
        value = self._get(name, default)
        if not isinstance(value, list) or not least <= len(value) <= limit:
            raise self.bad(name, f"must be a list of {least} to {limit} items, got {shorten(value)}")
        return value

    def texts(self, name: str, pattern: re.Pattern[str] | None = None, *, least: int = 0, limit: int = 4096,
              length: int = 4096, default: Any = REQUIRED) -> list[str]:  # fmt: skip
        """Return a list of strings."""
        found = self.items(name, least=least, limit=limit, default=default)
        inner = Fields({str(i): item for i, item in enumerate(found)}, self._path(name))
        return [inner.text(str(i), pattern, limit=length) for i in range(len(found))]

    def inner(self, name: str, *, default: Any = REQUIRED) -> Fields:
        """Return a nested object."""
        return Fields(self._get(name, default), self._path(name))

    def environment(self, name: str) -> dict[str, str]:
        """Return environment variables, {} when absent."""
        inner = self.inner(name, default={})
        if len(inner.values) > 2048:
            raise self.bad(name, "must have at most 2048 variables")
        for key in inner.values:
            if not isinstance(key, str) or not ENV_NAME.fullmatch(key):
                raise self.bad(name, f"must have names of environment variables as keys, got {shorten(key)}")
            inner.text(key, limit=128 << 10)
        return dict(inner.values)

    def port_range(self, name: str) -> tuple[int, int] | None:
        """Return the first and last port, None if any port may be used."""
        if self.values.get(name) is None:
            return None
        pair = self.items(name, least=2, limit=2)
        inner = Fields({"0": pair[0], "1": pair[1]}, self._path(name))
        low = inner.integer("0", 1, 65535)
        return low, inner.integer("1", low, 65535)

    def run(self, name: str = "run") -> str:
        """Return the name of a run, which is safe as the name of a folder."""
        return str(self.text(name, RUN_NAME, limit=64))

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def shorten(value: Any) -> str:
    """Return a value from the network as ASCII text of at most 80 characters, for a message."""
    text = ascii(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def parse_object(line: bytes) -> Json | None:
    """Return the JSON object of a line, None when it is anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# -------------------------------------------------------------------------------------------- files


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes. After a partial write on a full disk, the next write raises the error."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, durable: bool = True, sync_names: bool = True) -> None:
    """Replace the content of a file atomically.

    :param durable: False for content that is meaningless after a reboot, which ends every process of a run
    :param sync_names: False if the caller syncs the folder itself after several files
    """
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        error.filename = error.filename or path
        raise
    if durable and sync_names:
        sync_folder(os.path.dirname(path))


def write_json(path: str, document: Any, *, durable: bool = True, sync_names: bool = True) -> None:
    """Replace a JSON file atomically."""
    data = json.dumps(document, separators=(",", ":")).encode()
    write_atomic(path, data, durable=durable, sync_names=sync_names)


def checksum(values: list[Any]) -> str:
    """Return the checksum of some JSON values."""
    return f"{zlib.crc32(json.dumps(values).encode()):08x}"


def overwrite(path: str, data: bytes) -> None:
    """Replace the content of a one-block file in place, padded with blanks. This needs no free space."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, data.ljust(IN_PLACE_BYTES), 0)
        os.ftruncate(fd, IN_PLACE_BYTES)
    finally:
        os.close(fd)


def write_mark(path: str, document: Any) -> None:
    """Create a marker file durably. It is not renamed, because a rename costs a second flush."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, json.dumps(document, separators=(",", ":")).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path))


def read_bytes(path: str, limit: int = MAX_LINE) -> bytes | None:
    """Return a regular file's first bytes, None if there is none. Never follows a link, never blocks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, limit) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(fd)


def read_json(path: str) -> Json | None:
    """Return the object in a file, None if there is no file or no object in it."""
    content = read_bytes(path)
    return None if content is None else parse_object(content)


def read_text(path: str) -> str | None:
    """Return a small system file without the newline at its end, None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


def make_private(path: str) -> None:
    """Create a folder that only this account can access.

    An existing folder must belong to this account. Its access rights for other accounts are removed.

    :raises Refused: the path is a link or a file, or belongs to another user
    """
    if not os.path.lexists(path):
        with contextlib.suppress(FileExistsError):
            os.makedirs(path, mode=0o700, exist_ok=True)
        # A tombstone is as durable as the folder that it lies in.
        sync_folder(os.path.dirname(path))
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused(
            "state_dir",
            f"{path} must be a folder of user {user_name(os.getuid())}, found {kind_of(found)} of user "
            f"{user_name(found.st_uid)}. As root on the host: rm -rf {shlex.quote(path)}. Or set state_dir.",
        )
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def kind_of(found: os.stat_result) -> str:
    """Return the kind of a path as a phrase, e.g. ``a folder``."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"), (stat.S_ISLNK, "a symbolic link"))
    return next((words for test, words in kinds if test(found.st_mode)), "a special file")


def below(root: str, relative: str) -> str:
    """Return a path below a checked folder.

    :raises Refused: it leads outside, or passes through a link
    """
    parts = relative.split("/")
    if not relative or len(relative) > 4096 or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise Refused("bad_plan", f"path: must be a plain relative path, got {shorten(relative)}", field="path")
    path = root
    for part in parts:
        path = os.path.join(path, part)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                raise Refused("bad_plan", f"path: must not pass through a link, got {shorten(relative)}", field="path")
    return path


# --------------------------------------------------------------------------------------- host facts


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


def machine_id() -> str:
    """Return the permanent id of this machine."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        text = (read_text(path) or "").strip()
        if WORD.fullmatch(text):
            return text
    return "host-" + hashlib.sha256(socket.gethostname().encode()).hexdigest()[:24]


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


def how_gone(folder: RunFolder) -> tuple[str, str]:
    """Return cause and description of the disappearance of a supervisor."""
    # After a crash of the host only the ``started`` mark is known to be intact.
    known = folder.supervisor() or read_json(folder.file("started"))
    if not known:
        return "supervisor_killed", "its supervisor left no identity"
    if known.get("boot_id") != boot_id():
        return "reboot", "the host has rebooted since"
    if known.get("pid_ns") != pid_namespace():
        return "reboot", "its pid namespace (container) is gone"
    proc = read_proc(int(known.get("pid") or 0))
    if proc is not None and proc.start_time != known.get("start_time"):
        return "supervisor_killed", f"its supervisor is gone and pid {proc.pid} belongs to another process now"
    return "supervisor_killed", "its supervisor was killed"


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


def mount_of(path: str) -> tuple[str, str]:
    """Return mount point and file system type of a path that may not exist yet."""
    path = os.path.realpath(path)
    best = ("", "")
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        point = unescape_mount(left.split()[4])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best


def unescape_mount(text: str) -> str:
    """Return a path of mountinfo with its octal escapes resolved."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution, None without one. Imports nothing of it."""
    # Slow to import, and the control side waits for a channel's first line.
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def memory_bytes() -> int:
    """Return the host's memory in bytes."""
    match = re.search(r"MemTotal:\s+(\d+) kB", read_text("/proc/meminfo") or "")
    return int(match.group(1)) * 1024 if match else 0


# ------------------------------------------------------------------------------------ network facts

RTM_GETLINK, RTM_GETADDR = 18, 22
#: Scope of addresses that mean this machine only, e.g. 127.0.0.1.
SCOPE_HOST = 254
NLM_REQUEST_DUMP = 0x301


class Link(NamedTuple):
    """A network interface."""

    number: int
    name: str
    flags: int
    mtu: int
    kind: str


class Address(NamedTuple):
    """An address of an interface."""

    family: str
    address: str
    prefix: int
    scope: int
    flags: int
    link: Link


def netlink_dump(kind: int, header: bytes) -> Iterator[bytes]:
    """Yield the kernel's answers to one dump request, nothing if netlink is unavailable."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.settimeout(5.0)
            sock.bind((0, 0))
            sock.send(struct.pack("=LHHLL", 16 + len(header), kind, NLM_REQUEST_DUMP, 1, 0) + header)
            while True:
                data = sock.recv(1 << 18)
                while len(data) >= 16:
                    length, answer = struct.unpack_from("=LH", data)
                    if answer in (2, 3) or length < 16:
                        return
                    yield data[16:length]
                    data = data[(length + 3) & ~3 :]
    except OSError:
        return


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes behind a netlink header by their number."""
    found: dict[int, bytes] = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def links() -> dict[int, Link]:
    """Return the interfaces of this network namespace (sysfs may show those of another one)."""
    found = {}
    for message in netlink_dump(RTM_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        _, _, index, flags, _ = struct.unpack_from("=BxHiII", message)
        attrs = attributes(message[16:])
        mtu = struct.unpack("=I", attrs[4][:4])[0] if len(attrs.get(4, b"")) >= 4 else 0
        kind = attributes(attrs.get(18, b"")).get(1, b"").rstrip(b"\0").decode("ascii", "replace")
        found[index] = Link(index, attrs.get(3, b"").rstrip(b"\0").decode("utf-8", "replace"), flags, mtu, kind)
    return found


def addresses() -> list[Address]:
    """Return every address of every interface."""
    interfaces, found = links(), []
    for message in netlink_dump(RTM_GETADDR, struct.pack("=BBBBi", 0, 0, 0, 0, 0)):
        family, prefix, flags, scope, index = struct.unpack_from("=BBBBi", message)
        attrs = attributes(message[8:])
        raw = attrs.get(2) or attrs.get(1)
        if family not in (socket.AF_INET, socket.AF_INET6) or raw is None or index not in interfaces:
            continue
        name = "inet" if family == socket.AF_INET else "inet6"
        found.append(Address(name, socket.inet_ntop(family, raw), prefix, scope, flags, interfaces[index]))
    return found


def speed_mbps(name: str) -> int | None:
    """Return an interface's speed in Mbit/s, None if it reports none."""
    text = read_text(f"/sys/class/net/{name}/speed") or ""
    return int(text) if text.isdigit() and 0 < int(text) < 4_000_000 else None


def candidates() -> list[Json]:
    """Return the addresses under which other hosts may reach this one.

    Excluded: loopback, link-local, down, tentative or deprecated addresses, bridges of container
    engines. Any other bridge counts only if there is no other address (a host bridged for its VMs).
    """
    usable = [
        found
        for found in addresses()
        if found.scope == 0
        and not found.flags & 0x68
        and found.link.flags & 1
        and not found.link.flags & 8
        and not CONTAINER_INTERFACES.match(found.link.name)
        and not found.address.startswith(("127.", "169.254."))
    ]
    plain = [found for found in usable if not is_bridge(found.link)]
    return [
        {
            "address": found.address,
            "interface": found.link.name,
            "mtu": found.link.mtu,
            "speed_mbps": speed_mbps(found.link.name),
            "family": found.family,
            "prefix": found.prefix,
        }
        for found in plain or usable
    ]


def is_bridge(link: Link) -> bool:
    """Return whether an interface is a bridge."""
    return link.kind == "bridge" or os.path.isdir(f"/sys/class/net/{link.name}/bridge")


def interface_of(address: str) -> str | None:
    """Return the interface that has an address."""
    bare = address.partition("%")[0]
    return next((found.link.name for found in addresses() if found.address == bare), None)


# ------------------------------------------------------------------------------------------ devices


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlUtilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class NvmlProcess(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """The driver's management library, called without any NVIDIA program or package."""

    _lock = threading.Lock()

    def __init__(self, library: Any) -> None:
        self.library = library

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[Nvml | None]:
        """Yield the library, None on a host without it."""
        with cls._lock:
            try:
                library = ctypes.CDLL("libnvidia-ml.so.1")
                ready = library.nvmlInit_v2() == 0
            except (OSError, AttributeError):
                ready = False
            if not ready:
                yield None
                return
            try:
                yield cls(library)
            finally:
                library.nvmlShutdown()

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Yield index and handle of every device."""
        count = ctypes.c_uint()
        if self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(min(count.value, 256)):
            handle = ctypes.c_void_p()
            if self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                yield index, handle

    def words(self, function: str, handle: Any) -> str:
        """Return a text property of a device, empty if the call fails."""
        buffer = ctypes.create_string_buffer(128)
        failed = getattr(self.library, function)(handle, buffer, ctypes.c_uint(len(buffer)))
        return "" if failed else buffer.value.decode("utf-8", "replace")

    def device(self, index: int, handle: Any) -> Json:
        """Return the probe report of a device."""
        memory = NvmlMemory()
        failed = self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return {
            "index": index,
            "uuid": self.words("nvmlDeviceGetUUID", handle),
            "name": self.words("nvmlDeviceGetName", handle),
            "memory_bytes": 0 if failed else memory.total,
        }

    def handle_of(self, uuid: str) -> Any:
        """Return the handle of a device, None if the library does not know it."""
        handle = ctypes.c_void_p()
        failed = self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        return None if failed else handle

    def load(self, handle: Any) -> Json:
        """Return ``gpu_util`` (percent) and ``gpu_free_memory`` (bytes), each only if the device reports it."""
        found: Json = {}
        utilization, memory = NvmlUtilization(), NvmlMemory()
        if self.library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0:
            found["gpu_util"] = utilization.gpu
        if self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            found["gpu_free_memory"] = memory.free
        return found

    def processes(self, handle: Any) -> list[tuple[int, int]] | None:
        """Return pid and used bytes of every compute process on a device, None if the driver does not list them."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            function = getattr(self.library, name, None)
            if function is None:
                continue
            # The longer table is for a device with more processes than the first one holds.
            for size in (1024, 1 << 16):
                count = ctypes.c_uint(size)
                found = (NvmlProcess * size)()
                if function(handle, ctypes.byref(count), found) == 0:
                    unknown = (1 << 64) - 1
                    return [(one.pid, 0 if one.memory == unknown else one.memory) for one in found[: count.value]]
        return None


def gpus() -> list[Json]:
    """Return the host's GPUs, [] without a driver."""
    with Nvml.opened() as nvml:
        return [nvml.device(index, handle) for index, handle in nvml.handles()] if nvml else []


def list_processes(devices: Iterable[str]) -> dict[str, list[Json]]:
    """Return the processes on each of some devices that the driver lists, with user, memory and command."""
    wanted, found = set(devices), dict[str, list[Json]]()
    if not wanted:
        return {}
    with Nvml.opened() as nvml:
        for _, handle in nvml.handles() if nvml else ():
            uuid = nvml.words("nvmlDeviceGetUUID", handle) if nvml else ""
            if nvml is None or uuid not in wanted or (listed := nvml.processes(handle)) is None:
                continue
            found[uuid] = [
                {"device": uuid, "pid": pid, "user": user_of(pid), "memory_bytes": used, "name": command_of(pid)}
                for pid, used in listed
            ]
    return found


def device_users(layout: Layout, devices: Iterable[str]) -> tuple[list[Json], list[str]]:
    """Return the processes on some devices, and the devices whose processes are no longer listed.

    The latter were listed earlier since the last boot. A device that was never listed, e.g. without a driver, is none.
    """
    devices = list(devices)
    listed = list_processes(devices)
    path, boot = os.path.join(layout.state_dir, "listed_devices.json"), boot_id()
    known = read_json(path) or {}
    before = known.get("devices") if known.get("boot_id") == boot else None
    before = [device for device in before if isinstance(device, str)] if isinstance(before, list) else []
    if not all(device in before for device in listed):
        with contextlib.suppress(OSError):
            write_json(path, {"boot_id": boot, "devices": sorted({*before, *listed})}, durable=False)
    users = [user for found in listed.values() for user in found]
    return users, [device for device in devices if device in before and device not in listed]


def unlisted_words(device: str) -> str:
    """Return the reason why a device with unlisted processes does not count as free."""
    return f"{device}: the driver no longer lists its processes. Repair the driver, or reboot the host."


def device_problems(layout: Layout, devices: list[str]) -> tuple[list[Json], list[str]]:
    """Return the processes on some devices, and a text for each device that cannot be used."""
    present = {gpu["uuid"] for gpu in gpus()} if devices else set()
    users, unlisted = device_users(layout, devices)
    missing = [missing_words(device) for device in devices if device not in present]
    return users, missing + [unlisted_words(device) for device in unlisted if device in present]


def missing_words(device: str) -> str:
    """Return the reason why a device that the driver does not know cannot be used."""
    return (
        f"{device}: the driver does not list this GPU. Repair the driver, reboot the host, or disable the slot "
        "(airflow dtrain hosts disable --slot)"
    )


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


def user_name(uid: int) -> str:
    """Return the name of an account, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ------------------------------------------------------------------------------------------ folders


class RunFolder:
    """The files of one run on this host."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout, self.name = layout, name
        self.path = os.path.join(layout.state_dir, "runs", name)
        self.tombstone = os.path.join(layout.state_dir, "tombstones", name)

    def file(self, *parts: str) -> str:
        """Return the path of a file in the folder."""
        return os.path.join(self.path, *parts)

    def has(self, name: str) -> bool:
        """Return whether a file exists in the folder."""
        return os.path.lexists(self.file(name))

    @property
    def exists(self) -> bool:
        """Return whether a start of this run was attempted here. Its lock file may have been removed since."""
        return self.has("lock") or self.has("supervisor.json")

    @property
    def buried(self) -> bool:
        """Return whether this run must never start here."""
        return os.path.lexists(self.tombstone)

    def buried_launch(self, launch: str | None) -> bool:
        """Return whether this one launch of the run must never start here."""
        return launch is not None and os.path.lexists(f"{self.tombstone}+{launch}")

    def is_other_launch(self, launch: str | None) -> bool:
        """Return whether the run here is of another launch, False if either launch is unknown."""
        known = (self.plan() or {}).get("launch")
        return launch is not None and known is not None and launch != known

    def plan(self) -> Json | None:
        """Return the launch plan, None before it is written."""
        return read_json(self.file("plan.json"))

    def state(self) -> Json:
        """Return the state that the supervisor last recorded, {} before the first record."""
        return read_json(self.file("state.json")) or {}

    def ended(self) -> Json | None:
        """Return the record of the run's end, None before the end."""
        return read_json(self.file("ended")) if self.has("ended") else None

    def supervisor(self) -> Json | None:
        """Return the supervisor's identity."""
        return read_json(self.file("supervisor.json"))

    def renewal(self) -> Json:
        """Return the last renewal, {} before the first one and for a part of one."""
        content = read_bytes(self.file("renewed"), IN_PLACE_BYTES) or b""
        found = parse_object(content) or {}
        times = {key: found.get(key) for key in ("renewed_boottime_s", "deadline_boottime_s")}
        is_whole = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in times.values())
        known = checksum([*times.values()])
        # Only a record in place is as long, and can be read while it is written.
        told = found.get("checksum", known if len(content) < IN_PLACE_BYTES else None)
        return times if is_whole and told == known else {}

    def renew(self, reading: float, deadline: float) -> None:
        """Record a renewal: on a full disk in place, in the block that was allocated when the run was prepared.

        The checksum comes first in a record in place, so that it and the last one never mix to a valid record.
        """
        document = {"renewed_boottime_s": reading, "deadline_boottime_s": deadline}
        try:
            write_json(self.file("renewed"), document, durable=False)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            record = {"checksum": checksum([reading, deadline]), **document}
            overwrite(self.file("renewed"), json.dumps(record, separators=(",", ":")).encode())

    def alive(self) -> bool:
        """Return whether the supervisor lives."""
        return find_process(self.supervisor()) is not None

    def ring(self) -> bool:
        """Wake the supervisor to read its command files. Return whether it listens."""
        try:
            fd = os.open(self.file("control"), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(fd, b"!")
        except OSError:
            pass
        finally:
            os.close(fd)
        return True


class Layout:
    """Paths of all files and folders on this host.

    :param remote_dir: content-addressed archives; many hosts may share it
    :param state_dir: locks, pids and runs; must be on a file system of this host
    :param lock_dir: lock files that all accounts share; None: ``/run/lock`` if it can be used, ``none``: no folder
    """

    def __init__(self, remote_dir: str, state_dir: str | None = None, lock_dir: str | None = None) -> None:
        self.remote_dir = os.path.abspath(os.path.expanduser(remote_dir))
        default = f"/var/tmp/dtrain-{os.getuid()}/{machine_id()}"  # noqa: S108 - private, owner checked
        self.is_default = state_dir is None
        self.state_dir = os.path.abspath(os.path.expanduser(state_dir or default))
        wanted = os.path.abspath(lock_dir or LOCK_DIR)
        #: Reason why slots are locked against this account only, None if they are locked against all.
        self.lock_problem = "lock_dir is 'none'" if lock_dir == NO_LOCK_DIR else why_no_lock_dir(wanted)
        self.lock_dir = None if self.lock_problem else wanted
        self.needs_lock_dir = lock_dir not in (None, NO_LOCK_DIR)

    def ensure(self) -> Layout:
        """Create the folders of ``state_dir`` and return self.

        :raises Refused: ``state_dir`` is on a network file system or belongs to another account; ``lock_dir`` was
            set and cannot be used
        """
        if self.needs_lock_dir and self.lock_problem:
            raise Refused("lock_dir", self.lock_problem)
        point, kind = mount_of(self.state_dir)
        if kind in NETWORK_FILE_SYSTEMS:
            raise Refused(
                "state_dir",
                f"state_dir {self.state_dir} must be on a local file system, because it holds locks and pids. It is on "
                f"{kind} (mounted at {point}). Set state_dir to a local folder.",
            )
        if self.is_default:
            make_private(os.path.dirname(self.state_dir))
        make_private(self.state_dir)
        for name in ("slots", "tombstones", "runs"):
            make_private(os.path.join(self.state_dir, name))
        return self

    def run(self, name: str) -> RunFolder:
        """Return a run's folder. The caller has checked the name."""
        return RunFolder(self, name)

    def runs(self) -> list[str]:
        """Return the names of all runs that have a folder here."""
        with contextlib.suppress(OSError):
            return sorted(n for n in os.listdir(os.path.join(self.state_dir, "runs")) if RUN_NAME.fullmatch(n))
        return []

    def slots(self) -> list[int]:
        """Return all slots that were ever locked here."""
        names = (name.partition(".") for name in names_in(os.path.join(self.state_dir, "slots")))
        return sorted(int(index) for index, _, kind in names if kind == "lock" and index.isdigit())

    def slot_lock(self, index: int) -> str:
        """Return the lock file of a slot for this account. Its content names the last run of the slot."""
        return os.path.join(self.state_dir, "slots", f"{index}.lock")

    def machine_lock(self, index: int, device: str | None) -> str | None:
        """Return the lock file of a slot for all accounts, None without a ``lock_dir``."""
        if self.lock_dir is None:
            return None
        name = f"cpu-{index}" if device is None else device.replace("/", "_")
        return os.path.join(self.lock_dir, f"dtrain-{name}.lock")

    def archive(self, kind: str, digest: str) -> str:
        """Return the path of an archive."""
        return os.path.join(self.remote_dir, kind, f"{digest}.tar.gz")

    def library(self, digest: str) -> str:
        """Return the folder of an unpacked library."""
        return os.path.join(self.remote_dir, "libraries", digest)

    def bury(self, run: str, token: int | None, launch: str | None = None) -> None:
        """Write a durable tombstone that forbids every later start of a run.

        :param launch: the only launch that is forbidden; None = all
        """
        folder = self.run(run)
        path = folder.tombstone if launch is None else f"{folder.tombstone}+{launch}"
        if os.path.lexists(path):
            # The process that wrote it may have been killed before the name was durable.
            return sync_folder(os.path.dirname(path))
        write_json(path, {"run": run, "token": token, "at": time.time()})

    def tokens(self, index: int) -> Json:
        """Return the highest token of each store that used a slot."""
        return read_json(os.path.join(self.state_dir, "slots", f"{index}.token")) or {}

    def stores(self) -> Json:
        """Return the highest token seen of each store."""
        found = (read_json(os.path.join(self.state_dir, "store.json")) or {}).get("stores")
        return found if isinstance(found, dict) else {}

    def record_tokens(self, store: str, token: int, slots: Iterable[int]) -> None:
        """Raise the recorded tokens of a store. They never decrease."""
        lock = wait_lock(os.path.join(self.state_dir, "store.lock"), 10.0)
        try:
            for index in slots:
                known = self.tokens(index)
                if number(known.get(store)) < token:
                    path = os.path.join(self.state_dir, "slots", f"{index}.token")
                    write_json(path, {**known, store: token}, sync_names=False)
            sync_folder(os.path.join(self.state_dir, "slots"))
            stores = self.stores()
            if number(stores.get(store)) < token:
                write_json(os.path.join(self.state_dir, "store.json"), {"stores": {**stores, store: token}})
        finally:
            os.close(lock)


def number(value: Any) -> int:
    """Return a recorded integer, -1 for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


# -------------------------------------------------------------------------------------------- locks


def take_lock(path: str, *, shared: bool = False) -> int | None:
    """Return a descriptor that holds the lock of a file, None if another process holds it.

    :param shared: only probe the lock; concurrent probes do not block each other
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not lock_file(fd, shared=shared):
            return None
        if is_file_at(fd, path):
            return fd
        os.close(fd)


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
    if not os.path.lexists(path):
        return False
    fd = take_lock(path, shared=True)
    if fd is None:
        return True
    os.close(fd)
    return False


def why_no_lock_dir(path: str) -> str | None:
    """Return the reason why a folder cannot hold the lock files of all accounts, None if it can."""
    try:
        found = os.lstat(path)
    except OSError as error:
        words = f"it cannot be read: {error.strerror}"
    else:
        owner, kind = user_name(found.st_uid), mount_of(path)[1]
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode):
            words = f"it is {kind_of(found)}"
        elif found.st_uid != 0 or not mode & stat.S_ISVTX or not mode & stat.S_IWOTH:
            words = f"it has mode {mode:04o} and belongs to user {owner}"
        elif kind in NETWORK_FILE_SYSTEMS:
            words = f"it is on {kind}, not on a file system of the host itself"
        else:
            return None
    return (
        f"lock_dir {path} must be a folder of root with mode 1777, {words}. "
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
        words = f"found {kind_of(found)} with mode {stat.S_IMODE(found.st_mode):04o} and {found.st_nlink} name(s)"
        words += f" of user {user_name(found.st_uid)}"
    except OSError as error:
        words = f"it cannot be read: {error.strerror}"
    return Refused(
        "slot_busy",
        f"Lock file {path} must be a regular file with mode 0444 and one name, {words}. "
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


def lock_holders(path: str) -> list[Proc]:
    """Return the processes that hold the lock of a file, according to /proc/<pid>/fdinfo."""
    try:
        wanted = os.stat(path)
    except OSError:
        return []
    found = []
    for proc in all_procs().values():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{proc.pid}/fd"):
                if holds_lock(proc.pid, fd, wanted):
                    found.append(proc)
                    break
    return found


def holds_lock(pid: int, fd: str, wanted: os.stat_result) -> bool:
    """Return whether a descriptor of a process holds the lock of a file. An open file alone does not."""
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
        return False
    return any(
        line.startswith("lock:") and "FLOCK" in line and "WRITE" in line
        for line in (read_text(f"/proc/{pid}/fdinfo/{fd}") or "").splitlines()
    )


# ------------------------------------------------------------------------------------------- events


def encode_event(record: Json) -> bytes:
    """Return the line of an event: checksum, blank, JSON."""
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_event(line: bytes) -> Json | None:
    """Return the event of a line, None if the line is damaged."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    return parse_object(body) if checksum == b"%08x" % zlib.crc32(body) else None


class EventWriter:
    """The only writer of a run's ``events.supervisor``. Its process must hold the run's lock."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        content = os.pread(self.fd, 64 << 20, 0)
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            # Partial lines are never sent, so this truncation does not affect any offset.
            os.ftruncate(self.fd, whole)
        records = [record for record in map(decode_event, content[:whole].splitlines()) if record]
        self.seq = max((number(record.get("seq")) for record in records), default=0)
        self.last = records[-1] if records else None
        exits = (one for one in records if one.get("kind") == "exit" and not one.get("sent_signal"))
        self.first_failure = next((one.get("rank") for one in exits if one.get("exit_code")), None)

    def write(self, record: Json) -> None:
        """Append one event, or leave the file unchanged. Ends of ranks and runs are durable at once."""
        size = os.fstat(self.fd).st_size
        try:
            write_all(self.fd, encode_event({"seq": self.seq + 1, **record}))
            if record["kind"] in ("exit", "ended"):
                os.fsync(self.fd)
        except OSError:
            os.ftruncate(self.fd, size)
            raise
        self.seq += 1
        self.last = record

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


# ------------------------------------------------------------------------------------------ samples


class Sampler:
    """Measurement of this host and the GPUs of a run, in its own process.

    The supervisor has one thread and must never wait for a disk or a driver. A second thread of this process
    queries the GPUs, so that a driver that hangs affects only the figures of the GPUs.

    One line per interval, ``kind`` ``system``: ``cpu_util`` (percent, mean over the CPUs), ``memory_available``
    (bytes), and since the last line, per second, ``net_sent``, ``net_recv``, ``disk_read``, ``disk_write`` (bytes)
    and ``disk_iops``; ``gpus``: ``uuid``, ``gpu_util`` (percent), ``gpu_free_memory`` (bytes). A figure that
    cannot be measured is omitted.
    """

    def __init__(self, path: str, interval_s: float, devices: list[str], limit: int = SAMPLES_LIMIT) -> None:
        self.interval_s, self.devices, self.limit = interval_s, devices, limit
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.written = os.fstat(self.fd).st_size
        self.thin_at = limit // 2
        self.seq = 0
        self.gpus: list[Json] = []
        self.gpus_at = 0.0
        self.wanted: dict[str, bool] = {}

    def run(self) -> None:
        """Write samples until the process is killed or the file is full."""
        if self.devices:
            threading.Thread(target=self._ask_gpus, daemon=True).start()
        before, before_at = self._counters(), time.monotonic()
        while self.has_room():
            time.sleep(self.interval_s)
            after, now = self._counters(), time.monotonic()
            self._write("system", self.sample(before, after, now - before_at))
            before, before_at = after, now
            self._thin()

    def has_room(self) -> bool:
        """Return whether the file may take another line."""
        return self.written < self.thin_at

    def sample(self, before: dict[str, float], after: dict[str, float], elapsed_s: float) -> Json:
        """Return the figures for the time between two readings of the counters."""
        found: Json = {}
        change = {name: after[name] - before[name] for name in after if name in before}
        if change.get("cpu_all"):
            found["cpu_util"] = round(100 * max(0.0, 1 - change["cpu_idle"] / change["cpu_all"]), 2)
        if "memory_available" in after:
            found["memory_available"] = int(after["memory_available"])
        for name in ("net_sent", "net_recv", "disk_iops", "disk_read", "disk_write"):
            if name in change:
                # The counters of a removed interface or disk leave the sum, so it may fall.
                found[name] = round(max(0.0, change[name]) / elapsed_s, 1)
        if self.gpus and time.monotonic() - self.gpus_at < 3 * self.interval_s + 1.0:
            found["gpus"] = self.gpus
        return found

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in (self._cpu, self._memory, self._network, self._disks):
            with contextlib.suppress(OSError, ValueError, IndexError):
                found.update(part())
        return found

    @staticmethod
    def _cpu() -> dict[str, float]:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return {"cpu_all": sum(ticks), "cpu_idle": ticks[3] + ticks[4]}

    @staticmethod
    def _memory() -> dict[str, float]:
        with open("/proc/meminfo", encoding="ascii") as file:
            words = next(line.split() for line in file if line.startswith("MemAvailable:"))
        return {"memory_available": int(words[1]) * 1024}

    def _network(self) -> dict[str, float]:
        sent = received = 0
        with open("/proc/net/dev", encoding="utf-8") as file:
            for line in list(file)[2:]:
                name, _, counts = line.partition(":")
                if self._counts("/sys/class/net", name.strip()):
                    words = counts.split()
                    received, sent = received + int(words[0]), sent + int(words[8])
        return {"net_sent": sent, "net_recv": received}

    def _disks(self) -> dict[str, float]:
        operations = read = written = 0
        with open("/proc/diskstats", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if self._counts("/sys/block", words[2]):
                    operations += int(words[3]) + int(words[7])
                    read, written = read + int(words[5]) * 512, written + int(words[9]) * 512
        return {"disk_iops": operations, "disk_read": read, "disk_write": written}

    def _counts(self, kind: str, name: str) -> bool:
        """Return whether a disk or interface is counted. Those on top of another one are not."""
        path = f"{kind}/{name}"
        if path not in self.wanted:
            if kind == "/sys/block":
                # No partitions here. Volumes, arrays and mappings have slaves. A loop device reads another file system.
                inner = re.match(r"loop|ram|zram|fd|sr", name) is not None
                self.wanted[path] = not inner and os.path.isdir(path) and not names_in(f"{path}/slaves")
            else:
                # Bonds, bridges and VLANs forward traffic that the interface below them counts too.
                upper = any(entry.startswith("lower_") for entry in names_in(path))
                self.wanted[path] = not upper and name != "lo" and not CONTAINER_INTERFACES.match(name)
        return self.wanted[path]

    def _ask_gpus(self) -> None:
        """Update the GPUs' latest figures until the library fails. Return at once without the library."""
        with contextlib.suppress(Exception), Nvml.opened() as nvml:
            if nvml is None:
                return
            handles = [(uuid, nvml.handle_of(uuid)) for uuid in self.devices]
            while True:
                found = [{"uuid": uuid, **nvml.load(handle)} for uuid, handle in handles if handle is not None]
                self.gpus, self.gpus_at = found, time.monotonic()
                time.sleep(self.interval_s)

    def _write(self, kind: str, fields: Json) -> None:
        line = encode_event({"seq": self.seq + 1, "at": round(time.time(), 3), "kind": kind, **fields})
        try:
            write_all(self.fd, line)
        except OSError:
            # The disk is full. Samples are dropped first.
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.written)
            return
        self.seq += 1
        self.written += len(line)

    def _thin(self) -> None:
        """Halve the rate each time half of the remaining limit is used, so that the file never reaches it."""
        while self.written >= self.thin_at and self.limit - self.thin_at >= 4096:
            self.interval_s *= 2
            self.thin_at += (self.limit - self.thin_at) // 2
            self._write("interval", {"interval_s": self.interval_s})


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, [] if there is none."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def start_sampler(folder: RunFolder, interval_s: float, devices: list[str]) -> int:
    """Fork the process that writes a run's samples and return its pid. It dies with its parent."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number_ in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number_, signal.SIG_DFL)
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        # Above all the locks of the slots and of the run: this process must not hold them after the supervisor.
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        if os.getppid() == parent:
            Sampler(folder.file("samples"), interval_s, devices).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


# -------------------------------------------------------------------------------------- containment


class Cgroup:
    """A run's own cgroup v2. One write kills every process in it, including detached ones."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def create(cls, folder: RunFolder) -> Cgroup | None:
        """Return a new cgroup for a run, None if this account may not create one."""
        if os.environ.get("DTRAIN_NO_CGROUP"):
            return None
        parent = own_cgroup()
        # A group below the account's own systemd ends with the last session, unless the account lingers.
        if parent is None or (f"/user@{os.getuid()}.service/" in f"{parent}/" and not lingers()):
            return None
        # Containers of one machine may share the hierarchy and use the same run names.
        unique = f"{machine_id()} {pid_namespace()} {folder.path}"
        suffix = hashlib.sha256(unique.encode()).hexdigest()[:12]
        group = cls(os.path.join(parent, f"dtrain-{folder.name}-{suffix}"))
        try:
            group.remove()
            os.mkdir(group.path, 0o700)
            if os.path.exists(os.path.join(group.path, "cgroup.kill")):
                return group
            os.rmdir(group.path)
        except OSError:
            pass
        return None

    @classmethod
    def known(cls, path: Any) -> Cgroup | None:
        """Return the cgroup that a dead supervisor recorded, None unless it is the cgroup of a run."""
        if not isinstance(path, str) or not CGROUP_NAME.fullmatch(os.path.basename(path)):
            return None
        ours = any(os.path.dirname(path).startswith(mount) for mount, _ in cgroup_mounts())
        return cls(path) if ours and ".." not in path.split("/") and os.path.isdir(path) else None

    def enter(self) -> bool:
        """Move the calling process into the cgroup. Return whether it is inside."""
        return self._move(self.path) and self.is_inside()

    def leave(self) -> bool:
        """Move the calling process to the parent of the cgroup. Return whether it is outside."""
        return self._move(os.path.dirname(self.path)) and not self.is_inside()

    def is_inside(self) -> bool:
        """Return whether the calling process is in the cgroup."""
        return os.path.basename(self.path) in (read_text("/proc/self/cgroup") or "")

    @staticmethod
    def _move(path: str) -> bool:
        try:
            with open(os.path.join(path, "cgroup.procs"), "wb", buffering=0) as file:
                file.write(b"0")
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to all processes inside, including children forked meanwhile."""
        with contextlib.suppress(OSError), open(os.path.join(self.path, "cgroup.kill"), "wb", buffering=0) as file:
            file.write(b"1")

    def pids(self) -> list[int]:
        """Return the pids inside, including those in nested cgroups."""
        files = (os.path.join(path, "cgroup.procs") for path, _, _ in os.walk(self.path))
        return [int(pid) for file in files for pid in (read_text(file) or "").split() if pid.isdigit()]

    def remove(self) -> None:
        """Remove the cgroup and those that the ranks created in it. A cgroup with processes stays."""
        with contextlib.suppress(OSError):
            for path, _, _ in os.walk(self.path, topdown=False):
                os.rmdir(path)


def cgroup_mounts() -> list[tuple[str, str]]:
    """Return mount point and root of every cgroup v2 mount, including ``unified`` of a hybrid host."""
    found = []
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            found.append((unescape_mount(left.split()[4]), unescape_mount(left.split()[3])))
    return found


def own_cgroup() -> str | None:
    """Return the folder of this process's cgroup v2, None if it is missing or not writable."""
    match = re.search(r"^0::(.*)$", read_text("/proc/self/cgroup") or "", re.MULTILINE)
    for mount, root in cgroup_mounts() if match else ():
        path = match.group(1) if match else "/"
        if root != "/":
            if path != root and not path.startswith(root + "/"):
                continue
            path = path[len(root) :]
        folder = os.path.normpath(mount + "/" + path)
        if "/../" not in path + "/" and os.access(folder, os.W_OK):
            return folder
    return None


def environment_names(pid: int, folder: RunFolder) -> bool:
    """Return whether a process's environment names the run of exactly this folder."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(4 << 20).split(b"\0")
    except OSError:
        return False
    wanted = (b"DTRAIN_RUN=" + folder.name.encode(), b"DTRAIN_RUN_DIR=" + os.fsencode(folder.path))
    return all(one in variables for one in wanted)


def leftovers(folder: RunFolder) -> list[Proc]:
    """Return the living processes of a run whose supervisor is gone.

    They are found by the run's cgroup, by its ranks (pid and start time) and their descendants, by
    their environment, by the slot locks that they hold, and below the run's reaper. This process and
    its ancestors are never returned.
    """
    procs = all_procs()
    found: dict[int, Proc] = {}
    known = folder.supervisor() or {}
    if known.get("boot_id") == boot_id() and known.get("pid_ns") == pid_namespace():
        ranks = [procs.get(number(rank.get("pid"))) for rank in rank_records(folder)]
        starts = {number(rank.get("pid")): rank.get("start_time") for rank in rank_records(folder)}
        mine = [proc for proc in ranks if proc is not None and proc.start_time == starts[proc.pid]]
        group = Cgroup.known(known.get("cgroup"))
        inside = [procs[pid] for pid in (group.pids() if group else ()) if pid in procs]
        for proc in [*mine, *inside, *descendants([proc.pid for proc in [*mine, *inside]], procs)]:
            found[proc.pid] = proc
        # The reaper inherits the children of its dead supervisor, also a sampler stuck in a driver, which is skipped.
        if (reaper := find_reaper(folder)) is not None:
            found.update({one.pid: one for one in descendants([reaper.pid], procs) if not is_ours(one.pid)})
    for proc in procs.values():
        if proc.pid not in found and environment_names(proc.pid, folder):
            found[proc.pid] = proc
    for proc in slot_keepers(folder):
        found[proc.pid] = proc
    for pid in ancestors(os.getpid(), procs):
        found.pop(pid, None)
    return [proc for proc in found.values() if not is_dead(proc)]


def rank_records(folder: RunFolder) -> list[Json]:
    """Return the supervisor's records of its ranks."""
    ranks = folder.state().get("ranks")
    return [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []


def slot_keepers(folder: RunFolder) -> list[Proc]:
    """Return the processes that hold a slot lock taken by this run, even if its folder is gone."""
    found: list[Proc] = []
    for index in folder.layout.slots():
        path = folder.layout.slot_lock(index)
        if (read_json(path) or {}).get("run") == folder.name and is_locked(path):
            found += lock_holders(path)
    return found


def ancestors(pid: int, procs: dict[int, Proc]) -> set[int]:
    """Return the pids of a process and of its ancestors."""
    found: set[int] = set()
    while pid in procs and pid not in found:
        found.add(pid)
        pid = procs[pid].ppid
    return found


#: Path of this program on hosts, and in a checkout.
OWN_FILE = re.compile(r"(.*/)?(supervisor/[0-9a-f]{64}|airflow_provider_dtrain/hosts/supervisor)\.py")


def is_ours(pid: int) -> bool:
    """Return whether a process is a role of this program. No role ever executes user code."""
    argv = (read_text(f"/proc/{pid}/cmdline") or "").split("\0")
    return len(argv) > 2 and OWN_FILE.fullmatch(argv[1]) is not None and argv[2] in ROLES


def find_reaper(folder: RunFolder) -> Proc | None:
    """Return the living reaper of a run, None if it is gone or an older version started the run."""
    known = folder.supervisor() or {}
    reaper = known.get("reaper")
    return find_process({**known, **reaper}) if isinstance(reaper, dict) else None


def origin() -> Json:
    """Return properties that every descendant of this process shares and no ordinary system call changes.

    ``heirs`` are the processes above the reaper, nearest first. One of them inherits the reaper's orphans.
    """
    heirs: list[Json] = []
    session = os.getsid(0)
    # The process that forked the reaper leads the session and exits at once. The run must not start before that.
    while (reaper := read_proc(os.getppid())) is not None and reaper.ppid == session:
        time.sleep(0.0005)
    heir = read_proc(reaper.ppid) if reaper else None
    while heir is not None and len(heirs) < 64:
        heirs.append({"pid": heir.pid, "start_time": heir.start_time})
        heir = read_proc(heir.ppid)
    return {"heirs": heirs, "session": session, **place_of(os.getpid())}


def place_of(pid: int) -> Json:
    """Return the kernel's login session of a process, and its place in the hierarchy of systemd."""
    groups = (read_text(f"/proc/{pid}/cgroup") or "").splitlines()
    group = [line.partition(":")[2] for line in groups if line.split(":")[1:2] in ([""], ["name=systemd"])]
    return {"login": read_text(f"/proc/{pid}/sessionid"), "group": sorted(group)}


def suspects(folder: RunFolder) -> list[Proc]:
    """Return the possible leftovers of a run whose supervisor and reaper are both gone.

    They belong to this account, are younger than the run, belong to no known run, and either share a session with the
    run or were inherited by the process that inherits the run's orphans. They are not killed, because another program
    of the user may look the same. A process with another login session or another place in systemd's hierarchy than
    the run is no suspect, because neither changes without privileges.
    """
    known = folder.supervisor() or {}
    start = number(known.get("start_time"))
    if has_ended(folder) or not folder.has("started") or start < 0 or is_proved(known) or is_swept(folder, known):
        return []
    procs = all_procs()
    told = (read_json(folder.file("started")) or {}).get("origin")
    source: Json = told if isinstance(told, dict) else {}
    parents, sessions = orphans_parents(source, procs), {number(rank.get("pid")) for rank in rank_records(folder)}
    sessions.add(number(source.get("session")))
    first = [
        proc for proc in procs.values()
        if proc.start_time >= start and (proc.ppid in parents or (proc.session in sessions and proc.session > 0))
        and is_suspect(proc, source)
    ]  # fmt: skip
    found = {proc.pid: proc for proc in [*first, *descendants([proc.pid for proc in first], procs)]}
    spared = known_processes(procs) | ancestors(os.getpid(), procs)
    return [proc for proc in found.values() if proc.pid not in spared and not is_dead(proc)]


def is_swept(folder: RunFolder, known: Json) -> bool:
    """Return whether the run's own reaper ended without a child.

    A mark that names no supervisor does not count. Reapers of older versions also wrote it for runs of others.
    """
    swept = (read_json(folder.file("swept")) or {}).get("supervisor")
    return isinstance(swept, dict) and is_same(swept, known)


def has_ended(folder: RunFolder) -> bool:
    """Return whether a run has ended, and its record of that rests on no mark that proves nothing.

    A ``follow`` of an older version accepts any mark as proof. The end that it recorded then is checked again.
    """
    if not folder.has("ended") or not folder.has("swept"):
        return folder.has("ended")
    return folder.state().get("state") == "ended" or is_swept(folder, folder.supervisor() or {})


def is_proved(known: Json) -> bool:
    """Return whether a run without supervisor provably has no process: another boot, or an empty cgroup."""
    if known.get("boot_id") != boot_id() or known.get("pid_ns") != pid_namespace():
        return True
    path = known.get("cgroup")
    return isinstance(path, str) and not (os.path.isdir(path) and Cgroup(path).pids())


def orphans_parents(source: Json, procs: dict[int, Proc]) -> set[int]:
    """Return the pids that may have inherited a run's orphans, none for a run started by an older version."""
    heirs = source.get("heirs")
    heirs = [heir for heir in heirs if isinstance(heir, dict)] if isinstance(heirs, list) else []
    living = [procs[heir["pid"]].pid for heir in heirs
              if heir.get("pid") in procs and procs[heir["pid"]].start_time == heir.get("start_time")]  # fmt: skip
    # The nearest heir inherits. Once it is gone, any of the heirs above it may have inherited.
    return set(living[:1] if len(living) == len(heirs) else living)


def is_suspect(proc: Proc, source: Json) -> bool:
    """Return whether a process has this account, and the run's login session and place if they are known."""
    if real_uid(proc.pid) != os.getuid():
        return False
    place = place_of(proc.pid)
    return all(place[key] == source.get(key, place[key]) for key in place)


def known_processes(procs: dict[int, Proc]) -> set[int]:
    """Return the pids of all roles of this program, of any ``state_dir``, and of their descendants."""
    roles = [proc.pid for proc in procs.values() if is_ours(proc.pid)]
    return {*roles, *(proc.pid for proc in descendants(roles, procs))}


def left_of(folder: RunFolder) -> tuple[list[Proc], list[Proc]]:
    """Return the living processes of a run without supervisor, and its suspects if there are none.

    The reaper is returned if it is the only process left.
    """
    found = leftovers(folder)
    if not found and (reaper := find_reaper(folder)) is not None:
        found = [reaper]
    return found, [] if found else suspects(folder)


def has_left(folder: RunFolder) -> bool:
    """Return whether a started run without supervisor may still have processes."""
    return folder.has("started") and not has_ended(folder) and not folder.alive() and any(left_of(folder))


def remains(folder: RunFolder) -> tuple[list[Proc], list[Proc]]:
    """Kill the leftovers of a run without supervisor. Return the processes that survive, and the suspects."""
    kill_leftovers(folder)
    if (reaper := find_reaper(folder)) is not None and reaper.state in "Tt":
        send_signal(reaper, signal.SIGCONT)
    return left_of(folder)


def kill_leftovers(folder: RunFolder) -> list[Proc]:
    """Kill the leftovers of a run without supervisor. Return the processes that were alive before."""
    group = Cgroup.known((folder.supervisor() or {}).get("cgroup"))
    if group is not None:
        group.kill()
    found = leftovers(folder)
    for proc in found:
        send_signal(proc, signal.SIGKILL)
    if group is not None and not found:
        group.remove()
    return found


# ----------------------------------------------------------------------------------------- archives


def receive_archive(layout: Layout, kind: str, digest: str, source: IO[bytes]) -> None:
    """Store an incoming archive, completely and with the right digest or not at all.

    :raises Refused: wrong digest, or the folder cannot be written
    """
    target = layout.archive(kind, digest)
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    temporary = f"{target}.{os.getpid()}.{random.getrandbits(48):012x}.tmp"
    seen = hashlib.sha256()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            while chunk := source.read(1 << 20):
                seen.update(chunk)
                write_all(fd, chunk)
            if seen.hexdigest() != digest:
                words = f"The archive must have SHA-256 {digest}, got {seen.hexdigest()}. Send it again."
                raise Refused("digest", words)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(target))


def bad_archive(name: str, words: str) -> Refused:
    """Return the refusal for a member of an archive."""
    return Refused("bad_archive", f"Archive member {shorten(name)} {words}. It was not unpacked.")


def member_parts(name: str) -> list[str]:
    """Return the parts of a member's path.

    :raises Refused: the path is absolute or leads upwards
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or "\0" in name or ".." in parts or len(name) > 4096:
        raise bad_archive(name, "has a path that leads outside")
    return parts


def check_link(name: str, target: str, depth: int) -> None:
    """Refuse a symbolic link that may lead outside.

    A target may have only leading ``..`` parts, at most as many as the depth of the link. No member is
    ever written through a link, so such a target stays inside whatever the rest of it passes through.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or "\0" in target or ups > depth or ".." in parts[ups:]:
        raise bad_archive(name, f"links to {shorten(target)}, which leads outside")


def real_parent(root: str, parts: list[str], name: str) -> str:
    """Create and return the folder for a member. No part of its path is a link."""
    path = root
    for part in parts[:-1]:
        path = os.path.join(path, part)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise bad_archive(name, "is below a path that is not a folder")
    return path


def unpack(archive: tarfile.TarFile, root: str) -> None:
    """Unpack files, folders and inner links below ``root``, readable by this account only.

    :raises Refused: a member has a path or link that leads outside, or is a device
    """
    total = 0
    for count, member in enumerate(archive):
        parts = member_parts(member.name)
        total += max(0, member.size)
        if count >= MEMBER_LIMIT or total > UNPACKED_LIMIT:
            raise bad_archive(member.name, f"exceeds {MEMBER_LIMIT} members or {UNPACKED_LIMIT} bytes")
        if parts:
            unpack_member(archive, member, root, parts)
        elif not member.isdir():
            raise bad_archive(member.name, "has no name")


def unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str, parts: list[str]) -> None:
    """Unpack one checked member."""
    path = os.path.join(real_parent(root, parts, member.name), parts[-1])
    found = os.lstat(path) if os.path.lexists(path) else None
    if member.isdir():
        if found is None:
            os.mkdir(path, 0o700)
        elif not stat.S_ISDIR(found.st_mode):
            raise bad_archive(member.name, "is a folder, but its path is already a file")
        return
    if found is not None:
        if stat.S_ISDIR(found.st_mode):
            raise bad_archive(member.name, "is a file, but its path is already a folder")
        os.unlink(path)
    if member.issym():
        check_link(member.name, member.linkname, len(parts) - 1)
        os.symlink(member.linkname, path)
    elif member.islnk():
        inner = member_parts(member.linkname)
        source = below(root, "/".join(inner)) if inner else ""
        if not source or not os.path.isfile(source):
            raise bad_archive(member.name, "is a hard link to a file that does not exist")
        os.link(source, path, follow_symlinks=False)
    elif member.isreg():
        unpack_file(archive, member, path)
    else:
        raise bad_archive(member.name, "is neither file, folder nor link")


def unpack_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Write a regular member. Of its metadata, only the executable bit and the time are kept."""
    source = archive.extractfile(member)
    mode = 0o700 if member.mode & 0o100 else 0o600
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        while source is not None and (chunk := source.read(1 << 20)):
            write_all(fd, chunk)
        if 0 <= member.mtime < 1 << 33:
            os.utime(fd, (member.mtime, member.mtime))
    finally:
        os.close(fd)


def unpack_archive(path: str, target: str) -> None:
    """Unpack a tar.gz into a folder atomically. An existing folder stays unchanged."""
    if os.path.isdir(target):
        return
    temporary = f"{target}.{os.getpid()}.{random.getrandbits(48):012x}.tmp"
    os.makedirs(temporary, mode=0o700)
    try:
        try:
            with tarfile.open(path, "r:gz") as archive:
                unpack(archive, temporary)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise Refused("bad_archive", f"{os.path.basename(path)} is damaged: {error}. Send it again.") from error
        os.rename(temporary, target)
    except OSError as error:
        # Another run unpacked the same content first.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def send_tree(path: str, target: IO[bytes]) -> None:
    """Write a tar of a file or folder, named by its last part, without sockets and devices."""

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None

    with tarfile.open(fileobj=target, mode="w|") as archive:
        archive.add(path, arcname=os.path.basename(path), filter=wanted)


# ------------------------------------------------------------------------------------------ outputs


class OutputFile(NamedTuple):
    """A file that ranks wrote or changed."""

    #: Relative to the run's folder.
    path: str
    size: int
    mtime: float
    #: Text that differs after each change.
    version: str


def version_of(found: os.stat_result) -> str:
    """Return a version of a file that differs after each change."""
    return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}"


def output_file(path: str, found: os.stat_result) -> OutputFile:
    """Return the record of a file, with its time clipped to the range of archives."""
    return OutputFile(path, found.st_size, min(max(0.0, found.st_mtime), float(1 << 33)), version_of(found))


def walk_files(folder: RunFolder, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of all but folders below a folder of a run, without the caches of Python.

    A folder that cannot be read, or is nested too deep for outputs, is yielded in place of its content.
    """
    if not os.path.isdir(folder.file(name)) or os.path.islink(folder.file(name)):
        return
    waiting = [name]
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(OSError):
            status = os.lstat(folder.file(path))
            is_shallow = path.count("/") < OUTPUT_DEPTH
            is_folder = stat.S_ISDIR(status.st_mode)
            if not (is_folder and is_shallow and os.access(folder.file(path), os.R_OK | os.X_OK)):
                yield path, status
            elif os.path.basename(path) != "__pycache__":
                waiting += [os.path.join(path, one) for one in sorted(os.listdir(folder.file(path)), reverse=True)]


def note_baseline(folder: RunFolder) -> None:
    """Record the files of the user's code, once. A file that differs later was written by the ranks."""
    if not folder.has("baseline.json"):
        found = {path: version_of(status) for path, status in walk_files(folder, "work")}
        write_json(folder.file("baseline.json"), found, durable=False)


def take_carried(folder: RunFolder, name: str | None) -> None:
    """Move the files of the previous attempt to their places, over those of the user's code."""
    root = folder.file(f"carried-{name}")
    for base, _, files in os.walk(root) if name is not None else ():
        for one in files:
            parts = os.path.relpath(os.path.join(base, one), root).split(os.sep)
            # A path that became a link or a folder in the user's code stays as it is.
            with contextlib.suppress(Refused, IsADirectoryError, NotADirectoryError):
                if parts[0] in OUTPUT_FOLDERS:
                    os.replace(os.path.join(base, one), os.path.join(real_parent(folder.path, parts, one), parts[-1]))
    for entry in names_in(folder.path):
        if entry.startswith("carried-"):
            shutil.rmtree(folder.file(entry), ignore_errors=True)


class Outputs:
    """Sender of the files that ranks wrote or changed, as a tar whose last member lists its content.

    :param known: path -> version of the files that the control side has
    :param limit_bytes: largest total size of the files
    """

    def __init__(self, folder: RunFolder, known: Json, limit_bytes: int, limit_files: int) -> None:
        self.folder, self.known, self.limit_bytes, self.limit_files = folder, known, limit_bytes, limit_files
        #: path -> [size, mtime, version] of each file that is sent or known.
        self.files: dict[str, list[Any]] = {}
        self.unsettled: list[str] = []
        self.left_out: list[tuple[int, str]] = []
        #: Number of entries that are not sent: links, sockets, odd paths, unreadable ones, those beyond the limits.
        self.others = 0
        self.total = 0

    def send(self, target: IO[bytes]) -> None:
        """Write the archive."""
        with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            waiting = [file for file in self.chosen() if not self._send(archive, file, is_last=False)]
            deadline = time.monotonic() + SETTLE_WAIT_S
            while waiting:
                is_last = time.monotonic() > deadline
                if not is_last:
                    time.sleep(0.25)
                waiting = [file for file in waiting if not self._send(archive, file, is_last=is_last)]
            content = json.dumps(self.end()).encode()
            member = tarfile.TarInfo(OUTPUTS_END)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    def end(self) -> Json:
        """Return the content of the last member."""
        largest = sorted(self.left_out, reverse=True)[:3]
        left_out = {"files": len(self.left_out), "bytes": sum(size for size, _ in self.left_out),
                    "largest": [path for _, path in largest]}  # fmt: skip
        return {"files": self.files, "unsettled": self.unsettled, "left_out": left_out, "others": self.others}

    def chosen(self) -> list[OutputFile]:
        """Return the files up to the limits: checkpoints first, then those changed last."""
        chosen: list[OutputFile] = []
        for file in sorted(self.found(), key=lambda file: (not file.path.startswith("checkpoints/"), -file.mtime)):
            if self.total + file.size > self.limit_bytes or len(chosen) == self.limit_files:
                self.left_out.append((file.size, file.path))
                continue
            self.total += file.size
            chosen.append(file)
        return chosen

    def refreshed(self, file: OutputFile) -> OutputFile:
        """Return the current record of a file, or the given one if it has outgrown the limit or is no regular file."""
        now = os.lstat(self.folder.file(file.path))
        if not stat.S_ISREG(now.st_mode) or self.total + now.st_size - file.size > self.limit_bytes:
            return file
        self.total += now.st_size - file.size
        return output_file(file.path, now)

    def found(self) -> Iterator[OutputFile]:
        """Yield every file that did not come with the user's code."""
        baseline = parse_object(read_bytes(self.folder.file("baseline.json"), 1 << 30) or b"") or {}
        plan = self.folder.plan() or {}
        # Checkpoints on shared storage stay there.
        has_own = "DTRAIN_CHECKPOINT_DIR" not in (plan.get("env") or {})
        looks = 0
        for name in OUTPUT_FOLDERS:
            for path, status in walk_files(self.folder, name) if has_own or name != "checkpoints" else ():
                looks += 1
                version = version_of(status)
                if looks > OUTPUT_LOOKS:
                    self.others += 1
                elif not stat.S_ISREG(status.st_mode) or not is_plain_path(path):
                    self.others += baseline.get(path) != version
                elif baseline.get(path) != version:
                    yield output_file(path, status)

    def _send(self, archive: tarfile.TarFile, file: OutputFile, *, is_last: bool) -> bool:
        """Send a file unless it is known. Return False if the caller must try again."""
        source = None
        try:
            file = self.refreshed(file)
            is_known = self.known.get(file.path) == file.version
            if not is_known and not self._is_being_written(file):
                source = self._open(file)
            elif not is_known and not is_last:
                return False
        except FileNotFoundError:
            # Removed since the list was made.
            self.files.pop(file.path, None)
            return True
        except OSError:
            # Without access rights, or of another user. Errors of the archive itself end the role.
            self.others += 1
            return True
        if is_known or (source is not None and self._write(archive, file, source)):
            self.files[file.path] = [file.size, file.mtime, file.version]
        else:
            self.unsettled.append(file.path)
        return True

    def _open(self, file: OutputFile) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return open(self.folder.file(file.path), "rb", opener=lambda path, _: os.open(path, flags))

    def _write(self, archive: tarfile.TarFile, file: OutputFile, source: IO[bytes]) -> bool:
        """Send an open file and close it. Return whether it could be read and stayed unchanged meanwhile."""
        with source:
            fd = source.fileno()
            if version_of(os.fstat(fd)) != file.version:
                return False
            member = tarfile.TarInfo(file.path)
            member.size, member.mtime = file.size, int(file.mtime)
            member.mode = 0o755 if os.fstat(fd).st_mode & 0o100 else 0o644
            padded = Padded(source)
            archive.addfile(member, padded)
            return not padded.is_broken and version_of(os.fstat(fd)) == file.version

    def _is_being_written(self, file: OutputFile) -> bool:
        if time.time() - file.mtime > SETTLED_S:
            # Unchanged for a while: a log that is kept open, or a file without a writer.
            return False
        now = os.lstat(self.folder.file(file.path))
        return (now.st_dev, now.st_ino) in self._open_files()

    def _open_files(self) -> set[tuple[int, int]]:
        """Return device and inode of the files that processes of the run have open for writing."""
        found = set()
        parent = find_process(self.folder.supervisor())
        for proc in descendants([parent.pid], all_procs()) if parent is not None else ():
            for fd in names_in(f"/proc/{proc.pid}/fd"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    flags = (read_text(f"/proc/{proc.pid}/fdinfo/{fd}") or "").partition("flags:")[2].split()[0]
                    if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                        status = os.stat(f"/proc/{proc.pid}/fd/{fd}")
                        found.add((status.st_dev, status.st_ino))
        return found


class Padded:
    """A file that reads as zeros behind its end and after a read error, so that neither breaks the archive."""

    def __init__(self, source: IO[bytes]) -> None:
        self.source, self.is_broken = source, False

    def read(self, count: int = -1, /) -> bytes:
        """Return exactly ``count`` bytes."""
        data = b""
        try:
            data = b"" if self.is_broken else self.source.read(count)
        except OSError:
            self.is_broken = True
        return data + bytes(max(0, count - len(data)))


def is_plain_path(path: str) -> bool:
    """Return whether a path is text that JSON, archives and other file systems accept."""
    return len(path) <= OUTPUT_PATH and path.isprintable() and path.count("/") <= OUTPUT_DEPTH


# -------------------------------------------------------------------------------------------- plans


def check_plan(document: Any) -> Json:
    """Return a launch plan with every field checked and every default filled in.

    :raises Refused: ``bad_plan``, naming the field
    """
    plan = Fields(document, "plan")
    checked: Json = {
        "protocol": plan.integer("protocol", 1, PROTOCOL, default=PROTOCOL),
        "run": plan.run(),
        "store": plan.text("store", WORD),
        "token": plan.integer("token", 0, 10**18),
        #: Distinguishes a launch from an earlier one of the same name that a store restored from a backup has lost.
        "launch": plan.text("launch", WORD, default=None),
        "host": plan.text("host", limit=128, default=""),
        "world_size": plan.integer("world_size", 1, 1 << 20),
        "group_rank": plan.integer("group_rank", 0, 1 << 20, default=0),
        "group_world_size": plan.integer("group_world_size", 1, 1 << 20, default=1),
        "argv": plan.texts("argv", least=1, length=128 << 10),
        "python": plan.text("python", default=None),
        "env": plan.environment("env"),
        "payload": plan.text("payload", DIGEST, default=None),
        "library": plan.text("library", DIGEST, default=None),
        "context": plan.values.get("context"),
        "port_range": plan.port_range("port_range"),
        "master_local": plan.flag("master_local", default=False),
        "grace_s": plan.number("grace_s", 0, 86400, default=30),
        "orphan_timeout_s": plan.number("orphan_timeout_s", 0, 10**8, default=900),
        "prepare_timeout_s": plan.number("prepare_timeout_s", 0.01, 86400, default=120),
        "timeout_s": plan.number("timeout_s", 0.01, 10**9, default=None),
        "log_limit_bytes": plan.integer("log_limit_bytes", 1 << 16, 1 << 50, default=256 << 20),
        "cpu_slots": plan.flag("cpu_slots", default=False),
        #: Names the folder with the previous attempt's files, which is inside the run's folder; None = no such files.
        "carried": plan.text("carried", CARRIED, default=None),
        #: 0: system metrics are not sampled.
        "sampling_interval_s": plan.number("sampling_interval_s", 0, 86400, default=0),
    }
    checked["ranks"] = check_ranks(plan, checked["world_size"])
    if not checked["argv"][0]:
        raise plan.bad("argv.0", "must not be empty")
    if checked["token"] != int(checked["run"].rpartition(".")[2]):
        raise plan.bad("token", f"must be the last part of the run's name {checked['run']}, got {checked['token']}")
    return checked


def check_ranks(plan: Fields, world_size: int) -> list[Json]:
    """Return the checked ranks of this host. Each rank, local rank and slot occurs once."""
    ranks: list[Json] = []
    for index, item in enumerate(plan.items("ranks", least=1, limit=1024)):
        rank = Fields(item, f"plan.ranks.{index}")
        found = {
            "rank": rank.integer("rank", 0, world_size - 1),
            "local_rank": rank.integer("local_rank", 0, 1023, default=index),
            "slot": rank.integer("slot", -1, 65535),
            "device": rank.text("device", DEVICE, default=None),
            "env": rank.environment("env"),
        }
        for name in ("rank", "local_rank", "slot"):
            if found[name] != -1 and any(other[name] == found[name] for other in ranks):
                raise rank.bad(name, f"must be unique, but {found[name]} is used twice")
        ranks.append(found)
    return ranks


def plan_slots(plan: Json) -> list[int]:
    """Return the slots that a plan uses. The rank of a 0-slot request uses none."""
    ranks = plan.get("ranks")
    return sorted({rank["slot"] for rank in ranks if rank["slot"] >= 0}) if isinstance(ranks, list) else []


def slot_devices(plan: Json) -> dict[int, str | None]:
    """Return the slots that a plan uses, in order, with their devices, None for a CPU slot."""
    devices = {rank["slot"]: rank.get("device") for rank in plan.get("ranks") or ()}
    return {index: devices[index] for index in plan_slots(plan)}


def check_secrets(values: Any) -> dict[str, str]:
    """Return the variables that only the ranks may see."""
    return Fields({"secrets": values or {}}).environment("secrets")


# -------------------------------------------------------------------------------------------- ranks


class Rank:
    """One rank of this host."""

    def __init__(self, plan: Json, folder: RunFolder) -> None:
        self.plan = plan
        self.number: int = plan["rank"]
        self.folder = folder.file(f"rank{self.number}")
        self.pid = 0
        self.start_time = 0
        self.exit_code: int | None = None
        self.signalled = False
        #: Bytes freed in the middle of the log, [start, end).
        self.gap: list[int] | None = None

    def note_gap(self, start: int, end: int) -> None:
        """Record a gap of the log before its bytes are freed, so that readers recognize the hole."""
        path, document = os.path.join(self.folder, "gaps.json"), {"gaps": [[start, end]]}
        try:
            write_json(path, document, durable=False)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # The log has filled the disk. The gaps file was allocated its block when the run was prepared.
            overwrite(path, json.dumps(document, separators=(",", ":")).encode())
        self.gap = [start, end]

    @property
    def running(self) -> bool:
        """Return whether the process was started and has not been reaped."""
        return self.pid > 0 and self.exit_code is None

    def record(self) -> Json:
        """Return the rank's record in state.json."""
        return {"rank": self.number, "pid": self.pid, "start_time": self.start_time, "exit_code": self.exit_code}


def rank_environment(plan: Json, rank: Json, folder: RunFolder, go: Json, secrets: dict[str, str]) -> dict[str, str]:
    """Return the whole environment of one rank."""
    env = {name: os.environ[name] for name in BASE_ENV if name in os.environ}
    env["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // len(plan["ranks"])))
    env["DTRAIN_CHECKPOINT_DIR"] = folder.file("checkpoints")
    env.update(plan["env"])
    env.update(rank["env"])
    env.update(secrets)
    own = folder.file(f"rank{rank['rank']}")
    path = [folder.file("work"), folder.layout.library(plan["library"]) if plan["library"] else ""]
    path.append(env.get("PYTHONPATH") or os.environ.get("PYTHONPATH", ""))
    env.update({
        "MASTER_ADDR": go["master_addr"],
        "MASTER_PORT": str(go["master_port"]),
        "CUDA_VISIBLE_DEVICES": rank["device"] or "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": ":".join(part for part in path if part),
        "TORCHELASTIC_ERROR_FILE": os.path.join(own, "error.json"),
        "TORCHELASTIC_RUN_ID": folder.name,
        "DTRAIN_RUN": folder.name,
        "DTRAIN_RUN_DIR": folder.path,
        "DTRAIN_EVENTS": os.path.join(own, "events"),
        "DTRAIN_CONTEXT": folder.file("context.json"),
    })  # fmt: skip
    return env


def rank_argv(plan: Json) -> list[str]:
    """Return the command of a rank. ``python`` becomes the interpreter of the plan, or else this one."""
    argv = list(plan["argv"])
    if argv[0] in ("python", "python3"):
        argv[0] = os.path.expanduser(plan["python"] or sys.executable)
    return argv


def become_rank(argv: list[str], env: dict[str, str], folder: RunFolder, rank: Rank, parent: int, cgroup: Cgroup | None,
                log: int, locks: list[int]) -> None:  # fmt: skip
    """Turn a freshly forked child into a rank. Returns only by raising.

    The order matters: the cgroup before any fork, the parent-death signal before the check of the
    parent, the descriptors last because earlier steps may still need one.
    """
    signal.set_wakeup_fd(-1)
    if cgroup is not None and not cgroup.is_inside():
        cgroup.enter()
    os.setsid()
    for number_ in range(1, signal.NSIG):
        if number_ not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number_, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.umask(0o077)
    os.chdir(folder.file("work"))
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Locks get the first free numbers, as after any start. Move them to high ones first, so that none is overwritten.
    away = [fcntl.fcntl(lock, fcntl.F_DUPFD, 64) for lock in locks]
    for number_, lock in enumerate(away, 3):
        os.dup2(lock, number_, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 + len(away):
            with contextlib.suppress(OSError):
                os.close(int(name))
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - without a shell on purpose
    except OSError as error:
        say_cannot_start(rank, argv[0], error)
        os._exit(126 if error.errno == errno.EACCES else 127)


def say_cannot_start(rank: Rank, program: str, error: BaseException) -> None:
    """Write the reason to the log and to the error file that the supervisor reads."""
    words = getattr(error, "strerror", None) or str(error)
    message = f"cannot execute {program!r}: {words}"
    with contextlib.suppress(OSError):
        os.write(2, message.encode() + b"\n")
    with contextlib.suppress(OSError):
        write_json(os.path.join(rank.folder, "error.json"), {"message": message}, durable=False)


def tail_of(path: str, length: int) -> bytes:
    """Return the last bytes of a file, b"" if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, length, max(0, os.fstat(fd).st_size - length))
    except OSError:
        return b""
    finally:
        os.close(fd)


def error_of(folder: str, exit_code: int) -> Json | None:
    """Return the error of a rank: its error file, else the traceback in its log, else its last lines."""
    if exit_code == 0:
        return None
    from_file = parse_error_file(read_json(os.path.join(folder, "error.json")))
    if from_file is not None:
        return from_file
    log = tail_of(os.path.join(folder, "log"), LOG_SEARCH).decode("utf-8", "replace")
    last = "\n".join(log.rstrip().splitlines()[-20:])
    if exit_code < 0:
        return {"message": f"killed by {signal_name(-exit_code)}", "traceback": last}
    found = find_traceback(log)
    if found is not None:
        return found
    words = last.splitlines()[-1] if last else "its log is empty"
    return {"message": f"exit code {exit_code}: {words[:1000]}", "traceback": last}


def parse_error_file(document: Json | None) -> Json | None:
    """Return message and traceback of a TORCHELASTIC_ERROR_FILE or of our library's error file."""
    inner = (document or {}).get("message")
    extra: Any = document
    if isinstance(inner, dict):
        extra, inner = inner.get("extraInfo"), inner.get("message")
    if not isinstance(inner, str) or not inner:
        return None
    trace = (extra.get("traceback") or extra.get("py_callstack")) if isinstance(extra, dict) else None
    return {"message": inner[-(8 << 10) :], "traceback": trace[-(64 << 10) :] if isinstance(trace, str) else ""}


def find_traceback(log: str) -> Json | None:
    """Return the last Python traceback in a log, with its chained exceptions."""
    mark = "Traceback (most recent call last):"
    start = log.rfind(mark)
    if start < 0:
        return None
    block = log[start:].splitlines()
    end = next((i for i, line in enumerate(block[1:], 1) if line and not line[0].isspace()), len(block) - 1)
    message = block[end]
    chained = ("another exception occurred:", "direct cause of the following exception:")
    while log[:start].rstrip().endswith(chained) and (before := log.rfind(mark, 0, start)) >= 0:
        start = before
    return {"message": message[: 8 << 10], "traceback": log[start:].rstrip()[-(16 << 10) :]}


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed since boot because memory ran out."""
    found = re.search(r"^oom_kill (\d+)$", read_text("/proc/vmstat") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def who_killed(kills: int) -> str:
    """Return the probable sender of a SIGKILL that the supervisor did not send.

    :param kills: number of processes that the kernel killed for lack of memory since the ranks were started
    """
    if kills > 0:
        memory = f"this host has {memory_bytes() / 2**30:.1f} GiB"
        return f"the kernel was out of memory and ended {kills} process(es) during this run; {memory}"
    return "not sent by dtrain; a container's memory limit or another program did it"


def signal_name(number_: int) -> str:
    """Return the number and name of a signal, for messages."""
    with contextlib.suppress(ValueError):
        return f"signal {number_} ({signal.Signals(number_).name})"
    return f"signal {number_}"


# --------------------------------------------------------------------------------------- supervisor


def buried(run: str) -> Refused:
    """Return the refusal for a run that has a tombstone."""
    return Refused("tombstone", f"Run {run} was stopped or fenced on this host and never starts again.")


class Supervisor:
    """Parent of a run's ranks on this host: one thread, woken by signals, its control FIFO and deadlines.

    States: ``preparing``, ``prepared``, ``running``, ``stopping`` (SIGTERM was sent), ``killing``,
    ``ended``. Commands arrive as files. A byte in the FIFO announces a new one.
    """

    def __init__(self, layout: Layout, plan: Json, secrets: dict[str, str]) -> None:
        self.layout, self.plan, self.secrets = layout, plan, secrets
        self.folder = layout.run(plan["run"])
        self.state = "preparing"
        self.reason: str | None = None
        self.first_failure: int | None = None
        self.ranks = [Rank(rank, self.folder) for rank in plan["ranks"]]
        #: Slot -> descriptors of its lock files: this account's, then the one of all accounts.
        self.slot_locks: dict[int, list[int]] = {}
        self.run_lock = -1
        self.identity = Json()
        self.port_socket: socket.socket | None = None
        self.cgroup: Cgroup | None = None
        self.unwritten: deque[Json] = deque()
        self.grace_deadline = float("inf")
        self.timeout_deadline = float("inf")
        self.prepare_deadline = float("inf")
        #: On CLOCK_BOOTTIME.
        self.orphan_deadline = float("inf")
        self.is_rung = False
        self.next_log_check, self.log_check_s = 0.0, FLOOD_CHECK_S
        self.kill_pause_s = 0.001
        #: The supervisor received SIGTERM, e.g. because the host shuts down.
        self.terminated = False
        #: Pid of the process that measures the host; 0 = none.
        self.sampler = 0
        self.killing_since = 0.0
        self.oom_kills = 0
        #: The run was requested to write a checkpoint and end. The strangers are ranks that may be unaware of it.
        self.requested, self.strangers = False, list[Rank]()
        self.started_at = 0.0

    # Preparing.

    def prepare(self) -> Json:
        """Claim the run and its slots, write its files, and return the answer to ``prepare``.

        :raises Refused: this run cannot start here; nothing of it remains
        """
        created = not os.path.lexists(self.folder.path)
        try:
            answer = self._claim()
            if answer is not None:
                return answer
            self._check_archives()
            self._take_slots()
            self._check_tokens()
            if self.folder.buried:
                raise buried(self.folder.name)
            self._write_files()
            port = self._bind_port()
            self._listen(port)
        except BaseException:
            self._leave_cgroup()
            if self.cgroup is not None:
                self.cgroup.remove()
            if created and self.run_lock >= 0:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            # Before the control side reads the refusal, so that its next status query finds the slots free.
            for lock in (lock for locks in self.slot_locks.values() for lock in locks):
                os.close(lock)
            raise
        return {"state": "prepared", "attached": False, "port": port}

    def _claim(self) -> Json | None:
        """Lock the run folder. Return an answer instead if the run is alive or has ended already."""
        deadline = time.monotonic() + ATTACH_WAIT_S
        while True:
            if self.folder.buried or self.folder.buried_launch(self.plan["launch"]):
                raise buried(self.folder.name)
            if self._lock_run():
                break
            state = self.folder.state()
            if self.folder.alive() and state.get("state") in ("prepared", "running", "stopping", "killing"):
                self._refuse_namesake()
                shown = "prepared" if state["state"] == "prepared" else "running"
                return {"state": shown, "attached": True, "port": state.get("port")}
            if time.monotonic() > deadline:
                raise Refused("busy", f"Run {self.folder.name} is locked by a start that does not become ready.")
            time.sleep(0.005)
        if self.folder.has("started") or self.folder.has("ended"):
            return self._was_started()
        # Files of an earlier supervisor that died before the start must not be mistaken for this one's.
        for name in ("go.json", "stop.json", "state.json", "renewed"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder.file(name))
        self.identity = {**identity(), "reaper": {"pid": os.getppid(), "start_time": start_time(os.getppid())}}
        write_json(self.folder.file("supervisor.json"), self.identity, durable=False)
        return None

    def _lock_run(self) -> bool:
        try:
            os.makedirs(self.folder.path, mode=0o700, exist_ok=True)
            lock = take_lock(self.folder.file("lock"))
        except FileNotFoundError:
            return False
        if lock is not None and self.folder.alive():
            # Another process removed the file that the run's supervisor has locked.
            os.close(lock)
            lock = None
        self.run_lock = -1 if lock is None else lock
        return lock is not None

    def _was_started(self) -> Json:
        """Return the end of a run that was started. A run without an end is lost and never starts again."""
        os.close(self.run_lock)
        self.run_lock = -1
        self._refuse_namesake()
        cause, words = how_gone(self.folder)
        recover(self.folder)
        ended = self.folder.ended() or {"reason": "lost", "cause": cause}
        if ended.get("reason") != "lost":
            return {"state": "ended", "attached": True, "port": None, "reason": ended.get("reason")}
        cause = str(ended.get("cause", cause))
        raise Refused("lost", f"Run {self.folder.name} was started here and did not end: {words}.", cause=cause)

    def _refuse_namesake(self) -> None:
        """Refuse a run whose name another launch uses here. Its grant was issued twice."""
        if self.folder.is_other_launch(self.plan["launch"]):
            words = f"Run {self.folder.name} of another launch is on this host: the store was restored from a backup."
            raise Refused("other_launch", f"{words} Request a new grant.", run=self.folder.name)

    def _check_archives(self) -> None:
        missing = {}
        for kind, name in (("payloads", "payload"), ("libraries", "library")):
            digest = self.plan[name]
            unpacked = kind == "libraries" and digest and os.path.isdir(self.layout.library(digest))
            if digest and not unpacked and not os.path.isfile(self.layout.archive(kind, digest)):
                missing[kind] = [digest]
        if missing:
            words = ", ".join(f"{kind}/{digests[0][:12]}" for kind, digests in missing.items())
            digests = [digest for found in missing.values() for digest in found]
            words = f"This host does not have {words}. Send it and prepare again."
            raise Refused("need", words, missing=digests, kinds=missing)

    def _take_slots(self) -> None:
        """Take every slot's locks, in order. Wait for a slot whose last run has just ended."""
        label = {"run": self.folder.name, "store": self.plan["store"], "token": self.plan["token"], **identity()}
        devices = slot_devices(self.plan)
        for index in devices:
            self.slot_locks[index] = [self._take_account_lock(index)]
        # Take all locks of this account first, so that a refusal names the run of this account that holds the slot.
        self._refuse_hidden_holder()
        for index, device in devices.items():
            if (path := self.layout.machine_lock(index, device)) is not None:
                self.slot_locks[index].append(self._take_machine_lock(index, path))
        for index, locks in self.slot_locks.items():
            write_label(locks[0], {**label, "device": devices[index]})

    def _take_account_lock(self, index: int) -> int:
        path, begun = self.layout.slot_lock(index), time.monotonic()
        while (lock := take_lock(path)) is None:
            holder = str((read_json(path) or {}).get("run"))
            ending = RUN_NAME.fullmatch(holder) is not None and self.layout.run(holder).has("ended")
            if time.monotonic() - begun > (SLOT_WAIT_S if ending else PROBE_S):
                words = f"Slot {index} is held by run {holder}. Wait for its end, or fence it."
                raise Refused("slot_busy", words, slot=index, run=holder)
            time.sleep(0.002)
        return lock

    def _take_machine_lock(self, index: int, path: str) -> int:
        begun = time.monotonic()
        try:
            # A run of this account that is about to end may have released only the other lock.
            while (lock := take_machine_lock(path, create=True)) is None:
                if time.monotonic() - begun > SLOT_WAIT_S:
                    words = f"Slot {index} is held by {lock_taker(path)}, outside this account's runs ({path})."
                    raise Refused("slot_busy", f"{words} Wait for its end.", slot=index, run=None)
                time.sleep(0.005)
        except Refused as error:
            error.details["slot"] = index
            raise
        return lock

    def _refuse_hidden_holder(self) -> None:
        """Refuse slots of a living run whose lock file was removed, e.g. by a cleaner of temporary files."""
        for name in self.layout.runs():
            folder = self.layout.run(name)
            if name == self.folder.name or has_ended(folder):
                continue
            shared = [index for index in plan_slots(folder.plan() or {}) if index in self.slot_locks]
            if shared and (folder.alive() or has_left(folder)):
                words = f"Slot {shared[0]} is used by run {name}, although its lock is free."
                raise Refused("slot_busy", f"{words} Wait for its end, or fence it.", slot=shared[0], run=name)

    def _check_tokens(self) -> None:
        store, token = self.plan["store"], self.plan["token"]
        for index in self.slot_locks:
            known = number(self.layout.tokens(index).get(store))
            if known > token:
                words = f"Slot {index} was granted under token {known}, but the plan has {token}. Its grant is over."
                raise Refused("stale_token", words, slot=index, recorded=known)
        self.layout.record_tokens(store, token, self.slot_locks)

    def _write_files(self) -> None:
        """Unpack the code and write all files that ranks and followers read."""
        folder = self.folder
        for name in ("checkpoints", *(f"rank{rank.number}" for rank in self.ranks)):
            os.makedirs(folder.file(name), mode=0o700, exist_ok=True)
        for rank in self.ranks:
            # This allocates its block now, so that it can be overwritten once the log has filled the disk.
            write_json(os.path.join(rank.folder, "gaps.json"), {"gaps": []}, durable=False)
        write_atomic(folder.file("renewed"), b"{}".ljust(IN_PLACE_BYTES), durable=False)
        if self.plan["payload"]:
            unpack_archive(self.layout.archive("payloads", self.plan["payload"]), folder.file("work"))
        os.makedirs(folder.file("work"), mode=0o700, exist_ok=True)
        note_baseline(folder)
        take_carried(folder, self.plan["carried"])
        if self.plan["library"]:
            digest = self.plan["library"]
            unpack_archive(self.layout.archive("libraries", digest), self.layout.library(digest))
        self.cgroup = Cgroup.create(folder)
        # Ranks are forked inside it. Moving a process takes the kernel milliseconds and delays every fork.
        if self.cgroup is not None and not self.cgroup.enter():
            self._leave_cgroup()
            self.cgroup.remove()
            self.cgroup = None
        own = {**self.identity, "cgroup": self.cgroup.path if self.cgroup else None}
        documents = {"context.json": self.plan["context"], "supervisor.json": own, "plan.json": self.plan}
        for name, document in documents.items():
            write_json(folder.file(name), document, durable=False)
        # Make the name of the folder durable, for the ``started`` mark that the start writes into it.
        sync_folder(os.path.dirname(folder.path))
        with open(folder.file("reserve"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE)

    def _bind_port(self) -> int | None:
        """Bind the rendezvous port on the host of rank 0, without listening.

        It is bound exclusively, so that it is not a port of another run. SO_REUSEADDR is set afterwards,
        so that rank 0 can listen on it and no other process gets it by chance.
        """
        if not self.plan["master_local"]:
            return None
        for port in ports_of(self.plan["port_range"]):
            try:
                self.port_socket = bind_everywhere(port)
            except OSError:
                continue
            self.port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return int(self.port_socket.getsockname()[1])
        raise Refused("no_port", f"No free port in {self.plan['port_range']}. Widen port_range or free its ports.")

    def _listen(self, port: int | None) -> None:
        """Become ready for commands. The state ``prepared`` is recorded last."""
        control = self.folder.file("control")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(control)
        os.mkfifo(control, 0o600)
        # Open for both directions, so that it never reports end-of-file when writers close it.
        self.control = os.open(control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "terminated", True))
        self.poller = select.poll()
        self.poller.register(self.control, select.POLLIN)
        self.poller.register(self.wakeup, select.POLLIN)
        self.events = EventWriter(self.folder.file("events.supervisor"))
        self.prepare_deadline = time.monotonic() + self.plan["prepare_timeout_s"]
        if self.plan["orphan_timeout_s"]:
            self.orphan_deadline = boottime() + self.plan["orphan_timeout_s"]
        self.port = port
        self.renewed = boottime()
        self.event("prepared", port=port)
        self.set_state("prepared")

    # Running.

    def run(self) -> None:
        """Serve until no process of the run is left."""
        while self.state != "ended":
            self._wait()
            self._read_commands()
            self._reap()
            self._check_deadlines()
            # After the deadlines: a supervisor resumed after a long SIGSTOP must not start an abandoned run.
            self._look_for_go()
            self._advance()
            self._retry_events()

    def _wait(self) -> None:
        now = time.monotonic()
        deadlines = [self.grace_deadline, self.timeout_deadline, self.prepare_deadline, now + 30.0]
        deadlines.append(now + self.orphan_deadline - boottime())
        if self.state == "killing":
            deadlines.append(now + self.kill_pause_s)
            self.kill_pause_s = min(1.0, self.kill_pause_s * 2)
        if self.state in ("running", "stopping"):
            deadlines.append(self.next_log_check)
        if self.unwritten or self.strangers:
            deadlines.append(now + 1.0)
        for fd, _ in self.poller.poll(max(0.0, (min(deadlines) - now) * 1000 + 0.5)):
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)
            self.is_rung = self.is_rung or fd == self.control

    def _read_commands(self) -> None:
        folder = self.folder
        if folder.buried:
            self.begin_stop("fenced", 0.0)
        if self.terminated:
            self.begin_stop("stopped", self.plan["grace_s"])
        stop = read_json(folder.file("stop.json"))
        if stop is not None:
            grace = stop.get("grace_s")
            self.begin_stop("stopped", float(grace if isinstance(grace, (int, float)) else self.plan["grace_s"]))
        if self.state == "running" and not self.requested and folder.has("stop_requested"):
            self.requested = True
            self.strangers = [rank for rank in self.ranks if rank.running]
        if self.strangers:
            self._tell_strangers()

    def _look_for_go(self) -> None:
        if self.state == "prepared" and (go := read_json(self.folder.file("go.json"))) is not None:
            self._start(go)

    def _tell_strangers(self) -> None:
        """Send SIGTERM to ranks that do not use the training library, so do not poll for a requested stop."""
        patient = time.monotonic() < self.started_at + JOIN_S
        waiting = [rank for rank in self.strangers if rank.running and not self.folder.has(f"progress/{rank.number}")]
        self.strangers = waiting if patient else []
        if not patient:
            self._signal_sessions(signal.SIGTERM, waiting)

    def _start(self, go: Json) -> None:
        """Fork the ranks. The ``started`` mark is durable before the first one exists."""
        write_mark(self.folder.file("started"), {"at": time.time(), **go, **identity(), "origin": origin()})
        self.prepare_deadline = float("inf")
        self.started_at = time.monotonic()
        self.oom_kills = oom_kills()
        if self.plan["timeout_s"]:
            self.timeout_deadline = time.monotonic() + self.plan["timeout_s"]
        argv = rank_argv(self.plan)
        environments = [rank_environment(self.plan, rank.plan, self.folder, go, self.secrets) for rank in self.ranks]
        failed = None
        for rank, env in zip(self.ranks, environments):
            try:
                self._fork(rank, argv, env)
            except OSError as error:
                failed = (rank, error)
                break
        self.secrets = {}
        self.next_log_check = time.monotonic() + FLOOD_CHECK_S
        self.set_state("running")
        self.event("started", ranks=[{"rank": rank.number, "pid": rank.pid} for rank in self.ranks if rank.pid])
        self._leave_cgroup()
        if failed is not None:
            self._not_started(*failed)
        elif self.plan["sampling_interval_s"]:
            devices = [rank.plan["device"] for rank in self.ranks if rank.plan["device"]]
            # The run continues without a sampler. A system that refuses this process refuses those of the ranks too.
            with contextlib.suppress(OSError):
                self.sampler = start_sampler(self.folder, max(0.1, self.plan["sampling_interval_s"]), devices)

    def _fork(self, rank: Rank, argv: list[str], env: dict[str, str]) -> None:
        locks = self.slot_locks.get(rank.plan["slot"], [])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(os.path.join(rank.folder, "log"), flags, 0o600)
        parent = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    become_rank(argv, env, self.folder, rank, parent, self.cgroup, log, locks)
                except BaseException as error:
                    say_cannot_start(rank, argv[0], error)
                finally:
                    os._exit(127)
        finally:
            os.close(log)
        rank.pid = pid
        proc = read_proc(pid)
        rank.start_time = proc.start_time if proc else 0

    def _not_started(self, rank: Rank, error: OSError) -> None:
        """Record that the system refused a process for a rank, and fail the run."""
        words = f"cannot start a process: {error.strerror}"
        rank.exit_code = 126
        self.event("exit", rank=rank.number, exit_code=126, error={"message": words, "traceback": ""}, log_tail="",
                   sent_signal=False)  # fmt: skip
        self.first_failure = rank.number
        self.begin_stop("failed", self.plan["grace_s"])

    def _reap(self) -> None:
        """Collect the exit status of every dead child, including inherited orphans of the ranks."""
        dead = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self.sampler:
                    self.sampler = 0
                    continue
                rank = next((rank for rank in self.ranks if rank.pid == found[0] and rank.running), None)
                if rank is not None:
                    rank.exit_code = os.waitstatus_to_exitcode(found[1])
                    dead.append((rank, rank.exit_code, time.time()))
        # Record all exits before sending a signal: two ranks that died by themselves are two failures.
        for rank, code, at in dead:
            self._record_exit(rank, code, at)
        if dead and self.state == "running":
            # A rank that was requested to end may exit with any status. All other ranks were requested too.
            if any(code != 0 and not (self.requested and rank.signalled) for rank, code, _ in dead):
                self.begin_stop("failed", self.plan["grace_s"])
            else:
                self.set_state("running")

    def _record_exit(self, rank: Rank, code: int, at: float) -> None:
        tail = tail_of(os.path.join(rank.folder, "log"), LOG_TAIL).decode("utf-8", "replace")
        error = error_of(rank.folder, code)
        if code == -signal.SIGKILL and not rank.signalled and error is not None:
            error["message"] += f": {who_killed(oom_kills() - self.oom_kills)}"
        self.event("exit", at=at, rank=rank.number, exit_code=code, error=error, log_tail=tail,
                   sent_signal=rank.signalled)  # fmt: skip
        if code != 0 and not rank.signalled and self.first_failure is None:
            self.first_failure = rank.number

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if now > self.prepare_deadline:
            self.begin_stop("prepare_timeout", 0.0)
        if now > self.timeout_deadline:
            self.timeout_deadline = float("inf")
            self.begin_stop("timeout", self.plan["grace_s"])
        # A process that wakes the supervisor may have shortened the lease.
        rung, self.is_rung = self.is_rung, False
        if (rung or boottime() > self.orphan_deadline) and self._is_orphan():
            self.begin_stop("orphaned", self.plan["grace_s"])
        if self.state in ("running", "stopping") and now >= self.next_log_check:
            cut = [self._cap_log(rank) for rank in self.ranks]
            self.log_check_s = FLOOD_CHECK_S if any(cut) else min(LOG_CHECK_S, 2 * self.log_check_s)
            self.next_log_check = now + self.log_check_s

    def _is_orphan(self) -> bool:
        """Return whether the last renewal has expired. Called only if it may have, because this reads a file."""
        deadline = self.folder.renewal().get("deadline_boottime_s")
        if deadline is not None:
            self.orphan_deadline = float("inf") if deadline == 0 else float(deadline)
        over = boottime() > self.orphan_deadline
        if over:
            self.orphan_deadline = float("inf")
        return over

    def _cap_log(self, rank: Rank) -> bool:
        """Free the middle of a log that grew too long, without a change of offsets. Return whether it was freed."""
        path = os.path.join(rank.folder, "log")
        limit = self.plan["log_limit_bytes"]
        try:
            found = os.stat(path, follow_symlinks=False)
            if found.st_blocks * 512 <= limit or found.st_size <= limit:
                return False
            start, end = limit // 2 & ~4095, (found.st_size - limit // 4) & ~4095
            if rank.gap == [start, end] or end <= start:
                return False
            rank.note_gap(start, end)
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._free(rank, fd, start, end)
            finally:
                os.close(fd)
        except OSError:
            traceback.print_exc()
            return False
        return True

    def _free(self, rank: Rank, fd: int, start: int, end: int) -> None:
        """Free a part of a log, by a cut if the file system cannot free the middle of a file.

        A cut loses what is written at that moment. The gap is recorded as too long rather than too short.
        """
        try:
            punch_hole(fd, start, end - start)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
        size, kept = os.fstat(fd).st_size, min(self.plan["log_limit_bytes"] // 4, CUT_TAIL)
        tail = os.pread(fd, kept, max(start, size - kept))
        rank.note_gap(start, size + CUT_SLACK)
        # Make it longer than before: a reader that has reached its end must not mistake it for another file.
        os.ftruncate(fd, start)
        os.ftruncate(fd, size + CUT_SLACK)
        os.pwrite(fd, tail, size + CUT_SLACK - len(tail))
        rank.note_gap(start, size + CUT_SLACK - len(tail))

    # Ending.

    def begin_stop(self, reason: str, grace_s: float) -> None:
        """End the run: SIGTERM to every rank's session, after ``grace_s`` SIGKILL to everything.

        The first reason is kept. A later, shorter grace period replaces a longer one.
        """
        if self.state in ("killing", "ended"):
            return
        if self.reason is None:
            self.reason = reason
        if grace_s <= 0 or not any(rank.running for rank in self.ranks):
            self._begin_kill()
            return
        self.grace_deadline = min(self.grace_deadline, time.monotonic() + grace_s)
        if self.state != "stopping":
            self.set_state("stopping")
            self._signal_sessions(signal.SIGTERM, self.ranks)

    def _signal_sessions(self, number_: int, ranks: list[Rank]) -> None:
        """Send a signal to every descendant in the sessions of some ranks."""
        sessions = {rank.pid for rank in ranks if rank.pid}
        for rank in ranks:
            rank.signalled = rank.signalled or rank.running
        for proc in descendants([os.getpid()], all_procs()):
            if proc.session in sessions or proc.pid in sessions:
                send_signal(proc, number_)

    def _leave_cgroup(self) -> None:
        """Leave the cgroup that is about to be killed. If that fails, only the process tree is killed."""
        if self.cgroup is not None and self.cgroup.is_inside() and not self.cgroup.leave():
            self.cgroup = None

    def _begin_kill(self) -> None:
        self._leave_cgroup()
        for rank in self.ranks:
            rank.signalled = rank.signalled or rank.running
        self.prepare_deadline = self.timeout_deadline = self.grace_deadline = self.orphan_deadline = float("inf")
        self.killing_since = time.monotonic()
        self.set_state("killing")

    def _advance(self) -> None:
        if self.state in ("running", "stopping") and not any(rank.running for rank in self.ranks):
            failed = any(rank.exit_code for rank in self.ranks)
            self.reason = self.reason or ("stopped" if failed else "completed")
            self._begin_kill()
        if self.state == "stopping" and time.monotonic() >= self.grace_deadline:
            self._begin_kill()
        if self.state == "killing":
            self._sweep()

    def _sweep(self) -> None:
        """Kill all descendants. Without a child left, no process of the run is left.

        A subreaper inherits every orphan, so the absence of children proves this for detached processes too.
        """
        for _ in range(20):
            if self.cgroup is not None:
                self.cgroup.kill()
            procs = descendants([os.getpid()], all_procs())
            for proc in procs:
                send_signal(proc, signal.SIGKILL)
            self._reap()
            if not has_children() or self._only_sampler_left(procs):
                self._finish()
                return
            if not procs:
                return

    def _only_sampler_left(self, procs: list[Proc]) -> bool:
        """Return whether only the sampler is left, killed a while ago and stuck in a driver.

        It holds no lock and runs no code of the run, so it must not prevent the run from ending.
        """
        alone = bool(self.sampler) and [proc.pid for proc in procs] == [self.sampler]
        return alone and time.monotonic() - self.killing_since > SAMPLER_PATIENCE_S

    def _finish(self) -> None:
        """Record the end and release everything. The locks are released last, with the process."""
        if self.cgroup is not None:
            self.cgroup.remove()
        with contextlib.suppress(OSError):
            os.unlink(self.folder.file("control"))
        # For bytes written since the last check. No check follows.
        for rank in self.ranks:
            self._cap_log(rank)
        self.set_state("ended")
        deadline = time.monotonic() + 60.0
        self.event("ended", reason=self.reason, first_failure=self.first_failure)
        while self.unwritten and time.monotonic() < deadline:
            time.sleep(0.5)
            self._retry_events()
        if not self.unwritten:
            with contextlib.suppress(OSError):
                shown = {"reason": self.reason, "first_failure": self.first_failure, "at": time.time()}
                # If a crash of the host loses it, it is recreated from the event.
                write_json(self.folder.file("ended"), shown, durable=False)
        with contextlib.suppress(OSError):
            os.unlink(self.folder.file("reserve"))

    # Records.

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event. On a full disk the reserve is freed, and events that still fail wait in order."""
        self.unwritten.append({"at": time.time(), "kind": kind, **fields})
        self._retry_events()

    def _retry_events(self) -> None:
        while self.unwritten:
            try:
                self.events.write(self.unwritten[0])
            except OSError:
                if not self.folder.has("reserve"):
                    return
                os.unlink(self.folder.file("reserve"))
                continue
            self.unwritten.popleft()

    def set_state(self, state: str) -> None:
        """Enter a state and write it to state.json."""
        self.state = state
        document = {
            "state": state, "port": self.port, "token": self.plan["token"], "reason": self.reason,
            "prepared_boottime_s": self.renewed, "ranks": [rank.record() for rank in self.ranks],
        }  # fmt: skip
        with contextlib.suppress(OSError):
            write_json(self.folder.file("state.json"), document, durable=False)


def has_children() -> bool:
    """Return whether this process has any child, including zombies."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def punch_hole(fd: int, start: int, length: int) -> None:
    """Free a part of a file and keep its size."""
    call = LIBC.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, 0x1 | 0x2, start, length) != 0:
        number_ = ctypes.get_errno()
        raise OSError(number_, os.strerror(number_))


def ports_of(port_range: Any) -> list[int]:
    """Return the ports to try, in random order. Port 0 lets the kernel choose."""
    if not port_range:
        return [0]
    ports = list(range(port_range[0], port_range[1] + 1))
    random.shuffle(ports)
    return ports


def bind_everywhere(port: int) -> socket.socket:
    """Return a socket that is bound to a port on all addresses, IPv4 and, if available, IPv6."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        sock = None
    if sock is not None:
        try:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("::", port))
            return sock
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind(("0.0.0.0", port))  # noqa: S104 - the caller determines which address serves
    except OSError:
        sock.close()
        raise
    return sock


# ---------------------------------------------------------------------------------------- launching


def launch(layout: Layout, request: bytes) -> int:
    """Fork a detached supervisor. Return the descriptor from which its answer is read.

    The calling process must be single-threaded.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        detach(layout, request, writer)
    os.close(writer)
    os.waitpid(pid, 0)
    return reader


def detach(layout: Layout, request: bytes, report: int) -> None:
    """Detach from session and job with a second fork, and run the reaper there. Never returns."""
    try:
        os.setsid()
        if os.fork() == 0:
            reap(layout, request, report)
    finally:
        os._exit(0)


def reap(layout: Layout, request: bytes, report: int) -> None:
    """Run the reaper: fork a supervisor, wait for its death, then kill every process that it leaves.

    The reaper runs no user code and accepts no command. Orphans of a dead supervisor become its children. It proves
    nothing about a run that another supervisor started, e.g. when its own one was refused or found the run alive.
    """
    for number_ in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number_, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir("/")
    child = os.fork()
    if child == 0:
        supervise(layout, request, report)
    supervisor = identity(child)
    close_all_but(-1)
    while os.waitpid(-1, 0)[0] != child:
        pass
    sweep_orphans()
    run = (parse_object(request) or {}).get("plan", {}).get("run")
    folder = layout.run(str(run))
    is_own = is_same(supervisor, folder.supervisor() or {})
    if is_own and folder.has("started") and not folder.has("ended"):
        # Without this record, on a full disk, a fence searches all processes.
        with contextlib.suppress(OSError):
            write_json(folder.file("swept"), {**identity(), "supervisor": supervisor}, durable=False)


def sweep_orphans() -> None:
    """Kill all descendants until no child is left.

    After :data:`SAMPLER_PATIENCE_S`, a sampler stuck in a driver is abandoned.
    """
    begun, pause_s = time.monotonic(), 0.001
    while has_children():
        procs = descendants([os.getpid()], all_procs())
        for proc in procs:
            send_signal(proc, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() - begun > SAMPLER_PATIENCE_S and all(is_ours(proc.pid) for proc in procs):
            return
        time.sleep(pause_s)
        pause_s = min(0.25, pause_s * 2)


def supervise(layout: Layout, request: bytes, report: int) -> None:
    """Run a supervisor: prepare the run, report, and serve it. Never returns."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.umask(0o077)
    close_all_but(report)
    supervisor = None
    try:
        document = json.loads(request)
        supervisor = Supervisor(layout, document["plan"], document["secrets"])
        answer = {"ok": True, **supervisor.prepare()}
        log_errors(supervisor.folder)
    except BaseException as error:
        answer = refusal_of(error).answer()
    with contextlib.suppress(OSError):
        write_all(report, json.dumps(answer).encode())
    os.close(report)
    if answer.get("ok") and supervisor is not None and supervisor.state == "prepared":
        try:
            supervisor.run()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(0)


def close_all_but(kept: int) -> None:
    """Close all inherited descriptors but one. Standard streams go to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def log_errors(folder: RunFolder) -> None:
    """Redirect standard error to the run's folder, for tracebacks of the supervisor."""
    if folder.exists:
        fd = os.open(folder.file("supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(fd, 2)
        os.close(fd)


def read_report(fd: int) -> Json:
    """Wait for a supervisor's answer and return it."""
    with os.fdopen(fd, "rb") as file:
        return parse_report(file.read())


def parse_report(data: bytes) -> Json:
    """Return the answer that a supervisor wrote before it closed the pipe, a refusal if it wrote none."""
    silent = Refused("internal", "The supervisor ended while it prepared the run. Is the host out of memory?")
    return parse_object(data) or silent.answer()


class Zygote:
    """A single-threaded child that forks supervisors for a multi-threaded process."""

    def __init__(self, layout: Layout) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                self._serve(layout, theirs)
            finally:
                os._exit(0)
        theirs.close()
        self.socket = ours

    def launch(self, request: bytes) -> int:
        """Request a supervisor from the child. Return the descriptor of its answer."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(writer, True)
            socket.send_fds(self.socket, [struct.pack("=Q", len(request))], [writer])
            self.socket.sendall(request)
        except OSError as error:
            os.close(reader)
            words = f"The process that starts supervisors is gone: {error}. Connect again."
            raise Refused("internal", words) from error
        finally:
            os.close(writer)
        return reader

    @staticmethod
    def _serve(layout: Layout, sock: socket.socket) -> None:
        close_all_but(sock.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        gc.freeze()
        while True:
            head, fds, _, _ = socket.recv_fds(sock, 8, 1)
            if len(head) < 8 or not fds:
                return
            length, request = struct.unpack("=Q", head)[0], bytearray()
            while len(request) < length:
                chunk = sock.recv(min(1 << 20, length - len(request)))
                if not chunk:
                    return
                request += chunk
            try:
                pid = os.fork()
            except OSError as error:
                refuse_fork(fds[0], error)
                continue
            if pid == 0:
                detach(layout, bytes(request), fds[0])
            os.close(fds[0])
            os.waitpid(pid, 0)


def refuse_fork(report: int, error: OSError) -> None:
    """Answer a start for which no process could be forked, and close its pipe."""
    words = f"This host cannot fork the run's supervisor: {error.strerror}. The account is at its limit of processes"
    refused = Refused("os_error", f"{words} (ulimit -u), or memory is short. End processes, or raise the limit.")
    with contextlib.suppress(OSError):
        write_all(report, json.dumps(refused.answer()).encode())
    os.close(report)


# ----------------------------------------------------------------------------------------- commands


def write_end(folder: RunFolder, reason: str, cause: str | None = None) -> None:
    """Record the end of a run whose supervisor could not. The caller holds the run's lock."""
    last = tell_end(folder, reason, cause)
    shown = {key: last[key] for key in ("reason", "first_failure", "cause", "at") if key in last}
    write_json(folder.file("ended"), shown)
    if not is_swept(folder, folder.supervisor() or {}):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder.file("swept"))


def tell_end(folder: RunFolder, reason: str, cause: str | None) -> Json:
    """Write the ``ended`` event unless it exists already, and return it. The caller holds the run's lock."""
    events = EventWriter(folder.file("events.supervisor"))
    try:
        last = events.last
        if last is None or last.get("kind") != "ended":
            last = {"at": time.time(), "kind": "ended", "reason": reason, "first_failure": events.first_failure}
            if cause is not None:
                last["cause"] = cause
            events.write(last)
        return last
    finally:
        events.close()


def restore_end(folder: RunFolder) -> None:
    """Restore the ``ended`` event of a recorded end if another process of the account removed it."""
    try:
        lock = take_lock(folder.file("lock"))
    except FileNotFoundError:
        return
    if lock is None:
        return
    try:
        ended = folder.ended() or {}
        tell_end(folder, str(ended.get("reason", "lost")), ended.get("cause"))
    finally:
        os.close(lock)


def recover(folder: RunFolder, wait_s: float = 5.0) -> bool:
    """Kill what a dead supervisor left behind. Return whether the run has ended now.

    A run that was not started yet is left unchanged, because it may be prepared again.
    """
    try:
        lock = take_lock(folder.file("lock"))
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    try:
        if folder.alive():
            return False
        if folder.ended() or not folder.has("started"):
            return True
        deadline, pause_s = time.monotonic() + wait_s, 0.005
        while any(left := remains(folder)):
            if time.monotonic() > deadline or not left[0]:
                # Send followers the event now, so that they fence the run and show what is left.
                tell_end(folder, "lost", how_gone(folder)[0])
                return False
            time.sleep(pause_s)
            pause_s = min(0.25, pause_s * 2)
        write_end(folder, "lost", how_gone(folder)[0])
        return True
    finally:
        os.close(lock)


def fence(layout: Layout, run: str, token: int, wait_s: float = FENCE_WAIT_S, launch: str | None = None) -> Json:
    """End a run and prevent any later start here. Return ``clear``, or what is left of the run.

    Tombstone and token are on the disk before any process is killed. On a full disk the run's reserve makes room. A
    run that was started here never starts again, so its end needs no tombstone.

    :param launch: the only launch that is ended; another one of the same name is not the caller's and continues
    :raises Refused: ``stale_token``, the caller's grant is older than the run; a tombstone cannot be written
    """
    folder = layout.run(run)
    if token < int(run.rpartition(".")[2]):
        raise Refused("stale_token", f"Run {run} was granted later than token {token}. This fence is out of date.")
    if folder.is_other_launch(launch):
        layout.bury(run, token, launch)
        return {"clear": True, "other_launch": True}
    unwritten: Exception | None = None
    try:
        mark_fenced(layout, folder, token)
    except (OSError, Refused) as error:
        unwritten = None if folder.has("started") or folder.has("ended") else error
    begun = time.monotonic()
    while True:
        found = fence_once(folder, token, time.monotonic() - begun)
        if found["clear"] or time.monotonic() - begun >= wait_s:
            break
        wait_for_end(folder, 0.02)
    if unwritten is not None:
        raise unwritten
    return found


def mark_fenced(layout: Layout, folder: RunFolder, token: int) -> None:
    """Write tombstone and token of a fence, durably."""
    try:
        layout.bury(folder.name, token)
    except OSError:
        if not folder.has("reserve"):
            raise
        os.unlink(folder.file("reserve"))
        layout.bury(folder.name, token)
    plan = folder.plan() if folder.exists else None
    if plan is not None:
        layout.record_tokens(plan["store"], token, plan_slots(plan))


def fence_once(folder: RunFolder, token: int, elapsed_s: float) -> Json:
    """Kill the processes of a run and return what is left of it."""
    lock = None
    if folder.exists:
        with contextlib.suppress(FileNotFoundError):
            lock = take_lock(folder.file("lock"))
    try:
        proc = find_process(folder.supervisor())
        if proc is not None or (lock is None and folder.exists):
            return fence_supervisor(folder, proc, elapsed_s)
        plan = folder.plan() or {}
        left = [describe(proc) for found in remains(folder) for proc in found]
        busy = [] if left else busy_slots(folder, plan, token)
        own, foreign, unlisted = ([], [], []) if left or busy else device_strangers(folder, plan)
        if left or busy or own or unlisted:
            keepers = [describe(one) for found in busy for one in lock_holders(folder.layout.slot_lock(found["slot"]))]
            answer = {"clear": False, "survivors": unique([*left, *own, *keepers]), "busy_slots": busy}
            return {**answer, "unlisted": [unlisted_words(device) for device in unlisted]} if unlisted else answer
        if plan and not has_ended(folder):
            # On a full disk the next fence or recovery writes it.
            with contextlib.suppress(OSError):
                write_end(folder, "fenced")
        return {"clear": True, "foreign": foreign} if foreign else {"clear": True}
    finally:
        if lock is not None:
            os.close(lock)


def fence_supervisor(folder: RunFolder, proc: Proc | None, elapsed_s: float) -> Json:
    """Make a living supervisor end the run, or kill the supervisor. Return what is left."""
    folder.ring()
    # A supervisor that is killing its run does so more reliably. One that does not react is killed with the rest.
    patience_s = KILLING_S if folder.state().get("state") in ("killing", "ended") else OBEY_S
    if proc is not None and (proc.state in "Tt" or elapsed_s > patience_s):
        send_signal(proc, signal.SIGKILL)
    # Without a supervisor, the process that holds the run's lock is doing the same.
    left = [proc, *leftovers(folder)] if proc is not None else [one for found in left_of(folder) for one in found]
    return {"clear": False, "survivors": unique([describe(one) for one in left]), "busy_slots": []}


def unique(survivors: list[Json]) -> list[Json]:
    """Return each process once."""
    return list({one["pid"]: one for one in survivors}.values())


def wait_for_end(folder: RunFolder, timeout_s: float) -> None:
    """Wait until the supervisor is gone or ``timeout_s`` has passed, 5 ms if it is gone already."""
    proc = find_process(folder.supervisor())
    fd = open_pidfd(proc.pid) if proc is not None else -1
    if fd < 0:
        time.sleep(0.005)
        return
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(timeout_s * 1000)
    finally:
        os.close(fd)


def busy_slots(folder: RunFolder, plan: Json, token: int) -> list[Json]:
    """Return the run's slots that cannot be locked.

    A slot held under a later grant of the same store no longer belongs to this run. The store granted
    it only because this run was known to be gone.
    """
    found = []
    for index in plan_slots(plan):
        path = folder.layout.slot_lock(index)
        lock = take_lock(path)
        if lock is not None:
            os.close(lock)
            continue
        holder = read_json(path) or {}
        if holder.get("store") == plan.get("store") and number(holder.get("token")) > token:
            continue
        found.append({"slot": index, "run": holder.get("run")})
    return found


def device_strangers(folder: RunFolder, plan: Json) -> tuple[list[Json], list[Json], list[str]]:
    """Return the processes on a run's GPUs that belong to no known run: possible own ones, and foreign ones.

    A process of this account that is younger than the run may be its own. Each foreign process has its ``slot``. The
    third result lists the GPUs on which the run's processes can no longer be seen.
    """
    slots = {device: index for index, device in slot_devices(plan).items() if device is not None}
    known = folder.supervisor() or {}
    # No process of a run from before the last boot is alive.
    is_of_this_boot = known.get("boot_id") == boot_id()
    start = number(known.get("start_time")) if is_of_this_boot else 1 << 62
    own, foreign = [], []
    users, unlisted = device_users(folder.layout, slots)
    procs = all_procs() if users else {}
    spared = known_processes(procs) | ancestors(os.getpid(), procs) if users else set()
    for user in users:
        proc = procs.get(user["pid"])
        if proc is not None and (proc.pid in spared or is_dead(proc)):
            continue
        if proc is not None and proc.start_time >= start and real_uid(proc.pid) == os.getuid():
            own.append(describe(proc))
        else:
            foreign.append({"slot": slots[user["device"]], **user})
    return own, foreign, unlisted if is_of_this_boot else []


def stop(layout: Layout, run: str, grace_s: float | None) -> Json:
    """Request the end of a run. A run that is not here yet is prevented from starting later."""
    folder = layout.run(run)
    if folder.has("ended"):
        return {}
    if folder.exists:
        known: Any = (read_json(folder.file("stop.json")) or {}).get("grace_s")
        grace: Any = (folder.plan() or {}).get("grace_s", 30.0) if grace_s is None else grace_s
        grace = grace if known is None else min(grace, known)
        write_json(folder.file("stop.json"), {"grace_s": grace, "at": time.time()}, durable=False)
    # The run is not here yet, or its supervisor does not listen yet. It checks for a tombstone once it does.
    if not (folder.exists and folder.ring()) and not folder.has("started"):
        layout.bury(run, None)
        folder.ring()
    return {}


def decide(folder: RunFolder, token: int, decisions: dict[str, str]) -> Json:
    """Write the searcher's decisions to the file that the run's ranks poll. Earlier decisions stand.

    :param decisions: number of a rung -> ``continue``, ``stop`` or ``complete``
    :raises Refused: ``stale_token``, the decisions are for another grant
    """
    known = (folder.plan() or {}).get("token")
    if token != known:
        raise Refused("stale_token", f"Run {folder.name} was granted under token {known}, not {token}.", recorded=known)
    lock = wait_lock(folder.file("decisions.lock"), 5.0)
    try:
        before = read_json(folder.file("decisions.json")) or {}
        after = {**decisions, **before}
        if len(after) > DECISIONS_LIMIT:
            raise Refused("bad_plan", f"decisions: must be at most {DECISIONS_LIMIT} for a run", field="decisions")
        if after != before:
            # Not durable: the ranks that poll it do not survive a crash of the host.
            write_json(folder.file("decisions.json"), after, durable=False)
    finally:
        os.close(lock)
    return {"decisions": after}


def go(layout: Layout, run: str, document: Json) -> Json | None:
    """Start a prepared run. Return an answer if there is nothing to wait for.

    :raises Refused: the run is not prepared here, or must no longer start
    """
    folder = layout.run(run)
    if folder.has("ended"):
        return ended_answer(folder)
    if folder.buried:
        raise buried(run)
    if not folder.alive():
        if folder.has("started"):
            cause, words = how_gone(folder)
            raise Refused("lost", f"Run {run} was started here and did not end: {words}.", cause=cause)
        raise Refused("not_prepared", f"Run {run} is not prepared on this host. Prepare it first.")
    state = folder.state().get("state")
    if state in ("running", "stopping", "killing"):
        return {"state": "running"}
    if state != "prepared":
        raise Refused("not_prepared", f"Run {run} is not prepared on this host yet.")
    if not folder.has("go.json"):
        write_json(folder.file("go.json"), document, durable=False)
    folder.ring()
    return None


def ended_answer(folder: RunFolder) -> Json:
    """Return the answer for a run that has ended.

    :raises Refused: ``lost``, the run ended because its supervisor disappeared
    """
    ended = folder.ended() or {}
    if ended.get("reason") == "lost":
        words = f"Run {folder.name} was started here and did not end: its supervisor is gone."
        raise Refused("lost", words, cause=ended.get("cause"))
    return {"state": "ended", "reason": ended.get("reason")}


def go_outcome(folder: RunFolder) -> Json | None:
    """Return the answer to ``go`` once it is known, None before.

    :raises Refused: the supervisor is gone
    """
    if folder.has("ended"):
        return ended_answer(folder)
    if folder.state().get("state") in ("running", "stopping", "killing"):
        return {"state": "running"}
    if not folder.alive() and not folder.has("ended"):
        cause, words = how_gone(folder)
        raise Refused("lost", f"Run {folder.name} did not start: {words}.", cause=cause)
    return None


def run_state(folder: RunFolder) -> str:
    """Return a run's state for display: the supervisor's own, ``ended``, ``lost``, or ``gone`` before its start."""
    if folder.has("ended"):
        return "ended"
    if folder.alive():
        return str(folder.state().get("state", "preparing"))
    return "lost" if folder.has("started") else "gone"


def status(layout: Layout, devices: dict[int, str | None] | None = None, names: Iterable[str] | None = None) -> Json:
    """Return runs of this host and the holder of each slot.

    The runs take at most :data:`STATUS_BYTES`: those that have not ended come first, then the newest. ``left_out``
    counts the rest.

    :param devices: slots to check in addition to those that were ever locked here, with their devices
    :param names: the only runs to return; None = all
    """
    folders = [folder for folder in map(layout.run, layout.runs() if names is None else names) if folder.exists]
    runs: Json = {}
    room = STATUS_BYTES
    for folder in sorted(folders, key=status_order):
        found = run_status(folder)
        room -= len(json.dumps({folder.name: found}))
        if room < 0:
            break
        runs[folder.name] = found
    devices = devices or {}
    stuck = stuck_slots(layout)
    slots = {}
    for index in sorted({*layout.slots(), *devices}):
        slots[str(index)] = {"held_by": slot_holder(layout, index, devices, stuck)}
    return {"runs": runs, "left_out": len(folders) - len(runs), "slots": slots, "stores": layout.stores()}


def status_order(folder: RunFolder) -> tuple[bool, float]:
    """Return a key that sorts runs that have not ended first, then the newest."""
    try:
        return folder.has("ended"), -os.lstat(folder.path).st_mtime
    except FileNotFoundError:
        return True, 0.0


def slot_holder(layout: Layout, index: int, devices: dict[int, str | None], stuck: dict[int, str]) -> str | None:
    """Return the holder of a slot: the run of this account that holds it or has leftovers, or another process."""
    path = layout.slot_lock(index)
    label = read_json(path) or {}
    if is_locked(path):
        return str(label.get("run", "unknown"))
    if index in stuck:
        return stuck[index]
    device = devices.get(index, label.get("device"))
    holder = machine_holder(layout.machine_lock(index, device))
    if holder is not None or index not in devices or device is None:
        return holder
    users, unlisted = device_users(layout, [device])
    return process_words(users[0]) if users else unlisted_words(device) if unlisted else None


def stuck_slots(layout: Layout) -> dict[int, str]:
    """Return the slots of runs that have leftovers but no supervisor, with the name of the run."""
    found = {}
    for name in layout.runs():
        folder = layout.run(name)
        if has_left(folder):
            found.update(dict.fromkeys(plan_slots(folder.plan() or {}), name))
    return found


def process_words(user: Json) -> str:
    """Return a description of a process on a device."""
    return f"process {user['pid']} ({user['name'][:100]}) of user {user['user']}"


def run_status(folder: RunFolder) -> Json:
    """Return state, token, store and ranks of a run, and the time since its last renewal.

    ``unrenewed_s`` is measured on this host's own clock. It is None if no reading of this boot is known.
    """
    state, known, plan = folder.state(), folder.supervisor() or {}, folder.plan() or {}
    renewed = folder.renewal().get("renewed_boottime_s", state.get("prepared_boottime_s"))
    of_this_boot = known.get("boot_id") == boot_id()
    # The ``ended`` event is sent shortly before the file that records it. Until then state.json counts.
    ended = folder.ended() or (state if state.get("state") == "ended" else {})
    return {
        "state": run_state(folder),
        "reason": ended.get("reason"),
        "unrenewed_s": boottime() - renewed if of_this_boot and isinstance(renewed, (int, float)) else None,
        "ranks": [{key: rank.get(key) for key in ("rank", "pid", "exit_code")} for rank in rank_records(folder)],
        "token": int(folder.name.rpartition(".")[2]),
        "store": plan.get("store"),
        "launch": plan.get("launch"),
        "buried": folder.buried,
        "stop_requested": folder.has("stop_requested"),
    }


def collect(layout: Layout, older_than_s: float, *, runs: Iterable[str] | None = None, archives: Iterable[str] = (),
            dry_run: bool = False) -> Json:  # fmt: skip
    """Remove the folders of runs that ended long ago, and archives unused for as long. Return their sizes.

    Folders of runs that were never started, such as those of refused starts, are removed likewise. Tombstones stay,
    because a late start of a removed run must be refused.

    :param runs: only these; None = all
    :param archives: ``payloads/<digest>`` and ``libraries/<digest>`` to remove; an archive in use stays
    :param dry_run: remove nothing; return what could be removed, with all unused archives
    :raises OSError: nothing could be removed; the first error
    """
    sizes: dict[str, int] = {}
    wanted, now, failed = None if runs is None else set(runs), time.time(), None
    if not dry_run:
        finish_removals(layout)
    for name in layout.runs():
        if len(sizes) == COLLECT_LIMIT:
            break
        if wanted is not None and name not in wanted:
            continue
        try:
            size = collect_run(layout.run(name), older_than_s, now, dry_run=dry_run)
        except OSError as error:
            failed = failed or error
            continue
        if size is not None:
            sizes[name] = size
    found = collect_archives(layout, older_than_s, None if dry_run else set(archives))
    if not dry_run:
        forget_tombstones(layout, now)
    if failed is not None and not dry_run and not sizes and not found:
        raise failed
    return {"removed": sorted(sizes), "sizes": sizes, "archives": found}


def collect_run(folder: RunFolder, older_than_s: float, now: float, *, dry_run: bool) -> int | None:
    """Remove the folder of an old run. Return the bytes that this frees on the disk, None if the run stays.

    :raises OSError: the tombstone cannot be written, or the folder cannot be renamed
    """
    was_started = folder.has("started")
    if not is_collectable(folder, older_than_s, now) or folder.alive():
        return None
    if dry_run:
        return None if is_locked(folder.file("lock")) else tree_bytes(folder.path)
    try:
        lock = take_lock(folder.file("lock"))
    except FileNotFoundError:
        return None
    if lock is None:
        return None
    try:
        if folder.has("started") != was_started:
            return None
        size = tree_bytes(folder.path)
        bury_collected(folder)
        hidden = f".{folder.name}.{random.getrandbits(48):012x}{DELETED}"
        hidden = os.path.join(os.path.dirname(folder.path), hidden)
        os.rename(folder.path, hidden)
        remove_tree(hidden)
        return max(0, size - tree_bytes(hidden))
    finally:
        os.close(lock)


def is_collectable(folder: RunFolder, older_than_s: float, now: float) -> bool:
    """Return whether a run ended long ago, or was never started and nothing in its folder changed for as long."""
    with contextlib.suppress(FileNotFoundError):
        return now - os.stat(folder.file("ended")).st_mtime >= older_than_s
    if folder.has("started"):
        return False
    newest = max((found.st_ctime for _, found in walk_tree(folder.path)), default=now)
    return now - newest >= (older_than_s if folder.buried else max(older_than_s, UNSTARTED_S))


def bury_collected(folder: RunFolder) -> None:
    """Write the tombstone of a run that is about to be removed. On a full disk its folders make room.

    The run's ``ended`` file stays until then, because it refuses a late start as well.
    """
    try:
        return folder.layout.bury(folder.name, None)
    except OSError:
        if not folder.has("ended"):
            raise
    for name in names_in(folder.path):
        if os.path.isdir(folder.file(name)):
            remove_tree(folder.file(name))
    folder.layout.bury(folder.name, None)


def finish_removals(layout: Layout) -> None:
    """Remove what earlier collections have left of the folders of runs."""
    runs = os.path.join(layout.state_dir, "runs")
    for name in names_in(runs):
        if name.startswith(".") and name.endswith(DELETED):
            remove_tree(os.path.join(runs, name))


def remove_tree(root: str) -> None:
    """Remove a file or folder of any depth. What cannot be removed stays.

    Folders get the access rights that their removal needs.
    """
    if os.path.islink(root) or not os.path.isdir(root):
        with contextlib.suppress(OSError):
            os.unlink(root)
        return
    waiting, emptied = [root], set[str]()
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError):
            if folder in emptied:
                os.rmdir(folder)
                continue
            emptied.add(folder)
            waiting.append(folder)
            make_removable(folder)
            waiting += remove_files(folder, root)


def remove_files(folder: str, root: str) -> list[str]:
    """Remove the files of a folder and return its folders. Those with long paths are moved to ``root``."""
    with os.scandir(folder) as entries:
        found = list(entries)
    folders = []
    for entry in found:
        with contextlib.suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif len(os.fsencode(entry.path)) <= LONG_PATH:
                folders.append(entry.path)
            else:
                make_removable(entry.path)
                moved = os.path.join(root, f"{random.getrandbits(64):016x}{DELETED}")
                os.rename(entry.path, moved)
                folders.append(moved)
    return folders


def make_removable(folder: str) -> None:
    """Give the owner of a folder all access rights, which the removal of its content needs."""
    if os.lstat(folder).st_mode & 0o700 != 0o700:
        os.chmod(folder, 0o700)


def forget_tombstones(layout: Layout, now: float) -> None:
    """Remove tombstones older than :data:`TOMBSTONE_DAYS` whose run has no folder."""
    tombstones = os.path.join(layout.state_dir, "tombstones")
    for name in os.listdir(tombstones):
        with contextlib.suppress(OSError):
            path = os.path.join(tombstones, name)
            if now - os.stat(path).st_mtime > TOMBSTONE_DAYS * 86400 and not os.path.exists(layout.run(name).path):
                os.unlink(path)


def collect_archives(layout: Layout, older_than_s: float, wanted: set[str] | None) -> dict[str, int]:
    """Remove archives that no run of this host uses and no command asked for since. Return their sizes.

    :param wanted: ``kind/digest`` of those to remove; None removes nothing and returns all
    """
    plans = [layout.run(name).plan() or {} for name in layout.runs() if not layout.run(name).has("ended")]
    used = {str(plan.get(key)) for plan in plans for key in ("payload", "library")}
    sizes: dict[str, int] = {}
    for kind in KINDS:
        folder = os.path.join(layout.remote_dir, kind)
        for entry in names_in(folder):
            digest, path = entry.partition(".")[0], os.path.join(folder, entry)
            name = f"{kind}/{digest}"
            if not DIGEST.fullmatch(digest) or digest in used or (wanted is not None and name not in wanted):
                continue
            with contextlib.suppress(OSError):
                # ``have`` renews the time of an archive, so the age is checked immediately before the removal.
                if time.time() - os.lstat(path).st_mtime < older_than_s:
                    continue
                sizes[name] = sizes.get(name, 0) + tree_bytes(path)
                if wanted is not None:
                    remove_archive(path)
    return sizes


def remove_archive(path: str) -> None:
    """Remove an archive, or the folder it was unpacked into. A partly removed folder must not look complete."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}{DELETED}")
    os.rename(path, hidden)
    remove_tree(hidden)


def tree_bytes(path: str) -> int:
    """Return the bytes on disk of a file, or of a folder with all files below it."""
    return sum(found.st_blocks * 512 for _, found in walk_tree(path))


def walk_tree(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of a file, or of a folder and everything below it. What cannot be read is left out."""
    waiting = [path]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            found = os.lstat(one)
            yield one, found
            if stat.S_ISDIR(found.st_mode):
                waiting += [os.path.join(one, name) for name in os.listdir(one)]


@contextlib.contextmanager
def opened_below(root: str, folder: str) -> Iterator[str]:
    """Yield a path of a folder below ``root`` that refers to the same folder even if it is renamed.

    Links in ``root`` itself are followed, because a configuration or this file names it. Links below it are not.

    :raises FileNotFoundError: the folder does not exist
    :raises Refused: the path leads outside, or passes through a link
    """
    parts = folder.split("/")
    if len(folder) > 4096 or "\0" in folder or any(part in ("", ".", "..") for part in parts):
        raise Refused("bad_plan", f"folder: must be a plain relative path, got {shorten(folder)}", field="folder")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                words = f"folder: part {shorten(part)} of {shorten(folder)} must be a folder, but is a link or a file"
                raise Refused("bad_plan", words, field="folder") from error
            os.close(fd)
            fd = inner
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def remove_checkpoints(root: str, folder: str, names: list[str]) -> Json:
    """Remove checkpoints of the training library from a folder below ``root``. Other content stays.

    :param names: of the checkpoints' folders; a missing one counts as removed
    """
    try:
        with opened_below(root, folder) as path:
            return remove_from(path, names)
    except FileNotFoundError:
        return {"removed": list(names), "kept": {}}


def remove_from(root: str, names: list[str]) -> Json:
    """Remove checkpoints from the folder that holds them."""
    removed, kept = [], {}
    for name in names:
        path = os.path.join(root, name)
        reason = why_no_checkpoint(path) if os.path.lexists(path) else None
        if reason is not None:
            kept[name] = reason
            continue
        try:
            # A partly removed checkpoint must not look complete.
            hidden = os.path.join(root, f".{name}.{os.getpid()}.deleted")
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, hidden)
                shutil.rmtree(hidden, ignore_errors=True)
            removed.append(name)
        except OSError as error:
            kept[name] = str(error)
    return {"removed": removed, "kept": kept}


def why_no_checkpoint(path: str) -> str | None:
    """Return the reason why a folder is not a checkpoint of the training library, None if it is one."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return "it is not a folder"
        with open(os.path.join(path, "metadata.json"), "rb") as file:
            metadata = json.loads(file.read(MAX_LINE))
        known = {"metadata.json", *metadata["files"]}
        if not isinstance(metadata["step"], int) or not isinstance(metadata["format"], int):
            return "its metadata.json was not written by the training library"
        strangers = sorted(set(os.listdir(path)) - known)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"its metadata cannot be read: {type(error).__name__}"
    return f"it also contains {shorten(strangers[0])}" if strangers else None


def renew(layout: Layout, runs: list[str], reading: float, orphan_timeout_s: float) -> None:
    """Set the deadline of some runs to ``reading`` + ``orphan_timeout_s``, 0 = never.

    The reading is this host's own, from a heartbeat. A reading from the future is refused. A reading
    that is older than the last one changes nothing. A run that cannot be renewed does not keep others from it.

    :raises OSError: of the first run that could not be renewed
    """
    if reading > boottime():
        raise Refused("bad_plan", f"boottime_s: must not be in this host's future, got {reading:g}", field="boottime_s")
    failed: OSError | None = None
    for name in runs:
        folder = layout.run(name)
        known = folder.renewal()
        if not folder.exists or folder.has("ended") or known.get("renewed_boottime_s", -1.0) >= reading:
            continue
        deadline = reading + orphan_timeout_s if orphan_timeout_s else 0
        try:
            folder.renew(reading, deadline)
        except OSError as error:
            failed = failed or error
        # The new deadline may be nearer than the old one, which may have been "never".
        folder.ring()
    if failed is not None:
        raise failed


def probe(layout: Layout) -> Json:
    """Return the facts of this host."""
    disk = os.statvfs(layout.state_dir)
    return {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "executable": sys.executable,
        "torch": distribution_version("torch"),
        "gpus": gpus(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "interfaces": [
            {
                "name": found["interface"],
                **{key: found[key] for key in ("address", "prefix", "mtu", "speed_mbps", "family")},
            }
            for found in candidates()
        ],
        "container_runtime": next((name for name in ("podman", "docker") if shutil.which(name)), None),
        "wall_s": time.time(),
        "boottime_s": boottime(),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "machine_id": machine_id(),
        "boot_id": boot_id(),
        "pid_ns": pid_namespace(),
        "pid1_start_time": getattr(read_proc(1), "start_time", 0),
        "stores": layout.stores(),
        "state_dir_fs": mount_of(layout.state_dir)[1],
        "lock_dir": layout.lock_dir,
        "lock_problem": layout.lock_problem,
        **logout_facts(),
    }


def logout_facts() -> Json:
    """Return whether logind ends an account's processes when its last session ends, None without logind."""
    if not os.path.isdir("/run/systemd/system"):
        return {"linger": None, "kill_user_processes": None}
    return {
        "linger": lingers(),
        "kill_user_processes": kills_user_processes(),
    }


def lingers() -> bool:
    """Return whether the account's own systemd keeps running without a session (loginctl enable-linger)."""
    return os.path.exists(os.path.join(LINGER_DIR, user_name(os.getuid())))


def kills_user_processes() -> bool | None:
    """Return logind's setting ``KillUserProcesses``, None if it is not set and the built-in default applies."""
    name, found = "systemd/logind.conf", None
    drop_ins: dict[str, str] = {}
    for folder in ("/usr/lib", "/run", "/etc"):
        parts = os.path.join(folder, f"{name}.d")
        # A file in a later folder replaces one of the same name in an earlier folder.
        drop_ins.update({entry: os.path.join(parts, entry) for entry in names_in(parts) if entry.endswith(".conf")})
    for path in [os.path.join("/etc", name), *(drop_ins[entry] for entry in sorted(drop_ins))]:
        for line in (read_text(path) or "").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "KillUserProcesses":
                found = value.strip().lower() in ("yes", "true", "on", "1")
    return found


LOOK_FOR_MODULES = """
import importlib.util, json, sys
try:
    import importlib.metadata as metadata
except ImportError:
    metadata = None
def version(name):
    try:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            return None
    except (ImportError, ValueError):
        return None
    for distribution in (name, name.replace("_", "-")):
        try:
            return metadata.version(distribution)
        except Exception:
            pass
    try:
        found = metadata.packages_distributions().get(name.partition(".")[0])
        return metadata.version(found[0])
    except Exception:
        return "unknown"
names = json.load(sys.stdin)
sys.stdout.write("\\nDTRAIN " + json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable,
    "modules": dict((name, version(name)) for name in names)}) + "\\n")
"""


def look_for_modules(python: str | None, modules: list[str], folder: str) -> tuple[Json, list[str]]:
    """Return the versions of some modules of an interpreter, without importing them, and the problems."""
    if python is None and not modules:
        return {"python": "{}.{}.{}".format(*sys.version_info[:3]), "executable": sys.executable, "modules": {}}, []
    argv = [os.path.expanduser(python) if python else sys.executable, "-c", LOOK_FOR_MODULES]
    nothing: Json = {"python": None, "executable": None, "modules": dict.fromkeys(modules)}
    try:
        done = subprocess.run(
            argv, input=json.dumps(modules).encode(), capture_output=True, timeout=30, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return nothing, [f"interpreter {python} cannot be used: {getattr(error, 'strerror', None) or error}"]
    for line in reversed(done.stdout.splitlines()):
        found = parse_object(line[7:]) if line.startswith(b"DTRAIN ") else None
        if found is not None:
            return found, []
    words = done.stderr.decode("utf-8", "replace").strip()[-300:]
    return nothing, [f"interpreter {argv[0]} exited with status {done.returncode}: {words}"]


def look_at_shared(path: str, nonce: str) -> tuple[Json, list[str]]:
    """Write this host's mark below a shared path and return the marks of all hosts found there."""
    folder = os.path.join(os.path.expanduser(path), f".dtrain-check-{nonce}")
    own = f"{machine_id()}-{pid_namespace()}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_atomic(os.path.join(folder, own), nonce.encode(), durable=False)
        seen = sorted(name for name in os.listdir(folder) if WORD.fullmatch(name) and not name.endswith(".tmp"))
    except OSError as error:
        return {"writable": False, "self": own, "seen": []}, [f"{path} cannot be written: {error.strerror}"]
    return {"writable": True, "self": own, "seen": seen}, []


def preflight(layout: Layout, fields: Fields) -> Json:
    """Return the facts needed to run a plan here: interpreter, modules, processes on devices, shared folders."""
    python = fields.text("python", default=None)
    modules = fields.texts("modules", MODULE, limit=256, default=[])
    slots = [Fields(slot, "slots") for slot in fields.items("slots", default=[])]
    devices = [device for device in (slot.text("device", DEVICE, default=None) for slot in slots) if device]
    paths = fields.texts("shared_paths", limit=64, default=[])
    nonce = fields.text("nonce", WORD) if paths else ""
    answer, problems = look_for_modules(python, modules, layout.state_dir)
    shared = {}
    for path in paths:
        shared[path], words = look_at_shared(path, nonce)
        problems += words
    foreign, unusable = device_problems(layout, devices)
    return {**answer, "foreign": foreign, "problems": problems + unusable, "shared": shared}


# --------------------------------------------------------------------------------------------- logs


def match_logs(folder: RunFolder, patterns: list[str]) -> Json:
    """Return for each pattern the first line found in the logs of a run's ranks.

    Each pattern is searched in its own process with a limit on its CPU time, because a search in Python cannot
    be interrupted. The calling process must be single-threaded.

    :return: ``matches`` by number of the pattern, ``unfinished`` numbers, ``refused`` numbers with the reason
    """
    answer: Json = {"matches": {}, "unfinished": [], "refused": {}}
    ranks = [rank["rank"] for rank in (folder.plan() or {}).get("ranks", ())]
    children: dict[int, tuple[int, int]] = {}
    for index, pattern in enumerate(patterns):
        try:
            compiled = re.compile(without_edges(pattern))
        except (re.error, RecursionError, OverflowError) as error:
            answer["refused"][index] = f"{error}, on Python {sys.version_info.major}.{sys.version_info.minor}"
            continue
        children[index] = fork_match(folder, ranks, compiled)
    deadline = time.monotonic() + MATCH_WALL_S
    for index, (pid, fd) in children.items():
        ready = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]
        # A child that used up its CPU time was killed, so its end of the pipe is closed without an answer.
        found = os.read(fd, 1 << 16) if ready else b""
        os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        document = parse_object(found)
        if document is None:
            answer["unfinished"].append(index)
        elif document:
            answer["matches"][index] = document
    return answer


def fork_match(folder: RunFolder, ranks: list[int], pattern: re.Pattern[str]) -> tuple[int, int]:
    """Search in a child. Return its pid and the descriptor from which its answer is read."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (MATCH_CPU_S, MATCH_CPU_S + 1))
        write_all(writer, json.dumps(first_match(folder, ranks, pattern)).encode())
    finally:
        os._exit(0)


def without_edges(pattern: str) -> str:
    """Return a pattern that matches the same lines, without leading ``.*``, which makes a search slow."""
    while pattern.startswith(".*") and pattern[2:3] not in ("?", "+", "*", "{"):
        pattern = pattern[2:]
    return pattern


def first_match(folder: RunFolder, ranks: list[int], pattern: re.Pattern[str]) -> Json:
    """Return rank and text of a line that matches, {} when there is none.

    The ends of all logs are searched first, because the cause of a rank's end is there.
    """
    for start in (-(1 << 20), 0):
        for rank in ranks:
            for line in log_lines(folder.file(f"rank{rank}", "log"), start):
                if pattern.search(line):
                    return {"rank": rank, "line": line[:MATCH_SHOWN]}
    return {}


def log_lines(path: str, start: int) -> Iterator[str]:
    """Yield the lines of a log, each cut to :data:`MATCH_LINE`, without the part that ``log_limit`` freed.

    :param start: if negative, the number of bytes before the end to start at; else the whole log is read
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        size, rest = os.fstat(fd).st_size, b""
        position = max(0, size + start) if start < 0 else 0
        while position < size:
            with contextlib.suppress(OSError):
                position = max(position, os.lseek(fd, position, os.SEEK_DATA))
            data = os.pread(fd, CHUNK, position)
            if not data:
                break
            position += len(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()[-MATCH_LINE:]
            for line in lines:
                yield line[:MATCH_LINE].decode("utf-8", "replace").rstrip("\r")
        yield rest.decode("utf-8", "replace")
    finally:
        os.close(fd)


def run_match(folder: RunFolder, patterns: list[str]) -> Json:
    """Return the answer of :func:`match_logs` from a single-threaded process.

    :raises Refused: the process ended without an answer
    """
    argv = [sys.executable, os.path.abspath(__file__), "match", folder.name, "--state-dir", folder.layout.state_dir]
    request = json.dumps({"patterns": patterns}).encode()
    done = subprocess.run(argv, input=request, capture_output=True, timeout=MATCH_WALL_S + 20, check=False)
    answer = parse_object(done.stdout)
    if answer is None or answer.get("ok") is not True:
        raise Refused("internal", f"The log search exited with status {done.returncode}: {shorten(done.stderr)}")
    return answer


# ----------------------------------------------------------------------------------- network checks


def open_listeners(port_range: Any, where: list[str]) -> list[socket.socket]:
    """Return one listening socket per address, all on the same port.

    :param where: address literals of this host
    :raises Refused: no port of the range is free on all addresses
    """
    # Without a range the kernel chooses a port on the first address. It may be in use on another address.
    for port in ports_of(port_range) if port_range else [0] * 16:
        listeners: list[socket.socket] = []
        try:
            for address in where:
                listeners.append(listen_on(address, listeners[0].getsockname()[1] if listeners else port))
        except OSError:
            for sock in listeners:
                sock.close()
            continue
        return listeners
    raise Refused("no_port", f"No free port in {port_range}. Widen port_range or free its ports.")


def listen_on(address: str, port: int) -> socket.socket:
    """Return a socket that listens on one address of this host."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((address, port))
        sock.listen(256)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def addresses_to_listen_on(interface: str | None) -> list[str]:
    """Return the addresses for a network check: those of one interface, or all that other hosts may use."""
    if interface is None:
        return [found["address"] for found in candidates()]
    # A link-local IPv6 address is meaningless without its interface.
    return [found.address for found in addresses() if found.link.name == interface and found.scope in (0, SCOPE_HOST)]


def connect_all(nonce: str, targets: list[tuple[str, int]], timeout_s: float) -> list[Json]:
    """Connect to all targets at once. Return the result of each, in their order."""
    results: list[Json] = [
        {"address": address, "port": port, "ok": False, "source_address": None, "interface": None,
         "elapsed_s": timeout_s, "error": "timed out"} for address, port in targets
    ]  # fmt: skip

    def one(result: Json) -> None:
        result.update(connect_one(nonce, result["address"], result["port"], timeout_s))

    threads = [threading.Thread(target=one, args=(result,), daemon=True) for result in results]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s + 1.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [dict(result) for result in results]


def connect_one(nonce: str, address: str, port: int, timeout_s: float) -> Json:
    """Connect once. Return whether the other side sent the nonce, and the address and interface used."""
    begun = time.monotonic()
    found: Json = {"ok": False, "error": None}
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as sock:
            found["source_address"] = sock.getsockname()[0].replace("::ffff:", "")
            heard = b""
            while len(heard) <= len(nonce) and (chunk := sock.recv(256)):
                heard += chunk
        found["ok"] = heard == nonce.encode() + b"\n"
        if not found["ok"]:
            found["error"] = "another program answers there"
        found["interface"] = interface_of(found["source_address"])
    except socket.timeout:
        found["error"] = "timed out"
    except OSError as error:
        found["error"] = error.strerror or str(error)
    found["elapsed_s"] = round(time.monotonic() - begun, 6)
    return found


# ------------------------------------------------------------------------------------------ streams


class Stream:
    """A growing file that is sent from an offset on.

    :param whole: send whole lines only
    """

    def __init__(self, name: str, path: str, offset: int, *, whole: bool) -> None:
        self.name, self.path, self.whole = name, path, whole
        self.offset = self.acked = offset
        self.epoch = 0
        #: End of the part that is sent, once the writer is gone. Bytes appended later are ignored.
        self.limit: int | None = None
        #: Gaps that were sent and not acknowledged, [start, end).
        self.skipped: list[tuple[int, int]] = []

    def size(self) -> int:
        """Return the file's length, 0 while it does not exist."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return 0
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        return size if self.limit is None else min(size, self.limit)

    def acknowledge(self, offset: int) -> None:
        """Record that the control side has all bytes before ``offset``."""
        self.acked = max(self.acked, min(offset, self.offset))
        self.skipped = [gap for gap in self.skipped if gap[1] > self.acked]

    def room(self) -> int:
        """Return the number of bytes that may be sent now. Bytes of a gap do not count as sent."""
        unsent = sum(end - max(start, self.acked) for start, end in self.skipped)
        return WINDOW - (self.offset - self.acked - unsent)

    def gap(self, length: int, reason: str) -> tuple[Json, bytes]:
        """Return the frame for omitted bytes, and move the offset behind them."""
        frame = {"t": "gap", "stream": self.name, "offset": self.offset, "skip_bytes": length, "reason": reason}
        self.skipped.append((self.offset, self.offset + length))
        self.offset += length
        return self._numbered(frame), b""

    def _numbered(self, frame: Json) -> Json:
        return {**frame, "epoch": self.epoch} if self.epoch else frame

    def peek(self) -> bytes:
        """Return the next bytes that may be sent: whole lines, or any bytes of a log. The offset stays."""
        limit = min(self.room(), WINDOW if self.whole else CHUNK, self.size() - self.offset)
        if limit <= 0:
            return b""
        # Lines are sent whole. An offset that does not follow a newline is inside a line that is being skipped.
        if self.whole and self.offset and self._read(self.offset - 1, 1) != b"\n":
            return b""
        data = self._read(self.offset, limit)
        return data[: data.rfind(b"\n") + 1] if self.whole else data

    def _read(self, offset: int, length: int) -> bytes:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(fd, length, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def next(self, final: bool) -> tuple[Json, bytes] | None:
        """Return the next frame, None if there is nothing to send now.

        :param final: no process writes to the file from now on
        """
        size = self.size()
        if size < self.offset and not self.whole:
            # A log is short for a moment while it is cut.
            time.sleep(0.01)
            size = self.size()
        if size < self.offset:
            return self._anew(size)
        if size == self.offset or self.room() <= 0:
            return None
        hole = None if self.whole else self._hole()
        freed = hole[1] - max(hole[0], self.offset) if hole is not None else 0
        if not self.whole and size - self.offset - freed > LOG_LAG:
            # The end of a run is sent after its logs. A control side that lags behind must not delay it.
            return self.gap(size - self.offset - LOG_LAG // 8, "the follower was far behind")
        if hole is not None and hole[0] <= self.offset:
            return self.gap(hole[1] - self.offset, "beyond log_limit")
        data = self.peek()
        hole = None if self.whole else self._hole()
        if hole is not None and hole[0] < self.offset + len(data):
            # The part was freed before or during the read. Bytes behind its start are not the rank's.
            data = data[: max(0, hole[0] - self.offset)]
            if not data:
                return self.gap(hole[1] - self.offset, "beyond log_limit")
        if data:
            return self.take(data)
        return self.skip(final) if self.whole else None

    def skip(self, final: bool) -> tuple[Json, bytes] | None:
        """Return a gap for a line that is too long or was not finished, None while it may still become whole.

        The gap ends behind the next newline, or inside the line, where the next gap continues. Gaps are sent one at
        a time, so that a line of any length costs the control side no more than a frame for each :data:`SKIP`.
        """
        size = self.size()
        is_inside = self.offset > 0 and self._read(self.offset - 1, 1) != b"\n"
        is_too_long = is_inside or size - self.offset >= WINDOW
        if self.skipped or self.room() < WINDOW or size <= self.offset or not (final or is_too_long):
            return None
        data = self._read(self.offset, min(SKIP, size - self.offset))
        end = data.find(b"\n") + 1
        words = f"a line of more than {WINDOW} bytes" if is_too_long else "an unfinished line"
        return self.gap(end or len(data), words) if data else None

    def _anew(self, size: int) -> tuple[Json, bytes]:
        words = f"the file has only {size} bytes: the host lost data that was not on its disk"
        frame = {"t": "gap", "stream": self.name, "offset": self.offset, "reason": words}
        self.epoch += 1
        self.offset = self.acked = 0
        self.skipped = []
        return self._numbered(frame), b""

    def take(self, data: bytes) -> tuple[Json, bytes]:
        """Return a frame with these bytes, and move the offset behind them."""
        frame = {"t": "data", "stream": self.name, "offset": self.offset, "bytes": len(data)}
        self.offset += len(data)
        return self._numbered(frame), data

    def drained(self) -> bool:
        """Return whether all bytes of the file were sent."""
        return self.offset == self.size()

    def _hole(self) -> tuple[int, int] | None:
        return hole_of(self.path, self.offset, self.size())


def hole_of(path: str, offset: int, size: int) -> tuple[int, int] | None:
    """Return the part of a log that ``log_limit`` freed, if it reaches beyond an offset.

    :param size: of the log, bytes
    """
    # The rank may have replaced the file. The supervisor never writes a longer one.
    content = read_bytes(os.path.join(os.path.dirname(path), "gaps.json"), IN_PLACE_BYTES)
    gaps = (parse_object(content or b"") or {}).get("gaps")
    for pair in gaps if isinstance(gaps, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and number(pair[0]) >= 0:
            end = min(number(pair[1]), size)
            if end > max(offset, pair[0]):
                return pair[0], end
    return None


def read_log(fd: int, path: str, start: int, length: int) -> tuple[int, bytes]:
    """Return offset and bytes of a part of a log, without the part that ``log_limit`` freed.

    The offset is behind the freed part if ``start`` lies in it.
    """
    while True:
        data = os.pread(fd, length, start)
        # A gap is recorded before its bytes are freed, so it is looked up after they were read.
        hole = hole_of(path, start, os.fstat(fd).st_size)
        if hole is None or hole[0] >= start + len(data):
            return start, data
        if hole[0] > start:
            return start, data[: hole[0] - start]
        start = hole[1]


class Subscription:
    """Subscription of a control side to a run, with the offset of each stream."""

    def __init__(self, folder: RunFolder, plan: Json, offsets: dict[str, int], logs: str) -> None:
        self.folder = folder
        self.supervisor = Stream(
            "supervisor.events", folder.file("events.supervisor"), offsets.get("supervisor.events", 0), whole=True
        )
        self.ranks: list[Stream] = []
        for rank in plan["ranks"]:
            name = f"rank{rank['rank']}"
            events = f"{name}.events"
            self.ranks.append(Stream(events, folder.file(name, "events"), offsets.get(events, 0), whole=True))
            if logs == "all" or (logs == "rank0" and rank["rank"] == 0):
                log = f"{name}.log"
                self.ranks.append(Stream(log, folder.file(name, "log"), offsets.get(log, 0), whole=False))
        #: The ``ended`` event was seen, so the ranks' files no longer grow.
        self.final = False
        self.complete = False
        self.dirty = True
        self.progress = RunProgress(folder)
        self.not_before = 0.0

    def stream(self, name: str) -> Stream | None:
        """Return a stream by its name."""
        return next((stream for stream in [self.supervisor, *self.ranks] if stream.name == name), None)

    def frames(self) -> Iterator[tuple[Json, bytes]]:
        """Yield at most one frame of each stream, ranks first, so that ``ended`` follows all that they wrote."""
        self.dirty = False
        for stream in self.ranks:
            frame = stream.next(self.final)
            if frame is not None:
                self.dirty = True
                yield self._named(frame)
        frame = self._of_supervisor()
        if frame is not None:
            self.dirty = True
            yield self._named(frame)

    def _named(self, frame: tuple[Json, bytes]) -> tuple[Json, bytes]:
        return {**frame[0], "run": self.folder.name}, frame[1]

    def _of_supervisor(self) -> tuple[Json, bytes] | None:
        """Return the supervisor's next events. The last one waits until the ranks' files were sent to their end."""
        stream = self.supervisor
        if stream.size() < stream.offset:
            return stream.next(False)
        data = stream.peek()
        cut = position_of_end(data)
        if cut is not None and not self.final:
            # All data of the ranks is in their files now, but may not have been when they were read.
            self.final = self.dirty = True
            for rank in self.ranks:
                rank.limit = rank.size()
            data = data[:cut]
        elif cut is not None:
            if all(rank.drained() for rank in self.ranks):
                self.complete = True
            else:
                data = data[:cut]
        return stream.take(data) if data else stream.skip(self.final) if cut is None else None


def position_of_end(data: bytes) -> int | None:
    """Return the offset of the ``ended`` event in whole lines, None if it is not there."""
    position = 0
    for line in data.splitlines(keepends=True):
        if (decode_event(line) or {}).get("kind") == "ended":
            return position
        position += len(line)
    return None


class RankLook:
    """State of one rank's process, gathered from all polls so far."""

    def __init__(self, proc: Proc, cpu_s: float, now: float) -> None:
        self.start_time, self.state, self.state_since = proc.start_time, proc.state, now
        self.cpu_s, self.at, self.busy_at = cpu_s, now, now

    def take(self, proc: Proc, cpu_s: float, now: float) -> None:
        """Add the result of a poll."""
        if proc.state != self.state:
            self.state, self.state_since = proc.state, now
        if 0 < now - self.at < LOOK_S / 2:
            # One tick of the kernel's clock would look like work.
            return
        if cpu_s - self.cpu_s >= IDLE_RATIO * (now - self.at):
            self.busy_at = now
        self.cpu_s, self.at = cpu_s, now


class RunProgress:
    """Progress of the ranks of a run, for the watchdog of the control side.

    All durations are measured on this host's CLOCK_BOOTTIME and end at the poll, so that a report stays correct if it
    arrives late. For ranks that do not use the library, only the state of their process is reported.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.looks: dict[int, RankLook] = {}
        self.stopped_since: float | None = None
        self.had_news = False

    def look(self) -> tuple[Json, bool]:
        """Return the report, and whether it should be sent at once."""
        now = boottime()
        ranks = [found for found in (self._rank(one, now) for one in rank_records(self.folder)) if found is not None]
        supervisor = find_process(self.folder.supervisor())
        if supervisor is None or supervisor.state not in "Tt":
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now
        stopped_s = now - self.stopped_since if self.stopped_since is not None else 0.0
        report = {"boottime_s": now, "ranks": ranks, "supervisor_stopped_s": round(stopped_s, 1)}
        # A rank that resumes is news as well.
        before, self.had_news = self.had_news, any(map(self._is_news, ranks))
        return report, before or self.had_news

    def _rank(self, record: Json, now: float) -> Json | None:
        rank, pid = number(record.get("rank")), number(record.get("pid"))
        proc = read_proc(pid) if pid > 0 and record.get("exit_code") is None else None
        if proc is None or proc.start_time != record.get("start_time") or is_dead(proc):
            self.looks.pop(rank, None)
            return None
        cpu_s, seen = cpu_seconds(pid), self.looks.get(rank)
        if seen is None or seen.start_time != proc.start_time:
            seen = self.looks[rank] = RankLook(proc, cpu_s, now)
        seen.take(proc, cpu_s, now)
        found = {"rank": rank, "pid": pid, "state": proc.state, "state_s": round(now - seen.state_since, 1),
                 "idle_s": round(now - seen.busy_at, 1)}  # fmt: skip
        return {**found, **read_page(self.folder.file("progress", str(rank)), now)}

    @staticmethod
    def _is_news(rank: Json) -> bool:
        spans = [rank.get("silent_s", 0.0), rank.get("still_s", 0.0) if rank.get("started") else 0.0]
        spans.append(rank["state_s"] if rank["state"] in "TtD" else 0.0)
        return any(STANDS_S <= span <= STOOD_S for span in spans)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads in seconds, 0 if it is gone."""
    fields = (read_text(f"/proc/{pid}/stat") or "").rpartition(") ")[2].split()
    try:
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (ValueError, IndexError):
        return 0.0


def read_page(path: str, now: float) -> Json:
    """Return the progress that a rank wrote, {} without a valid page.

    :param now: time on CLOCK_BOOTTIME, seconds
    """
    page = parse_object(read_bytes(path, PAGE_BYTES) or b"") or {}
    try:
        fields = Fields(page)
        return {
            "silent_s": round(max(0.0, now - fields.number("at", 0, 1e12)), 1),
            "still_s": round(max(0.0, now - fields.number("since", 0, 1e12)), 1),
            "steps": fields.integer("steps", 0, 1 << 62),
            "started": fields.flag("started"),
            "phase": fields.text("phase", WORD, limit=16),
            "what": fields.text("what", limit=60),
        }
    except Refused:
        return {}


class Watcher:
    """Change detection for the folders of runs through inotify. Runs that it cannot watch are polled."""

    MASK = 0x2 | 0x8 | 0x80 | 0x100

    def __init__(self) -> None:
        self.fd = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watches: dict[int, str] = {}
        self.blind: set[str] = set()

    def add(self, run: str, path: str) -> None:
        """Report changes below ``path`` as changes of ``run``."""
        watch = LIBC.inotify_add_watch(self.fd, os.fsencode(path), self.MASK) if self.fd >= 0 else -1
        if watch < 0:
            self.blind.add(run)
        else:
            self.watches[watch] = run

    def remove(self, run: str) -> None:
        """Stop reporting changes of a run."""
        self.blind.discard(run)
        for watch in [watch for watch, name in self.watches.items() if name == run]:
            LIBC.inotify_rm_watch(self.fd, watch)
            del self.watches[watch]

    def changed(self) -> set[str]:
        """Return the runs whose files have changed since the last call."""
        found: set[str] = set()
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return found
        while len(data) >= 16:
            watch, mask, _, length = struct.unpack_from("=iIII", data)
            data = data[16 + length :]
            if mask & 0x4000:
                found.update(self.watches.values())
            elif watch in self.watches:
                found.add(self.watches[watch])
        return found


# ------------------------------------------------------------------------------------------ channel


class Output:
    """Queue of bytes to be written to the control side."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting: deque[memoryview] = deque()
        self.size = 0
        self.broken = False
        os.set_blocking(fd, False)

    def frame(self, document: Json, data: bytes = b"") -> None:
        """Queue a line and the raw bytes that belong to it."""
        if self.broken:
            return
        for piece in (json.dumps(document, separators=(",", ":")).encode() + b"\n", data):
            if piece:
                self.waiting.append(memoryview(piece))
                self.size += len(piece)

    def flush(self) -> None:
        """Write as much as the other side accepts now."""
        while self.waiting and not self.broken:
            try:
                done = os.writev(self.fd, list(self.waiting)[:64]) if len(self.waiting) > 1 else os.write(
                    self.fd, self.waiting[0])  # fmt: skip
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self.waiting.clear()
                self.size = 0
                return
            self.size -= done
            while done:
                first = self.waiting.popleft()
                if done < len(first):
                    self.waiting.appendleft(first[done:])
                    break
                done -= len(first)


class ProtocolError(Exception):
    """Input that violates the protocol. It ends the channel."""


class Follow:
    """One channel: accepts commands, answers them, streams the files of runs.

    One thread does all quick work. Commands that may take long run in their own threads. The zygote
    forks supervisors, because this process has threads.
    """

    def __init__(self, layout: Layout, zygote: Zygote, stdin: int, stdout: int) -> None:
        self.layout, self.zygote = layout, zygote
        self.stdin = stdin
        self.output = Output(stdout)
        self.input = bytearray()
        self.open = True
        self.poller = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.answers: OrderedDict[str, tuple[Json, bytes]] = OrderedDict()
        #: Request id -> number of answers to send.
        self.pending: dict[str, int] = {}
        self.results: queue.SimpleQueue[tuple[str | None, Json, bytes]] = queue.SimpleQueue()
        self.threads = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.waiting_go: list[tuple[str, RunFolder, float]] = []
        self.listeners: dict[str, list[socket.socket]] = {}
        self.shared_checks: dict[str, set[str]] = {}
        self.pidfds: dict[str, int] = {}
        self.recovering: set[str] = set()
        self.over: set[str] = set()
        self.next_beat = self.next_progress = 0.0
        self.watcher = Watcher()
        self.idle_s = 0.02
        self.next_look = 0.0
        self.wake_reader, self.wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def hello(self) -> None:
        """Write the greeting."""
        document = {
            "protocol": PROTOCOL,
            "machine_id": machine_id(),
            "boot_id": boot_id(),
            "pid_ns": pid_namespace(),
            "pid1_start_time": getattr(read_proc(1), "start_time", 0),
            "uid": os.getuid(),
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "executable": sys.executable,
            "state_dir": self.layout.state_dir,
            "boottime_s": boottime(),
            "wall_s": time.time(),
            "hostname": socket.gethostname(),
            "stores": self.layout.stores(),
        }
        line = f"DTRAIN/{PROTOCOL} {json.dumps(document, separators=(',', ':'))}\n".encode()
        self.output.waiting.append(memoryview(line))
        self.output.size += len(line)

    def run(self) -> int:
        """Serve until the control side closes the channel. Runs continue without it."""
        self.hello()
        os.set_blocking(self.stdin, False)
        self._handle(self.stdin, self._read_input)
        self._handle(self.wake_reader, self._drain_wake)
        self._handle(self.zygote.socket.fileno(), self._end)
        if self.watcher.fd >= 0:
            self._handle(self.watcher.fd, self._note_changes)
        code = 0
        try:
            while self.open and not self.output.broken:
                self._turn()
        except ProtocolError as error:
            self.output.frame({"re": None, "ok": False, "code": "protocol", "message": str(error)})
            code = 2
        self._finish()
        return code

    def _turn(self) -> None:
        """Wait for input or a deadline, handle it, and send queued output."""
        self.output.flush()
        if self.output.waiting:
            self.poller.register(self.output.fd, select.POLLOUT)
        for fd, _ in self.poller.poll(max(0.0, self._timeout() * 1000)):
            handler = self.handlers.get(fd)
            if handler is not None:
                handler()
        if self.output.fd not in self.handlers:
            with contextlib.suppress(KeyError):
                self.poller.unregister(self.output.fd)
        self._deliver()
        self._look_at_go()
        self._beat()
        self._pump()

    def _finish(self) -> None:
        """Wait for commands in progress. The control side may have closed the channel right after sending them."""
        deadline = time.monotonic() + 20.0
        while (self.pending or self.threads) and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError, OSError):
                select.select([self.wake_reader], [], [], 0.01)
            for fd, _ in self.poller.poll(0):
                if fd != self.stdin and fd in self.handlers:
                    self.handlers[fd]()
            self._deliver()
            self._look_at_go()
            self.output.flush()
        deadline = time.monotonic() + 2.0
        while self.output.waiting and not self.output.broken and time.monotonic() < deadline:
            select.select([], [self.output.fd], [], 0.1)
            self.output.flush()

    def _handle(self, fd: int, handler: Callable[[], None]) -> None:
        self.handlers[fd] = handler
        self.poller.register(fd, select.POLLIN)

    def _forget(self, fd: int) -> None:
        self.handlers.pop(fd, None)
        with contextlib.suppress(KeyError, ValueError):
            self.poller.unregister(fd)

    def _timeout(self) -> float:
        """Return the seconds until the next deadline or poll."""
        now = time.monotonic()
        times = [self.next_beat - now, LOOK_S]
        if self.subscriptions:
            times.append(self.next_progress - now)
        if self.waiting_go:
            times.append(0.001)
        room = self.output.size < HIGH_WATER
        for run, subscription in self.subscriptions.items():
            if subscription.complete:
                continue
            if subscription.dirty and room:
                times.append(subscription.not_before - now)
            if run in self.watcher.blind:
                times.append(self.next_look - now)
        return max(0.0, min(times))

    # Input.

    def _read_input(self) -> None:
        try:
            data = os.read(self.stdin, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        self.input += data
        *lines, rest = bytes(self.input).split(b"\n") if b"\n" in data else (bytes(self.input),)
        self.input = bytearray(rest)
        if len(self.input) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise ProtocolError(f"a line of more than {MAX_LINE} bytes")
        for line in lines:
            if line.strip():
                self._command(line)

    def _command(self, line: bytes) -> None:
        message = parse_object(line)
        name = message.get("cmd") if message else None
        key = message.get("id") if message else None
        if message is None or not isinstance(name, str):
            raise ProtocolError(f"a line that is not a command: {shorten(line[:60].decode('utf-8', 'replace'))}")
        if key is not None and (not isinstance(key, str) or len(key) > 128):
            raise ProtocolError("a request id that is not a string of at most 128 characters")
        if key is not None and key in self.answers:
            self.output.frame(*self.answers[key])
            return
        if key is not None and key in self.pending:
            self.pending[key] += 1
            return
        if key is not None:
            self.pending[key] = 1
        try:
            self._dispatch(key, name, Fields(message))
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            self._answer(key, refusal_of(error).answer())

    def _dispatch(self, key: str | None, name: str, fields: Fields) -> None:
        quick = self.QUICK.get(name)
        slow = self.SLOW.get(name)
        if quick is not None:
            found = quick(self, key, fields)
            if found is not None:
                self._answer(key, {"ok": True, **found[0]}, found[1])
        elif slow is not None:
            self._start_thread(key, slow(self, fields))
        else:
            raise Refused("unknown_command", f"{shorten(name)} is not a command of protocol {PROTOCOL}.")

    def _start_thread(self, key: str | None, work: Callable[[], Json]) -> None:
        if self.threads >= MAX_THREADS:
            raise Refused("busy", f"{MAX_THREADS} commands run on this channel, the most allowed. Wait for an answer.")
        self.threads += 1

        def body() -> None:
            try:
                answer = {"ok": True, **work()}
            except BaseException as error:
                answer = refusal_of(error).answer()
            self.results.put((key, answer, b""))
            with contextlib.suppress(OSError):
                os.write(self.wake_writer, b"!")

        try:
            threading.Thread(target=body, daemon=True).start()
        except RuntimeError as error:
            self.threads -= 1
            words = f"This host has no room for another thread: {error}. End processes of the account, or raise"
            raise Refused("busy", f"{words} its limit (ulimit -u).") from error

    def _end(self) -> None:
        """End the channel because the zygote is gone. The control side connects again and gets another one."""
        self._forget(self.zygote.socket.fileno())
        self.open = False

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_reader, 4096)

    def _deliver(self) -> None:
        while True:
            try:
                key, answer, data = self.results.get_nowait()
            except queue.Empty:
                return
            self.threads -= 1
            self._answer(key, answer, data)

    def _answer(self, key: str | None, answer: Json, data: bytes = b"") -> None:
        """Send an answer once for each copy of its request, and keep it for later copies."""
        if key is None:
            return
        frame = {"re": key, **answer}
        for _ in range(self.pending.pop(key, 1)):
            self.output.frame(frame, data)
        self.answers[key] = (frame, data)
        while len(self.answers) > 256:
            self.answers.popitem(last=False)

    # Quick commands answer, or return None and answer later.

    def _prepare(self, key: str | None, fields: Fields) -> tuple[Json, bytes] | None:
        plan = check_plan(fields.inner("plan").values)
        secrets = check_secrets(fields.values.get("secrets"))
        reader = self.zygote.launch(json.dumps({"plan": plan, "secrets": secrets}).encode())
        received = bytearray()

        def read() -> None:
            try:
                chunk = os.read(reader, 1 << 16)
            except BlockingIOError:
                return
            if chunk:
                received.extend(chunk)
                return
            self._forget(reader)
            os.close(reader)
            self._answer(key, parse_report(bytes(received)))

        self._handle(reader, read)
        return None

    def _go(self, key: str | None, fields: Fields) -> tuple[Json, bytes] | None:
        run = fields.run()
        address = fields.text("master_addr", WORD)
        document = {"master_addr": address, "master_port": fields.integer("master_port", 0, 65535)}
        found = go(self.layout, run, document)
        if found is None and key is not None:
            self.waiting_go.append((key, self.layout.run(run), time.monotonic() + GO_WAIT_S))
            return None
        return found or {}, b""

    def _look_at_go(self) -> None:
        waiting, self.waiting_go = self.waiting_go, []
        for key, folder, deadline in waiting:
            try:
                found = go_outcome(folder)
                if found is None and time.monotonic() > deadline:
                    raise Refused("timeout", f"Run {folder.name} did not start within {GO_WAIT_S:g} s.")
            except Refused as error:
                self._answer(key, error.answer())
                continue
            if found is None:
                self.waiting_go.append((key, folder, deadline))
            else:
                self._answer(key, {"ok": True, **found})

    def _stop(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        return stop(self.layout, fields.run(), fields.number("grace_s", 0, 86400, default=None)), b""

    def _request_stop(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self._folder(fields)
        if not folder.has("stop_requested"):
            write_json(folder.file("stop_requested"), {"at": time.time()}, durable=False)
        folder.ring()
        return {}, b""

    def _decide(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        inner = fields.inner("decisions")
        if len(inner.values) > DECISIONS_LIMIT or not all(RUNG.fullmatch(str(rung)) for rung in inner.values):
            raise inner.bad("", f"must have at most {DECISIONS_LIMIT} keys, each the number of a rung")
        decisions = {str(rung): inner.text(rung, DECISION, limit=16) for rung in inner.values}
        return decide(self._folder(fields), fields.integer("token", 0, 1 << 62), decisions), b""

    def _folder(self, fields: Fields) -> RunFolder:
        folder = self.layout.run(fields.run())
        if not folder.exists or folder.plan() is None:
            raise Refused("unknown_run", f"Run {folder.name} is not known on this host.")
        return folder

    def _subscribe(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self._folder(fields)
        inner = fields.inner("offsets", default={})
        if len(inner.values) > 8192 or not all(STREAM.fullmatch(str(name)) for name in inner.values):
            raise inner.bad("", "must have at most 8192 keys, each the name of a stream")
        offsets = {name: inner.integer(name, 0, 1 << 62) for name in inner.values}
        logs = fields.text("logs", re.compile("rank0|all|none"), default="rank0")
        plan = folder.plan() or {}
        self._leave(folder.name)
        subscription = Subscription(folder, plan, offsets, logs)
        self.subscriptions[folder.name] = subscription
        self.watcher.add(folder.name, folder.path)
        for rank in plan["ranks"]:
            self.watcher.add(folder.name, folder.file(f"rank{rank['rank']}"))
        self._watch_supervisor(folder)
        return {}, b""

    def _watch_supervisor(self, folder: RunFolder) -> None:
        """Watch the supervisor of a subscribed run, so that its death is noticed at once."""
        proc = find_process(folder.supervisor())
        fd = open_pidfd(proc.pid) if proc is not None else -1
        if fd < 0:
            self._recover(folder)
            return
        self.pidfds[folder.name] = fd

        def died() -> None:
            self._unwatch(folder.name)
            self._recover(folder)
            if folder.name in self.subscriptions:
                self.subscriptions[folder.name].dirty = True

        self._handle(fd, died)

    def _unwatch(self, run: str) -> None:
        fd = self.pidfds.pop(run, -1)
        if fd >= 0:
            self._forget(fd)
            os.close(fd)

    def _leave(self, run: str) -> None:
        if self.subscriptions.pop(run, None) is not None:
            self.watcher.remove(run)
            self._unwatch(run)

    def _unsubscribe(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        self._leave(fields.run())
        return {}, b""

    def _ack(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        subscription = self.subscriptions.get(fields.run())
        stream = subscription.stream(fields.text("stream", STREAM)) if subscription else None
        offset = fields.integer("offset", 0, 1 << 62)
        if subscription is not None and stream is not None:
            stream.acknowledge(offset)
            subscription.dirty = True
        return {}, b""

    def _renew(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        runs = fields.texts("runs", RUN_NAME, limit=1 << 16)
        reading = fields.number("boottime_s", 0, 1e12)
        renew(self.layout, runs, reading, fields.number("orphan_timeout_s", 0, 1e8))
        return {}, b""

    def _read(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        folder = self.layout.run(fields.run())
        name = fields.text("stream", READABLE)
        rank, _, kind = name.rpartition(".")
        path = folder.file("events.supervisor") if rank == "supervisor" else folder.file(rank, kind)
        offset, length = fields.integer("offset", -(1 << 62), 1 << 62), fields.integer("length", 0, 4 << 20)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Refused("unknown_stream", f"{folder.name} has no {name} on this host: {error.strerror}.") from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Refused("unknown_stream", f"{name} of {folder.name} is not a regular file.")
            start = max(0, found.st_size + offset) if offset < 0 else offset
            start, data = read_log(fd, path, start, length) if kind == "log" else (start, os.pread(fd, length, start))
        finally:
            os.close(fd)
        return {"bytes": len(data), "size": found.st_size, "offset": start}, data

    def _have(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        kind = fields.text("kind", re.compile("|".join(KINDS)))
        digests = fields.texts("digests", DIGEST, limit=1024)
        missing = []
        for digest in digests:
            paths = [self.layout.archive(kind, digest)] + [self.layout.library(digest)] * (kind == "libraries")
            if not any(os.path.exists(path) for path in paths):
                missing.append(digest)
            for path in paths:
                # An archive that is about to be used gets a new time, so that ``collect`` keeps it.
                with contextlib.suppress(OSError):
                    os.utime(path)
        return {"missing": missing}, b""

    def _net_listen(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        nonce = fields.text("nonce", WORD)
        port_range = fields.port_range("port_range")
        where = addresses_to_listen_on(fields.text("interface", limit=64, default=None))
        if nonce not in self.listeners:
            if len(self.listeners) >= 64:
                raise Refused("busy", "64 network checks are open on this channel, which is the limit. Close one.")
            self.listeners[nonce] = open_listeners(port_range, where)
            for sock in self.listeners[nonce]:
                self._handle(sock.fileno(), functools.partial(self._greet, sock, nonce))
        port = self.listeners[nonce][0].getsockname()[1] if self.listeners[nonce] else 0
        return {"port": port, "addresses": candidates()}, b""

    def _greet(self, sock: socket.socket, nonce: str) -> None:
        """Send the nonce to a process that connects."""
        with contextlib.suppress(OSError):
            connection, _ = sock.accept()
            with connection:
                connection.setblocking(False)
                connection.send(nonce.encode() + b"\n")

    def _net_close(self, key: str | None, fields: Fields) -> tuple[Json, bytes]:
        nonce = fields.text("nonce", WORD)
        for sock in self.listeners.pop(nonce, ()):
            self._forget(sock.fileno())
            sock.close()
        for path in self.shared_checks.pop(nonce, ()):
            shutil.rmtree(os.path.join(os.path.expanduser(path), f".dtrain-check-{nonce}"), ignore_errors=True)
        return {}, b""

    # Slow commands check their fields now and return the work of a thread.

    def _probe(self, fields: Fields) -> Callable[[], Json]:
        return lambda: probe(self.layout)

    def _status(self, fields: Fields) -> Callable[[], Json]:
        items = [Fields(item, "slots") for item in fields.items("slots", limit=65536, default=[])]
        devices = {slot.integer("slot", 0, 65535): slot.text("device", DEVICE, default=None) for slot in items}
        names = fields.texts("runs", RUN_NAME, limit=COLLECT_LIMIT) if "runs" in fields.values else None
        return lambda: status(self.layout, devices, names)

    def _preflight(self, fields: Fields) -> Callable[[], Json]:
        paths = fields.texts("shared_paths", limit=64, default=[])
        if paths:
            self.shared_checks.setdefault(fields.text("nonce", WORD), set()).update(paths)
        return lambda: preflight(self.layout, fields)

    def _net_connect(self, fields: Fields) -> Callable[[], Json]:
        nonce, timeout_s = fields.text("nonce", WORD), fields.number("timeout_s", 0.01, 60, default=5)
        targets = []
        for index, item in enumerate(fields.items("targets", limit=1024)):
            target = Fields(item, f"targets.{index}")
            targets.append((target.text("address", WORD), target.integer("port", 1, 65535)))
        return lambda: {"results": connect_all(nonce, targets, timeout_s)}

    def _fence(self, fields: Fields) -> Callable[[], Json]:
        run, token = fields.run(), fields.integer("token", 0, 10**18)
        wait_s = fields.number("wait_s", 0, 60, default=FENCE_WAIT_S)
        launch = fields.text("launch", WORD, default=None)
        return lambda: fence(self.layout, run, token, wait_s, launch)

    def _remove_checkpoints(self, fields: Fields) -> Callable[[], Json]:
        names, folder = fields.texts("names", CHECKPOINT_NAME, limit=4096), fields.text("folder")
        if fields.text("run", default=None) is not None:
            root = self.layout.run(fields.run()).path
        else:
            root = fields.text("root")
            if not root.startswith("/") or ".." in root.split("/"):
                raise fields.bad("root", f"must be an absolute path without '..', got {shorten(root)}")
            if not os.path.isdir(root):
                raise Refused("not_found", f"This host has no folder {shorten(root)}. Mount it, or correct the path.")
        return lambda: remove_checkpoints(root, folder, names)

    def _collect(self, fields: Fields) -> Callable[[], Json]:
        age_s, dry_run = fields.number("older_than_s", 0, 1e12), fields.flag("dry_run", default=False)
        named = "runs" in fields.values
        runs = fields.texts("runs", RUN_NAME, limit=COLLECT_LIMIT) if named else None
        archives = fields.texts("archives", ARCHIVE_NAME, limit=COLLECT_LIMIT, default=[])
        return lambda: collect(self.layout, age_s, runs=runs, archives=archives, dry_run=dry_run)

    def _match(self, fields: Fields) -> Callable[[], Json]:
        folder, patterns = self._folder(fields), fields.texts("patterns", least=1, limit=64)
        return lambda: run_match(folder, patterns)

    # Heartbeats, recovery and streams.

    def _note_changes(self) -> None:
        for run in self.watcher.changed():
            if run in self.subscriptions:
                self.subscriptions[run].dirty = True

    def _beat(self) -> None:
        now = time.monotonic()
        with_beat = now >= self.next_beat
        if with_beat or now >= self.next_progress:
            self.next_progress = now + LOOK_S
            self._tell_progress(with_beat)
        if not with_beat:
            return
        self.next_beat = now + BEAT_S
        alive = []
        for name in self.layout.runs():
            if name in self.over:
                continue
            folder = self.layout.run(name)
            if folder.ended():
                self.over.add(name)
            elif folder.alive():
                alive.append(name)
            else:
                self._recover(folder)
        for subscription in self.subscriptions.values():
            if not subscription.final and subscription.folder.ended():
                self._tell_end_again(subscription.folder)
        self.output.frame({"t": "beat", "boottime_s": boottime(), "runs": alive})

    def _tell_progress(self, with_beat: bool) -> None:
        """Poll the ranks of subscribed runs. Report them with each heartbeat, and a stalled one at once."""
        for run, subscription in self.subscriptions.items():
            if subscription.final:
                continue
            report, is_news = subscription.progress.look()
            if report["ranks"] and (is_news or with_beat):
                self.output.frame({"t": "progress", "run": run, **report})

    def _recover(self, folder: RunFolder) -> None:
        """Recover a run whose supervisor is dead, in a thread."""
        if not folder.ended() and folder.has("started"):
            self._upkeep(folder, recover)

    def _tell_end_again(self, folder: RunFolder) -> None:
        """Restore the ``ended`` event of a run whose file lost it after the end, in a thread."""
        self._upkeep(folder, restore_end)

    def _upkeep(self, folder: RunFolder, task: Callable[[RunFolder], object]) -> None:
        """Do a task for a run in a thread, one task at a time for each run."""
        if folder.name in self.recovering:
            return

        def work() -> Json:
            try:
                task(folder)
            finally:
                self.recovering.discard(folder.name)
            return {}

        # Before the thread exists, because a quick one removes the name at once.
        self.recovering.add(folder.name)
        try:
            self._start_thread(None, work)
        except Refused:
            self.recovering.discard(folder.name)

    def _pump(self) -> None:
        """Send the new data of all subscriptions, one frame of each stream in turn."""
        now = time.monotonic()
        if now >= self.next_look:
            busy = False
            for run in self.watcher.blind & set(self.subscriptions):
                busy = busy or self.subscriptions[run].dirty
                self.subscriptions[run].dirty = True
            self.idle_s = 0.02 if busy else min(0.25, self.idle_s * 2)
            self.next_look = now + self.idle_s
        for subscription in list(self.subscriptions.values()):
            if subscription.complete or not subscription.dirty or now < subscription.not_before:
                continue
            if self.output.size >= HIGH_WATER:
                return
            sent = 0
            for frame, data in subscription.frames():
                self.output.frame(frame, data)
                sent += len(data)
            # A rank that prints line by line must not cause a frame for each line.
            subscription.not_before = now + (0.004 if sent < 16 << 10 else 0.0)

    QUICK: dict[str, Callable[[Follow, str | None, Fields], tuple[Json, bytes] | None]] = {
        "have": _have, "prepare": _prepare, "go": _go, "stop": _stop, "request_stop": _request_stop,
        "decide": _decide,
        "subscribe": _subscribe, "unsubscribe": _unsubscribe, "ack": _ack, "renew": _renew, "read": _read,
        "net_listen": _net_listen, "net_close": _net_close,
    }  # fmt: skip
    SLOW: dict[str, Callable[[Follow, Fields], Callable[[], Json]]] = {
        "probe": _probe, "status": _status,
        "preflight": _preflight, "net_connect": _net_connect, "fence": _fence, "collect": _collect,
        "remove_checkpoints": _remove_checkpoints,
        "match": _match,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------- roles


def role_follow(layout: Layout, args: argparse.Namespace) -> int:
    """Serve a channel on standard input and output."""
    try:
        layout.ensure()
    except (Refused, OSError) as error:
        refused = refusal_of(error)
        answer = {"protocol": PROTOCOL, "error": refused.answer()}
        sys.stdout.write(f"DTRAIN/{PROTOCOL} {json.dumps(answer)}\n")
        sys.stderr.write(f"{refused.message}\n")
        return 3
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The zygote is forked before the first thread exists.
    return Follow(layout, Zygote(layout), 0, 1).run()


def role_receive(layout: Layout, args: argparse.Namespace) -> Any:
    """Store an archive that is read from standard input."""
    if args.kind not in KINDS or not DIGEST.fullmatch(args.digest):
        raise Refused("bad_plan", f"receive expects one of {', '.join(KINDS)} and a SHA-256 in hex.", field="kind")
    receive_archive(layout, args.kind, args.digest, sys.stdin.buffer)
    return "ok"


def role_fetch(layout: Layout, args: argparse.Namespace) -> None:
    """Write a tar of a path in a run's folder to standard output."""
    path = below(checked_run(layout, args.run).path, args.relpath.strip("/") if args.relpath != "/" else "")
    if not os.path.lexists(path):
        raise Refused("not_found", f"{args.run} has no {shorten(args.relpath)} on this host.")
    send_tree(path, sys.stdout.buffer)


def role_outputs(layout: Layout, args: argparse.Namespace) -> None:
    """Write a tar of the files that the ranks of a run wrote or changed.

    Standard input has the limits and the versions of files that the control side has already.
    """
    folder = checked_run(layout, args.run)
    fields = Fields(parse_object(sys.stdin.buffer.read(MAX_LINE)) or {})
    known = fields.inner("known", default={}).values
    limit_bytes = fields.integer("limit_bytes", 0, UNPACKED_LIMIT)
    limit_files = fields.integer("limit_files", 0, OUTPUT_FILES)
    if not os.path.isdir(folder.file("work")):
        raise Refused("not_found", f"{args.run} has no files on this host.")
    Outputs(folder, known, limit_bytes, limit_files).send(sys.stdout.buffer)


def role_put(layout: Layout, args: argparse.Namespace) -> Json:
    """Unpack a tar from standard input below a path in a run's folder, which may not be prepared yet."""
    layout.ensure()
    folder = checked_run(layout, args.run)
    if folder.buried:
        raise buried(folder.name)
    path = below(folder.path, args.relpath.rstrip("/"))
    os.makedirs(path, mode=0o700, exist_ok=True)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|*") as archive:
            unpack(archive, path)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Refused("bad_archive", f"The archive is damaged: {error}. Send it again.") from error
    return {"ok": True}


def checked_run(layout: Layout, name: str) -> RunFolder:
    """Return the folder of a run that a command line names."""
    return layout.run(Fields({"run": name}).run())


def role_start(layout: Layout, args: argparse.Namespace) -> Json:
    """Prepare a run and start it at once, for a gang of one host or to attach to a living run."""
    layout.ensure()
    document = parse_object(sys.stdin.buffer.read(MAX_LINE)) or {}
    plan = check_plan(document.get("plan", document))
    if plan["run"] != args.run:
        words = f"plan.run: must be the run {shorten(args.run)} of the command, got {plan['run']}"
        raise Refused("bad_plan", words, field="plan.run")
    request = {"plan": plan, "secrets": check_secrets(document.get("secrets"))}
    answer = read_report(launch(layout, json.dumps(request).encode()))
    if not answer.get("ok") or answer["state"] != "prepared":
        return answer
    master = {"master_addr": document.get("master_addr", "127.0.0.1"), "master_port": answer["port"] or 0}
    master["master_port"] = document.get("master_port", master["master_port"])
    found, deadline = go(layout, plan["run"], master), time.monotonic() + GO_WAIT_S
    while found is None and time.monotonic() < deadline:
        time.sleep(0.002)
        found = go_outcome(layout.run(plan["run"]))
    return {**answer, **(found or {})}


def role_stop(layout: Layout, args: argparse.Namespace) -> Json:
    """Request the end of a run."""
    return {"ok": True, **stop(layout.ensure(), checked_run(layout, args.run).name, args.grace_s)}


def role_fence(layout: Layout, args: argparse.Namespace) -> Json:
    """End a run and prevent any later start on this host."""
    return {"ok": True, **fence(layout.ensure(), checked_run(layout, args.run).name, args.token, args.wait_s)}


def role_status(layout: Layout, args: argparse.Namespace) -> Json:
    """Show all runs, or one."""
    names = [checked_run(layout, args.run).name] if args.run else None
    return {"ok": True, **status(layout.ensure(), names=names)}


def role_collect(layout: Layout, args: argparse.Namespace) -> Json:
    """Remove runs that ended long ago."""
    return {"ok": True, **collect(layout.ensure(), args.older_than_s)}


def role_match(layout: Layout, args: argparse.Namespace) -> Json:
    """Search the logs of a run for patterns that are read from standard input."""
    fields = Fields(parse_object(sys.stdin.buffer.read(MAX_LINE)) or {})
    return {"ok": True, **match_logs(checked_run(layout, args.run), fields.texts("patterns", least=1, limit=64))}


def role_probe(layout: Layout, args: argparse.Namespace) -> Json:
    """Show the facts of this host."""
    return {"ok": True, **probe(layout.ensure())}


def parser() -> argparse.ArgumentParser:
    """Return the command line of all roles."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--remote-dir", default=".dtrain", help="archives, relative to the home directory")
    common.add_argument("--state-dir", help="locks and runs; default /var/tmp/dtrain-<uid>/<machine id>")
    words = "folder of root with mode 1777 for the locks of all accounts, or none; default /run/lock if it is one"
    common.add_argument("--lock-dir", help=words)
    top = argparse.ArgumentParser(prog="supervisor.py", description="The host side of airflow-provider-dtrain.")
    roles = top.add_subparsers(dest="role", required=True)

    def role(name: str, function: Any, *positional: str) -> argparse.ArgumentParser:
        words = (function.__doc__ or "").splitlines()[0]
        one = roles.add_parser(name, parents=[common], help=words, description=words)
        one.set_defaults(function=function)
        for argument in positional:
            one.add_argument(argument)
        return one

    role("follow", role_follow)
    role("receive", role_receive, "kind", "digest")
    role("fetch", role_fetch, "run", "relpath")
    role("outputs", role_outputs, "run")
    role("put", role_put, "run", "relpath")
    role("start", role_start, "run")
    role("stop", role_stop, "run").add_argument("--grace-s", type=float, default=None)
    fencing = role("fence", role_fence, "run")
    fencing.add_argument("token", type=int)
    fencing.add_argument("--wait-s", type=float, default=FENCE_WAIT_S)
    role("status", role_status).add_argument("run", nargs="?")
    role("collect", role_collect).add_argument("--older-than-s", type=float, default=7 * 86400)
    role("match", role_match, "run")
    role("probe", role_probe)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the role that the command line names. Return the exit status."""
    os.umask(0o077)
    args = parser().parse_args(argv)
    layout = Layout(args.remote_dir, args.state_dir, args.lock_dir)
    if args.function is role_follow:
        return int(role_follow(layout, args))
    try:
        found = args.function(layout, args)
    except (Refused, OSError) as error:
        found = refusal_of(error).answer()
    if found is not None:
        sys.stdout.write((found if isinstance(found, str) else json.dumps(found)) + "\n")
    sys.stdout.flush()
    return 0 if found is None or isinstance(found, str) or found.get("ok") is True else 1


if __name__ == "__main__":
    sys.exit(main())
