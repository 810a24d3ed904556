"""Ranks that use the device of another rank of their host."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence

from ..file_access import write_json
from ..files.layout import RunFolder
from ..limits import DEVICE_CHECKS_S
from ..machine.gpu import Nvml
from ..machine.processes import Proc, all_procs, ancestors
from ..names import Json

#: File of a run's folder with the warning.
WARNING = "device_warning.json"


class DeviceCheck:
    """Comparison of the processes on a run's devices with its ranks, which warns once.

    :param ranks: ``rank``, ``pid`` and ``device`` of each rank of this host
    """

    def __init__(self, folder: RunFolder, ranks: Sequence[Json]) -> None:
        self.folder = folder
        self.ranks = ranks
        started = time.monotonic()
        devices = {one["device"] for one in ranks if one["device"]}
        #: Times of the checks to come, on time.monotonic().
        self.due = deque(started + after_s for after_s in DEVICE_CHECKS_S if len(devices) > 1)

    def run(self) -> None:
        """Check until the last time has passed or a warning is written. Return at once without the library."""
        with contextlib.suppress(Exception), Nvml.opened() as nvml:
            while nvml is not None and self.due:
                time.sleep(max(0.0, self.due[0] - time.monotonic()))
                self.check(nvml)

    def check(self, nvml: Nvml) -> None:
        """Compare, if it is time. A warning is a file that the supervisor turns into an event."""
        if not self.due or time.monotonic() < self.due[0]:
            return
        self.due.popleft()
        if (warning := device_warning(nvml, self.ranks)) is not None:
            self.due.clear()
            write_json(self.folder.file(WARNING), {"text": warning}, durable=False)
            self.folder.ring()


def device_warning(nvml: Nvml, ranks: Sequence[Json]) -> str | None:
    """Return a warning about the first rank that uses another rank's device, None if there is none.

    :param ranks: ``rank``, ``pid`` and ``device`` of each rank of this host
    """
    own = {one["rank"]: one["device"] for one in ranks if one["device"]}
    pids = {one["pid"]: one["rank"] for one in ranks}
    listed = {device: _processes(nvml, device) for device in own.values()}
    procs = all_procs() if any(listed.values()) else {}
    used_bytes: dict[tuple[int, str], int] = {}
    for device, processes in listed.items():
        for pid, memory_bytes in processes:
            if (rank := _rank_of(pid, pids, procs)) is not None:
                used_bytes[rank, device] = used_bytes.get((rank, device), 0) + memory_bytes
    for (rank, device), memory_bytes in sorted(used_bytes.items()):
        if own.get(rank, device) != device:
            owner = min(other for other, its in own.items() if its == device)
            also = "also " if (rank, own[rank]) in used_bytes else ""
            return (
                f"rank {rank} {also}holds {memory_bytes >> 20} MiB on the device of rank {owner}: call "
                'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything is moved to a GPU'
            )
    return None


def _processes(nvml: Nvml, device: str) -> list[tuple[int, int]]:
    handle = nvml.handle_of(device)
    return (nvml.processes(handle) or []) if handle is not None else []


def _rank_of(pid: int, pids: Mapping[int, int], procs: dict[int, Proc]) -> int | None:
    return next((pids[one] for one in ancestors(pid, procs) if one in pids), None)
