"""Progress of the ranks of a run, and the channel's polls of it."""

from __future__ import annotations

import os
import struct

from ..fields import number
from ..file_access import read_text
from ..files.layout import RunFolder, process_records
from ..files.progress_page import read_page
from ..limits import IDLE_RATIO, POLL_S, STANDS_S, STOOD_S
from ..machine.processes import LIBC, Proc, boottime, find_process, is_dead, read_proc
from ..names import Json


class RankActivity:
    """State of one rank's process, gathered from all polls so far."""

    def __init__(self, proc: Proc, cpu_s: float, now: float) -> None:
        self.start_time = proc.start_time
        self.state = proc.state
        self.state_since = now
        self.cpu_s = cpu_s
        self.at = now
        self.busy_at = now

    def take(self, proc: Proc, cpu_s: float, now: float) -> None:
        """Add the result of a poll."""
        if proc.state != self.state:
            self.state = proc.state
            self.state_since = now
        if 0 < now - self.at < POLL_S / 2:
            # One tick of the kernel's clock would look like work.
            return
        if cpu_s - self.cpu_s >= IDLE_RATIO * (now - self.at):
            self.busy_at = now
        self.cpu_s = cpu_s
        self.at = now


class RunProgress:
    """Progress of the ranks of a run, for the watchdog of the control side.

    All durations are measured on this host's CLOCK_BOOTTIME and end at the poll, so that a report stays correct if it
    arrives late. For ranks that do not use the library, only the state of their process is reported.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.activities: dict[int, RankActivity] = {}
        self.stopped_since: float | None = None
        self.had_news = False

    def poll(self) -> tuple[Json, bool]:
        """Return the report, and whether it should be sent at once."""
        now = boottime()
        ranks = [found for found in (self._rank(one, now) for one in process_records(self.folder)) if found is not None]
        supervisor = find_process(self.folder.supervisor())
        if supervisor is None or supervisor.state not in "Tt":
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now
        stopped_s = now - self.stopped_since if self.stopped_since is not None else 0.0
        report = {"boottime_s": now, "ranks": ranks, "supervisor_stopped_s": round(stopped_s, 1)}
        # A rank that resumes is news as well.
        before = self.had_news
        self.had_news = any(map(self._is_news, ranks))
        return report, before or self.had_news

    def _rank(self, record: Json, now: float) -> Json | None:
        rank = number(record.get("rank"))
        pid = number(record.get("pid"))
        proc = read_proc(pid) if pid > 0 and record.get("exit_code") is None else None
        if proc is None or proc.start_time != record.get("start_time") or is_dead(proc):
            self.activities.pop(rank, None)
            return None
        cpu_s = cpu_seconds(pid)
        seen = self.activities.get(rank)
        if seen is None or seen.start_time != proc.start_time:
            seen = self.activities[rank] = RankActivity(proc, cpu_s, now)
        seen.take(proc, cpu_s, now)
        found = {
            "rank": rank,
            "pid": pid,
            "state": proc.state,
            "state_s": round(now - seen.state_since, 1),
            "idle_s": round(now - seen.busy_at, 1),
        }
        return {**found, **read_page(self.folder.file("progress", str(rank)), now)}

    @staticmethod
    def _is_news(rank: Json) -> bool:
        spans = [rank.get("silent_s", 0.0), rank.get("still_s", 0.0) if rank.get("started") else 0.0]
        spans.append(rank.get("held_s", 0.0) if rank.get("raised") else 0.0)
        spans.append(rank["state_s"] if rank["state"] in "TtD" else 0.0)
        return any(STANDS_S <= span <= STOOD_S for span in spans)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads in seconds, 0 if it is gone."""
    fields = (read_text(f"/proc/{pid}/stat") or "").rpartition(") ")[2].split()
    try:
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (ValueError, IndexError):
        return 0.0


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
