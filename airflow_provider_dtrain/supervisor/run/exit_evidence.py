"""Evidence about the end of ranks that only their host has: memory, full disks, limits, stacks, the last activity."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import tempfile
import time
from collections.abc import Iterable

from ..file_access import read_text
from ..files.layout import RunFolder
from ..files.progress_page import read_page
from ..limits import EXIT_STACK_BYTES, EXIT_STACKS_S, FAULTS_SHOWN
from ..machine.host import memory_bytes
from ..machine.processes import boottime
from ..names import Json
from .cgroup import Cgroup, enclosing_cgroups
from .device_faults import DeviceFaults
from .ranks import Rank, oom_kills
from .stacks import Stack

#: A file system with less free space than this is full.
_FULL_BYTES = 1 << 20


class ExitEvidence:
    """Evidence about the ends of a run's ranks."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._groups: list[str] = []
        self._kills_before = 0
        #: pid -> most files that it may open
        self._open_files: dict[int, int] = {}
        #: pid -> largest resident memory, bytes
        self._peaks: dict[int, int] = {}
        #: rank -> stacks
        self._stacks: dict[int, str] = {}

    def begin(self, cgroup: Cgroup | None) -> None:
        """Record the state of the host before the ranks are started.

        :param cgroup: the run's own cgroup; None: its processes are in that of the supervisor
        """
        self._groups = enclosing_cgroups(cgroup.path if cgroup is not None else None)
        self._kills_before = self._kills()

    def oom_kills(self) -> int:
        """Return how many processes the kernel has killed for lack of memory since the ranks were started."""
        return max(0, self._kills() - self._kills_before)

    def _kills(self) -> int:
        """Return the count of the nearest cgroup that has one, else that of the whole host."""
        for group in self._groups:
            found = re.search(r"^oom_kill (\d+)$", read_text(os.path.join(group, "memory.events")) or "", re.MULTILINE)
            if found:
                return int(found[1])
        return oom_kills()

    def _memory_limit(self) -> int | None:
        limits = [(read_text(os.path.join(group, "memory.max")) or "").strip() for group in self._groups]
        return min((int(limit) for limit in limits if limit.isdigit()), default=None)

    def note_limits(self, pid: int) -> None:
        """Record the limits of a process that has ended. They are known until its parent has waited for it."""
        found = re.search(r"^Max open files\s+(\d+)", read_text(f"/proc/{pid}/limits") or "", re.MULTILINE)
        if found:
            self._open_files[pid] = int(found[1])

    def note_usage(self, pid: int, usage: resource.struct_rusage) -> None:
        """Record the resources that a process has used."""
        self._peaks[pid] = usage.ru_maxrss * 1024

    def _faults(self, device: str) -> list[Json]:
        """Return the first faults of a rank's GPU, as the driver reported them."""
        faults = DeviceFaults(self.folder).read() if device else []
        return [fault for fault in faults if fault["uuid"] == device][:FAULTS_SHOWN]

    def collect_stacks(self, ranks: Iterable[Rank]) -> None:
        """Record the Python stacks of ranks that are about to be ended. Takes half a second at most."""
        deadline = time.monotonic() + EXIT_STACKS_S
        stacks = [Stack(self.folder, rank.record()) for rank in ranks if rank.pid > 0]
        with contextlib.suppress(OSError):
            for stack in stacks:
                stack.request(wait_s=0.0)
            for stack in stacks:
                found = stack.result(deadline, EXIT_STACK_BYTES, quiet_s=0.02)
                self._stacks[found["rank"]] = found["text"]

    def of_rank(self, rank: Rank, exit_code: int) -> Json:
        """Return the evidence about the end of a rank, as fields of its event."""
        found: Json = {"stack": self._stacks.get(rank.number, "")}
        page = read_page(self.folder.file("progress", str(rank.number)), boottime())
        if page:
            found["place"] = {name: page[name] for name in ("phase", "what", "steps", "collectives", "still_s")}
        if exit_code != 0 and not rank.signalled:
            found["facts"] = {
                "oom_kills": self.oom_kills(),
                "memory_limit_bytes": self._memory_limit(),
                "memory_bytes": memory_bytes(),
                "peak_bytes": self._peaks.get(rank.pid, 0),
                "full": full_folders([self.folder.path, tempfile.gettempdir(), "/dev/shm"]),  # noqa: S108 - only measured
                "open_files": self._open_files.get(rank.pid, 0),
                "faults": self._faults(str(rank.plan["device"] or "")),
            }
        return found


def full_folders(paths: Iterable[str]) -> list[str]:
    """Return those of some folders whose file systems have no space or no inodes left for this account."""
    found = []
    for path in paths:
        try:
            state = os.statvfs(path)
        except OSError:
            continue
        if state.f_bavail * state.f_frsize < _FULL_BYTES or (state.f_files and not state.f_favail):
            found.append(path)
    return found
