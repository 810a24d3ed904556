"""Finds and ends the processes that the demo started, and no other processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

#: Environment variable of Airflow and its child processes. The value is the demo's folder.
MARK = "DTRAIN_DEMO"
#: Folders of our host ``local`` below the value: that of the demo, and in an account's home the provider's default.
HOST_FOLDERS = ("remote", ".dtrain")


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    #: Clock ticks since boot; with the pid it identifies a process uniquely.
    start_time: int


def table() -> dict[int, Process]:
    """Return pid -> process of all processes except zombies."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := read(int(folder.name))):
            found[process.pid] = process
    return found


def read(pid: int) -> Process | None:
    """Return a process, or None when it does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def marked(pid: int, value: str) -> bool:
    """Return whether a process has our mark in its environment, or is a supervisor or rank of our host ``local``.

    Supervisors and ranks detach and keep little of Airflow's environment, but they run files below one of
    :data:`HOST_FOLDERS`.
    """
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    if f"{MARK}={value}\0".encode() in environment:
        return True
    return any(f"{value}/{name}/".encode() in text for name in HOST_FOLDERS for text in (environment, command))


def ours(leader: int, value: str) -> list[Process]:
    """Return every process of the leader's session, every marked one, and all their descendants."""
    processes = table()
    chosen = {pid for pid, one in processes.items() if one.session == leader or marked(pid, value)}
    grown = True
    while grown:
        below = {pid for pid, one in processes.items() if one.parent in chosen and pid not in chosen}
        chosen |= below
        grown = bool(below)
    chosen.discard(os.getpid())
    return [processes[pid] for pid in chosen]


def end(leader: int, value: str, *, patience_s: float = 10.0) -> None:
    """Send our processes SIGTERM, wait, then kill the remaining ones.

    :param leader: pid of the process that was started in a new session
    :param patience_s: time between SIGTERM and SIGKILL
    """
    send(ours(leader, value), signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while ours(leader, value) and time.monotonic() < deadline:
        reap(leader)
        time.sleep(0.2)
    for _ in range(25):
        left = ours(leader, value)
        if not left:
            return
        send(left, signal.SIGKILL)
        reap(leader)
        time.sleep(0.2)


def send(processes: list[Process], number: int) -> None:
    """Send a signal to each process whose pid was not reused."""
    for process in processes:
        if (now := read(process.pid)) and now.start_time == process.start_time:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


def reap(pid: int) -> None:
    """Reap our child process if it has ended."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
