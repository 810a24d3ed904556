"""Facts of a host that may explain why one of its ranks is slow."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..file_access import read_text
from ..machine.gpu import Nvml
from ..machine.processes import read_proc
from ..names import Json
from .cgroup import cgroup_folders, controller_mounts

#: Interval between two readings, seconds. A slow rank is named after a minute.
FACTS_S = 5.0
#: CPUs whose clock is read, evenly spaced among all: each file costs a message to its CPU.
CLOCKS_MOST = 8
#: Bits of NVML's reasons for reduced clocks. Source: nvml.h, nvmlClocksEventReason*
POWER, HARDWARE, THERMAL = 0x04 | 0x80, 0x08, 0x20 | 0x40
_CLOCK_SM, _TEMPERATURE_GPU, _UNCORRECTED, _VOLATILE = 1, 0, 1, 0


class HostFacts:
    """Readings of the kernel's counters for a host and its ranks. A fact that cannot be read is omitted.

    :param ranks: ``rank`` and ``pid`` of each rank of this host
    :param is_counted: returns whether an interface of this name counts
    :param root: folder of ``proc`` and ``sys``
    """

    def __init__(self, ranks: Sequence[Json], is_counted: Callable[[str], bool], root: str = "") -> None:
        self.ranks = ranks
        self.is_counted = is_counted
        self.root = root
        self._read_at = 0.0
        self._before: dict[str, float] = {}
        self._clocks = self._clock_files()
        self._mounts = controller_mounts("cpu", root)

    def is_due(self, now: float) -> bool:
        """Return whether it is time for the next reading.

        :param now: time.monotonic()
        """
        return not self._read_at or now - self._read_at > FACTS_S - 0.05

    def sample(self, now: float) -> Json:
        """Return the facts since the last reading. {} for the first one.

        :param now: time.monotonic()
        """
        before, elapsed_s = self._before, now - self._read_at
        after = self._before = self._counters()
        is_first, self._read_at = not self._read_at, now
        if is_first or elapsed_s <= 0:
            return {}
        change = {name: max(0.0, after[name] - before[name]) for name in after if name in before}
        found: Json = {
            "cpu_steal": _share(change, "steal", "ticks"),
            "cpu_pressure": _percent(change, "pressure cpu", 1e6 * elapsed_s),
            "io_pressure": _percent(change, "pressure io", 1e6 * elapsed_s),
            "cpu_clock": self._clock(),
            "net_retransmitted": _share(change, "retransmitted", "segments"),
            "net_errors": round(change["net errors"] / elapsed_s, 2) if "net errors" in change else None,
        }
        facts = {name: value for name, value in found.items() if value is not None}
        if ranks := [one for rank in self.ranks if len(one := self._of_rank(rank, change, elapsed_s)) > 1]:
            facts["ranks"] = ranks
        return facts

    def _of_rank(self, rank: Json, change: dict[str, float], elapsed_s: float) -> Json:
        number = rank["rank"]
        wait = _percent(change, f"wait {number}", 1e9 * elapsed_s)
        groups = [name for name in change if name.startswith(f"periods {number} ")]
        throttled = [_share(change, name.replace("periods", "throttled", 1), name) for name in groups]
        known = [one for one in throttled if one is not None]
        found: Json = {"rank": number}
        if wait is not None:
            found["cpu_wait"] = wait
        if known:
            found["cpu_throttled"] = max(known)
        return found

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in (self._cpu, self._cpu_pressure, self._io_pressure, self._tcp, self._interfaces, self._ranks):
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                found.update(part())
        return found

    def _lines(self, path: str) -> list[str]:
        return (read_text(self.root + path) or "").splitlines()

    def _cpu(self) -> Iterable[tuple[str, float]]:
        ticks = [int(word) for word in self._lines("/proc/stat")[0].split()[1:9]]
        return [("steal", ticks[7]), ("ticks", sum(ticks))]

    def _cpu_pressure(self) -> Iterable[tuple[str, float]]:
        return [("pressure cpu", self._pressure("cpu"))]

    def _io_pressure(self) -> Iterable[tuple[str, float]]:
        return [("pressure io", self._pressure("io"))]

    def _pressure(self, kind: str) -> int:
        """Return the microseconds in which a process has waited."""
        return int(self._lines(f"/proc/pressure/{kind}")[0].rpartition("total=")[2])

    def _tcp(self) -> Iterable[tuple[str, float]]:
        names, values = [line.split() for line in self._lines("/proc/net/snmp") if line.startswith("Tcp:")]
        tcp = dict(zip(names, values))  # noqa: B905 (Python 3.9)
        return [("segments", int(tcp["OutSegs"])), ("retransmitted", int(tcp["RetransSegs"]))]

    def _interfaces(self) -> Iterable[tuple[str, float]]:
        errors = 0
        _, _, *lines = self._lines("/proc/net/dev")
        for line in lines:
            name, _, counts = line.partition(":")
            if self.is_counted(name.strip()):
                parts = counts.split()
                errors += int(parts[2]) + int(parts[10])
        return [("net errors", errors)]

    def _ranks(self) -> Iterator[tuple[str, float]]:
        groups: dict[str, tuple[float, float] | None] = {}
        for rank in self.ranks:
            number, pid = rank["rank"], rank["pid"]
            # Time on a CPU, time in which it was ready and had none, both in nanoseconds.
            words = (read_text(f"{self.root}/proc/{pid}/schedstat") or "").split()
            if len(words) > 1:
                yield f"wait {number}", int(words[1])
            for folder in cgroup_folders(pid, "cpu", self._mounts, self.root):
                if folder not in groups:
                    groups[folder] = _periods(read_text(f"{folder}/cpu.stat") or "")
                found = groups[folder]
                if found is not None:
                    yield f"periods {number} {folder}", found[0]
                    yield f"throttled {number} {folder}", found[1]

    def _clock_files(self) -> list[str]:
        folder = f"{self.root}/sys/devices/system/cpu"
        with contextlib.suppress(OSError):
            cpus = sorted(int(name[3:]) for name in os.listdir(folder) if re.fullmatch(r"cpu\d+", name))
            chosen = cpus[:: max(1, -(-len(cpus) // CLOCKS_MOST))]
            paths = [f"{folder}/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in chosen]
            return [path for path in paths if os.path.exists(path)]
        return []

    def _clock(self) -> float | None:
        """Return the mean clock of some CPUs, MHz."""
        words = [(read_text(path) or "").strip() for path in self._clocks]
        known = [int(word) / 1000 for word in words if word.isdigit()]
        return round(sum(known) / len(known), 1) if known else None


class GpuFacts:
    """Facts of the GPUs of a run.

    :param ranks: ``pid`` of each rank of this host
    """

    def __init__(self, ranks: Sequence[Json]) -> None:
        self.pids = {rank["pid"] for rank in ranks}
        self._read_at = 0.0

    def is_due(self) -> bool:
        """Return whether it is time for the next reading, and count this as one."""
        now = time.monotonic()
        if self._read_at and now - self._read_at <= FACTS_S - 0.05:
            return False
        self._read_at = now
        return True

    def read(self, nvml: Nvml, handle: object) -> Json:
        """Return the facts of a device, each only if the device reports it."""
        call = nvml.call
        reasons = call("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            # Name of the function in drivers before 535.
            reasons = call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        rows = call("nvmlDeviceGetRemappedRows", handle)
        milliwatts = call("nvmlDeviceGetPowerUsage", handle)
        found: Json = {
            "gpu_clock": call("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
            "gpu_temperature": call("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
            "gpu_power": None if milliwatts is None else milliwatts / 1000,
            "gpu_ecc_errors": call("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
            "gpu_remapped_rows": None if rows is None else rows[0] + rows[1],
            "gpu_other_processes": self._other_processes(nvml, handle),
        }
        bits = (("thermal", THERMAL), ("power", POWER), ("hardware", HARDWARE))
        for name, bit in bits if reasons is not None else ():
            found[f"gpu_{name}_slowdown"] = 100 if reasons & bit else 0
        return {name: value for name, value in found.items() if value is not None}

    def _other_processes(self, nvml: Nvml, handle: object) -> int | None:
        """Return the number of processes on a device that are not of this run, None if that cannot be known.

        The driver may list the numbers of another PID namespace, so it must list a rank too.
        """
        listed = {pid for pid, _ in nvml.processes(handle) or ()}
        if not any(self._is_own(pid) for pid in listed):
            return None
        return sum(os.path.exists(f"/proc/{pid}") and not self._is_own(pid) for pid in listed)

    def _is_own(self, pid: int) -> bool:
        """Return whether a process is a rank or descends from one."""
        for _ in range(64):
            if pid in self.pids:
                return True
            if pid <= 1 or (proc := read_proc(pid)) is None:
                return False
            pid = proc.ppid
        return False


def _periods(text: str) -> tuple[float, float] | None:
    """Return periods and throttled periods in a ``cpu.stat``, None of a cgroup without quota."""
    found = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 1)
    periods = int(found.get("nr_periods", 0))
    return (periods, int(found.get("nr_throttled", 0))) if periods else None


def _share(change: dict[str, float], part: str, whole: str) -> float | None:
    """Return a part of a counter's change in percent, None if it is unknown or nothing has changed."""
    return _percent(change, part, change.get(whole, 0.0))


def _percent(change: dict[str, float], part: str, whole: float) -> float | None:
    return min(100.0, round(100 * change[part] / whole, 2)) if part in change and whole > 0 else None
