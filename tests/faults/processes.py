"""Processes on the test hosts, read from /proc, independently of the store and of a run's own records."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from testbed.netns import NamespaceHost, NamespaceHosts
from tests.support.supervisor_host import ROLE

EVERY_S = 0.25
#: Run of a process whose origin no scan has seen: it is detached from all known processes.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Holder:
    """A process of a run, with the slot of the rank from which it descends."""

    host: str
    slot: str
    run: str
    #: In the outer pid namespace.
    pid: int
    start_time: int
    is_rank: bool = False

    @property
    def place(self) -> tuple[str, str]:
        return self.host, self.slot


class Status(NamedTuple):
    """Fields of /proc/<pid>/stat."""

    state: str
    parent: int
    start_time: int
    session: int


def stat_of(pid: int) -> Status | None:
    """Return the status of a process, None when it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    if not fields:
        # The process ended while its file was open.
        return None
    return Status(fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[3]))


def variables(pid: int) -> dict[str, str]:
    """Return the initial environment of a process."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def lives(pid: int, start_time: int) -> bool:
    """Return whether exactly this process exists and is not a zombie."""
    found = stat_of(pid)
    return found is not None and found[0] not in "ZX" and found[2] == start_time


def pids_of(hosts: Iterable[NamespaceHost]) -> dict[int, str]:
    """Return pid -> name of the host of every process of the hosts, without their init processes."""
    inside = {host.pid_namespace: host for host in hosts if host.pid_namespace}
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                host = inside.get(os.readlink(f"/proc/{name}/ns/pid"))
            except OSError:
                continue
            if host is not None and int(name) != host.init_pid:
                found[int(name)] = host.name
    return found


class Census:
    """Assigns the processes of the hosts to runs, by their ancestors in each scan and by their namespace.

    A rank's environment names its run. A process that descends from the rank or its supervisor, or is in its session,
    belongs to the same run for its lifetime, even if its parents end or its environment changes. A process that was
    never seen below them, but is below the host's init and below no sshd, belongs to an unknown run.
    """

    def __init__(self, hosts: Iterable[NamespaceHost]) -> None:
        self.hosts = hosts
        #: Process -> the slots that it may use. ``_above`` has supervisors and reapers, with all their ranks' slots.
        self._known: dict[tuple[int, int], set[Holder]] = {}
        self._above: dict[tuple[int, int], set[Holder]] = {}
        self._lock = threading.Lock()

    def look(self) -> list[Holder]:
        """Scan once and return every living process of a run, with each slot that it may use."""
        with self._lock:
            found = {pid: (host, status) for pid, host in pids_of(self.hosts).items() if (status := stat_of(pid))}
            found = {pid: place for pid, place in found.items() if place[1].state not in "ZX"}
            keys = {(pid, status.start_time) for pid, (_, status) in found.items()}
            for table in (self._known, self._above):
                for gone in table.keys() - keys:
                    del table[gone]
            inits = {host.init_pid for host in self.hosts if host.init_pid}
            new = [pid for pid in found if (pid, found[pid][1].start_time) not in self._known]
            # Ranks first: they determine the runs of their supervisors.
            for pid in [pid for pid in new if not self._note_rank(pid, found)]:
                if not ROLE.match(_read(pid, "cmdline")):
                    self._note_other(pid, found, inits)
            return [holder for holders in self._known.values() for holder in holders]

    def _note_rank(self, pid: int, found: dict[int, tuple[str, Status]]) -> bool:
        (host, status), env = found[pid], variables(pid)
        if "DTRAIN_RUN" not in env:
            return False
        slot, is_rank = env.get("DTRAIN_SLOT", "-1"), status.session == pid
        holder = Holder(host, slot, env["DTRAIN_RUN"], pid, status.start_time, is_rank=is_rank)
        self._known[pid, status.start_time] = {holder}
        for above in ancestors(pid, found)[1:]:
            if is_rank and ROLE.match(_read(above, "cmdline")):
                self._above.setdefault((above, found[above][1].start_time), set()).add(holder)
        return True

    def _note_other(self, pid: int, found: dict[int, tuple[str, Status]], inits: set[int]) -> None:
        host, status = found[pid]
        above = ancestors(pid, found)
        for other in [*above[1:], status.session]:
            key = (other, found[other][1].start_time) if other in found else (0, 0)
            if holders := self._known.get(key) or self._above.get(key):
                own = {replace(one, pid=pid, start_time=status.start_time, is_rank=False) for one in holders}
                self._known[pid, status.start_time] = own
                return
        is_login = any(_read(one, "comm").startswith(b"sshd") for one in above)
        if found[above[-1]][1].parent in inits and not is_login:
            self._known[pid, status.start_time] = {Holder(host, "-1", UNKNOWN, pid, status.start_time)}


def ancestors(pid: int, found: dict[int, tuple[str, Status]]) -> list[int]:
    """Return a process and its ancestors on its host, without the host's init."""
    above = [pid]
    while (parent := found[above[-1]][1].parent) in found and parent not in above:
        above.append(parent)
    return above


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class Checker:
    """Checks four times per second whether two runs use one slot."""

    def __init__(self, hosts: NamespaceHosts) -> None:
        self.census, self.violations, self.looks = Census(hosts), list[str](), 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checker", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._end.wait(EVERY_S):
            try:
                self.look()
            except Exception as error:
                # A check that fails would otherwise report no violation.
                self.violations.append(f"the checker failed at {time.time():.2f}: {error!r}")

    def look(self) -> list[Holder]:
        """Check once and return the processes that hold slots."""
        found, seen = self.census.look(), dict[tuple[str, str], Holder]()
        for one in found:
            other = seen.setdefault(one.place, one)
            # A scan takes time: only processes that live at the same time count.
            if other.run != one.run and lives(other.pid, other.start_time) and lives(one.pid, one.start_time):
                self.violations.append(f"slot {one.place} is held by {other.run} and {one.run} at {time.time():.2f}")
        self.looks += 1
        return found

    def close(self) -> None:
        self._end.set()
        self._thread.join(timeout=10)

    def check(self) -> None:
        """Assert that the checker ran until it was closed."""
        assert not self._thread.is_alive(), "the checker hangs, so it has not checked the last part of the test"
        assert self.looks > 0, f"the checker never completed a scan: {self.violations}"
