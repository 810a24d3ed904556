"""Paths of everything that the supervisor keeps on a host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable

from ..fields import number, parse_object
from ..file_access import checksum, make_private, names_in, overwrite, read_bytes, read_json, sync_folder, write_json
from ..limits import IN_PLACE_BYTES
from ..machine.host import machine_id, mount_of
from ..machine.locks import wait_lock, why_no_lock_dir
from ..machine.processes import Proc, boot_id, find_inner, find_process, pid_namespace, read_proc
from ..names import CONTAINER_RECORD, LOCK_DIR, NETWORK_FILE_SYSTEMS, NO_LOCK_DIR, RUN_NAME, Json
from ..refusal import Refused


def why_lost(folder: RunFolder) -> tuple[str, str]:
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


class RunFolder:
    """The files of one run on this host."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout = layout
        self.name = name
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
    def has_tombstone(self) -> bool:
        """Return whether this run must never start here."""
        return os.path.lexists(self.tombstone)

    def has_tombstone_of(self, launch: str | None) -> bool:
        """Return whether this one launch of the run must never start here."""
        return launch is not None and os.path.lexists(f"{self.tombstone}+{launch}")

    def is_other_launch(self, launch: str | None) -> bool:
        """Return whether the run here is of another launch, False if either launch is unknown."""
        known = (self.plan() or {}).get("launch")
        return launch is not None and known is not None and launch != known

    def plan(self) -> Json | None:
        """Return the launch plan, None before it is written."""
        return read_json(self.file("plan.json"))

    def context(self) -> Json | None:
        """Return the values of the trial, None before they are written."""
        return read_json(self.file("context.json"))

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
        recorded = found.get("checksum", known if len(content) < IN_PLACE_BYTES else None)
        return times if is_whole and recorded == known else {}

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

    def command(self, name: str, document: Json) -> None:
        """Write a command file. On a full disk the run's reserve makes room."""
        try:
            write_json(self.file(name), document, durable=False)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.has("reserve"):
                raise
            os.unlink(self.file("reserve"))
            write_json(self.file(name), document, durable=False)

    def is_removed(self, inode: int) -> bool:
        """Return whether the folder that had an inode was removed or replaced."""
        return inode_of(self.path) not in (inode, -1)

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
        #: Process and its descriptor that keeps ``state_dir`` locked, see :meth:`guard`.
        self._guard: tuple[int, int] | None = None

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

    def guard(self) -> None:
        """Keep systemd-tmpfiles from removing old files below ``state_dir`` while this process lives.

        It spares a folder, and all below it, that another process has locked.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self.state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            before, self._guard = self._guard, (os.getpid(), fd)
            # A forked process has closed the descriptors of its parent, and uses their numbers for other files.
            if before is not None and before[0] == os.getpid():
                os.close(before[1])
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

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

    def environment(self, digest: str) -> str:
        """Return the folder of an environment."""
        return os.path.join(self.remote_dir, "environments", digest)

    def tool(self, digest: str) -> str:
        """Return the folder of unpacked programs that are sent to this host."""
        return os.path.join(self.remote_dir, "tools", digest)

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


def inode_of(path: str) -> int:
    """Return the inode of a path, 0 if there is none, -1 if that is not known."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0
    except OSError:
        return -1


def process_records(folder: RunFolder) -> list[Json]:
    """Return the records of the ranks' processes, also of those that a launcher has started.

    Such a rank writes its pid and start time when it joins the training library.
    """
    records = rank_records(folder)
    plan = folder.plan() or {}
    if not plan.get("per_host"):
        return records
    first = container_root(folder) if plan.get("container") else None
    found = []
    for record in records:
        worker = worker_of(folder, record.get("rank")) or {}
        if worker and plan.get("container"):
            own = (worker["pid"], worker["start_time"])
            worker["pid"] = 0 if first is None else find_inner(first.pid, first.start_time, *own)
        found.append({**record, **worker})
    return found


def container_root(folder: RunFolder) -> Proc | None:
    """Return the living first process of the run's container, None without one."""
    record = read_json(folder.file(CONTAINER_RECORD)) or {}
    first = record.get("first")
    return find_process({**record, **first}) if isinstance(first, dict) else None


def worker_of(folder: RunFolder, rank: object) -> Json | None:
    """Return pid and start time that a rank has written which a launcher has started, None if it has not.

    The pid is that of the rank's own pid namespace.
    """
    written = read_json(folder.file(f"rank{rank}", "worker.json")) or {}
    process = {name: written[name] for name in ("pid", "start_time") if type(written.get(name)) is int}
    return process if len(process) == 2 else None


def rank_records(folder: RunFolder) -> list[Json]:
    """Return the supervisor's records of its ranks."""
    ranks = folder.state().get("ranks")
    return [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
