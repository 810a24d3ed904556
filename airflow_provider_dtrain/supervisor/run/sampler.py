"""System metrics of a run, written by a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Sequence

from ..file_access import names_in
from ..files.layout import RunFolder
from ..files.segments import SegmentWriter
from ..limits import SAMPLES_LIMIT
from ..machine.gpu import Nvml
from ..machine.processes import die_with_parent, set_name
from ..names import CONTAINER_INTERFACES, SAMPLER_NAME, Json
from ..refusal import print_traceback
from .device_faults import DeviceFaults
from .host_facts import GpuFacts, HostFacts
from .stray_ranks import DeviceCheck


class Sampler:
    """Measurement of this host and the GPUs of a run, in its own process.

    The supervisor has one thread and must never wait for a disk or a driver. A second thread of this process
    queries the GPUs, so that a driver that hangs affects only the figures of the GPUs.

    One line per interval, ``kind`` ``system``: ``cpu_util`` (percent, mean over the CPUs), ``memory_available``
    (bytes), and since the last line, per second, ``net_sent``, ``net_recv``, ``disk_read``, ``disk_write`` (bytes)
    and ``disk_iops``; ``gpus``: ``uuid``, ``gpu_util`` (percent), ``gpu_free_memory`` (bytes). Every few seconds also
    the facts of :class:`HostFacts` and :class:`GpuFacts`. A figure that cannot be measured is omitted.
    """

    def __init__(
        self,
        path: str,
        interval_s: float,
        devices: list[str],
        limit: int = SAMPLES_LIMIT,
        check: DeviceCheck | None = None,
        ranks: Sequence[Json] = (),
        faults: DeviceFaults | None = None,
    ) -> None:
        self.faults = faults
        self.interval_s = interval_s
        self.devices = devices
        self.check = check
        self.file = SegmentWriter(path, limit // 2)
        self.gpus: list[Json] = []
        self.gpus_at = 0.0
        self.wanted: dict[str, bool] = {}
        self.facts = HostFacts(ranks, lambda name: self._counts("/sys/class/net", name))
        self.gpu_facts = GpuFacts(ranks)
        #: UUID -> latest facts that no line has yet.
        self.unwritten: dict[str, Json] = {}

    def run(self) -> None:
        """Write samples until the process is killed."""
        if self.devices:
            threading.Thread(target=self._ask_gpus, daemon=True).start()
        before = self._counters()
        before_at = due = time.monotonic()
        while True:
            # Samples stay on the same beat. Those that a pause of the host has delayed by half of it are left out.
            while due < time.monotonic() + self.interval_s / 2:
                due += self.interval_s
            time.sleep(max(0.0, due - time.monotonic()))
            after = self._counters()
            now = time.monotonic()
            found = self.sample(before, after, now - before_at)
            if self.facts.is_due(now):
                found.update(self.facts.sample(now))
            self.file.write("system", found)
            before = after
            before_at = now

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
            found["gpus"] = [{**gpu, **self.unwritten.pop(gpu["uuid"], {})} for gpu in self.gpus]
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
            parts = next(line.split() for line in file if line.startswith("MemAvailable:"))
        return {"memory_available": int(parts[1]) * 1024}

    def _network(self) -> dict[str, float]:
        sent = received = 0
        with open("/proc/net/dev", encoding="utf-8") as file:
            for line in list(file)[2:]:
                name, _, counts = line.partition(":")
                if self._counts("/sys/class/net", name.strip()):
                    parts = counts.split()
                    received += int(parts[0])
                    sent += int(parts[8])
        return {"net_sent": sent, "net_recv": received}

    def _disks(self) -> dict[str, float]:
        operations = read = written = 0
        with open("/proc/diskstats", encoding="utf-8") as file:
            for line in file:
                parts = line.split()
                if self._counts("/sys/block", parts[2]):
                    operations += int(parts[3]) + int(parts[7])
                    read += int(parts[5]) * 512
                    written += int(parts[9]) * 512
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
            if self.faults is not None:
                known = [handle for _, handle in handles if handle is not None]
                threading.Thread(target=self.faults.watch, args=(nvml, known), daemon=True).start()
            while True:
                found = [{"uuid": uuid, **nvml.load(handle)} for uuid, handle in handles if handle is not None]
                if self.gpu_facts.is_due():
                    for uuid, handle in handles:
                        if handle is not None:
                            self.unwritten[uuid] = self.gpu_facts.read(nvml, handle)
                self.gpus = found
                self.gpus_at = time.monotonic()
                if self.check is not None:
                    self.check.check(nvml)
                time.sleep(self.interval_s)


def start_sampler(folder: RunFolder, interval_s: float, ranks: list[Json]) -> int:
    """Fork the process that writes a run's samples and compares its devices with its ranks, and return its pid.

    It dies with its parent.

    :param interval_s: 0: no samples
    :param ranks: ``rank``, ``pid`` and ``device`` of each rank of this host
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number_ in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number_, signal.SIG_DFL)
        die_with_parent()
        set_name(SAMPLER_NAME)
        # Above all the locks of the slots and of the run: this process must not hold them after the supervisor.
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        if os.getppid() == parent:
            check = DeviceCheck(folder, ranks)
            devices = list(dict.fromkeys(rank["device"] for rank in ranks if rank["device"]))
            if interval_s:
                faults = DeviceFaults(folder)
                Sampler(
                    folder.file("samples"), max(0.1, interval_s), devices, check=check, ranks=ranks, faults=faults
                ).run()
            else:
                check.run()
    except BaseException:
        print_traceback()
    finally:
        os._exit(0)
