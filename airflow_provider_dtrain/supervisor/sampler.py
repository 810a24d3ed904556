"""System metrics of a run, written by a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback

from .events import encode_event
from .files import names_in, write_all
from .gpu import Nvml
from .layout import RunFolder
from .limits import SAMPLES_LIMIT
from .names import CONTAINER_INTERFACES, Json
from .processes import LIBC, PR_SET_PDEATHSIG


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
        self.interval_s = interval_s
        self.devices = devices
        self.limit = limit
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
        before = self._counters()
        before_at = time.monotonic()
        while self.has_room():
            time.sleep(self.interval_s)
            after = self._counters()
            now = time.monotonic()
            self._write("system", self.sample(before, after, now - before_at))
            before = after
            before_at = now
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
                    received += int(words[0])
                    sent += int(words[8])
        return {"net_sent": sent, "net_recv": received}

    def _disks(self) -> dict[str, float]:
        operations = read = written = 0
        with open("/proc/diskstats", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if self._counts("/sys/block", words[2]):
                    operations += int(words[3]) + int(words[7])
                    read += int(words[5]) * 512
                    written += int(words[9]) * 512
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
                self.gpus = found
                self.gpus_at = time.monotonic()
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
