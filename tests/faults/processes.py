"""What runs on the test hosts, read from /proc: nothing here believes the store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.netns import NamespaceHost, NamespaceHosts

EVERY_S = 0.25


@dataclass(frozen=True)
class Holder:
    """A process that a run started in a slot."""

    host: str
    slot: str
    run: str
    #: Outside the host.
    pid: int
    start_time: int

    @property
    def place(self) -> tuple[str, str]:
        return self.host, self.slot


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """Return state, parent and start time; None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def variables(pid: int) -> dict[str, str]:
    """Return a process's environment as it was started with."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


def lives(pid: int, start_time: int) -> bool:
    """Return whether exactly this process still is there and no zombie."""
    found = stat_of(pid)
    return found is not None and found[0] not in "ZX" and found[2] == start_time


def pids_of(hosts: Iterable[NamespaceHost]) -> dict[int, str]:
    """Return every process of the hosts, their init processes left out, with the name of its host."""
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


def holders(hosts: Iterable[NamespaceHost]) -> list[Holder]:
    """Return every living process that was started in a slot for a run."""
    found = []
    for pid, host in pids_of(hosts).items():
        status, env = stat_of(pid), variables(pid)
        if status is not None and status[0] not in "ZX" and "DTRAIN_RUN" in env:
            found.append(Holder(host, env.get("DTRAIN_SLOT", "-1"), env["DTRAIN_RUN"], pid, status[2]))
    return found


class Checker:
    """Looks several times a second whether two runs are in one slot."""

    def __init__(self, hosts: NamespaceHosts) -> None:
        self.hosts, self.violations, self.looks = hosts, list[str](), 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="checker", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._end.wait(EVERY_S):
            try:
                self.look()
            except Exception as error:
                # Who does not look sees nothing wrong.
                self.violations.append(f"the checker could not look at {time.time():.2f}: {error!r}")

    def look(self) -> list[Holder]:
        """Look once; return what holds slots."""
        found, seen = holders(self.hosts), dict[tuple[str, str], Holder]()
        for one in found:
            other = seen.setdefault(one.place, one)
            # A scan takes a moment: only what lives at one and the same time counts.
            if other.run != one.run and lives(other.pid, other.start_time) and lives(one.pid, one.start_time):
                self.violations.append(f"slot {one.place} is held by {other.run} and {one.run} at {time.time():.2f}")
        self.looks += 1
        return found

    def close(self) -> None:
        self._end.set()
        self._thread.join(timeout=10)

    def check(self) -> None:
        """Do nothing when it has looked to the end."""
        assert not self._thread.is_alive(), "the checker hangs: its last looks found nothing because there were none"
        assert self.looks > 0, f"the checker never looked: {self.violations}"
