"""GPUs of this host and the load on them, as the driver reports them."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from ..names import Json


def load_library() -> Any:
    """Return the module ``pynvml``, initialized, or None on a host without driver."""
    try:
        # A host without driver is spared the import of pynvml, which takes longer than the rest of a probe.
        ctypes.CDLL("libnvidia-ml.so.1")
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


class Nvml:
    """The driver's management library, called through NVIDIA's module ``pynvml``."""

    _lock = threading.Lock()

    def __init__(self, library: Any) -> None:
        self.library = library

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[Nvml | None]:
        """Yield the library, None on a host without it."""
        with cls._lock:
            library = load_library()
            if library is None:
                yield None
                return
            try:
                yield cls(library)
            finally:
                with contextlib.suppress(library.NVMLError):
                    library.nvmlShutdown()

    def call(self, function: str, *arguments: Any) -> Any:
        """Return the result of a function of the library, None if it fails or the driver does not have it."""
        try:
            return getattr(self.library, function)(*arguments)
        except UnicodeDecodeError as error:
            return error.object.decode("utf-8", "replace")
        except (self.library.NVMLError, AttributeError):
            return None

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Yield index and handle of every device."""
        for index in range(min(self.call("nvmlDeviceGetCount") or 0, 256)):
            handle = self.call("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield index, handle

    def devices(self) -> Iterator[Json]:
        """Yield the probe report of every device that a process can use: a whole GPU, or an instance of one (MIG)."""
        for index, handle in self.handles():
            for device in self._instances(handle) if self._is_divided(handle) else [handle]:
                yield self.device(index, device)

    def _is_divided(self, handle: Any) -> bool:
        """Return whether a GPU is in MIG mode, in which processes use instances of it and not the whole."""
        found = self.call("nvmlDeviceGetMigMode", handle)
        return found is not None and found[0] == 1

    def _instances(self, handle: Any) -> Iterator[Any]:
        for index in range(self.call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if instance is not None:
                yield instance

    def text(self, function: str, handle: Any) -> str:
        """Return a text property of a device, empty if the call fails."""
        return self.call(function, handle) or ""

    def device(self, index: int, handle: Any) -> Json:
        """Return the probe report of a device.

        :param index: number of its GPU
        """
        memory = self.call("nvmlDeviceGetMemoryInfo", handle)
        return {
            "index": index,
            "uuid": self.text("nvmlDeviceGetUUID", handle),
            "name": self.text("nvmlDeviceGetName", handle),
            "memory_bytes": memory.total if memory else 0,
        }

    def handle_of(self, uuid: str) -> Any:
        """Return the handle of a device, None if the library does not know it."""
        return self.call("nvmlDeviceGetHandleByUUID", uuid)

    def load(self, handle: Any) -> Json:
        """Return ``gpu_util`` (percent) and ``gpu_free_memory`` (bytes), each only if the device reports it."""
        found: Json = {}
        if utilization := self.call("nvmlDeviceGetUtilizationRates", handle):
            found["gpu_util"] = utilization.gpu
        if memory := self.call("nvmlDeviceGetMemoryInfo", handle):
            found["gpu_free_memory"] = memory.free
        return found

    def fault_events(self, handles: Iterable[Any]) -> Any:
        """Return an event set that gets the faults of some devices, None if the driver has no such events."""
        events = self.call("nvmlEventSetCreate")
        if events is None:
            return None
        wanted = self.library.nvmlEventTypeXidCriticalError | self.library.nvmlEventTypeDoubleBitEccError
        for handle in handles:
            types = (self.call("nvmlDeviceGetSupportedEventTypes", handle) or 0) & wanted
            if types:
                self.call("nvmlDeviceRegisterEvents", handle, types, events)
        return events

    def next_fault(self, events: Any, wait_ms: int) -> Json | None:
        """Return the next fault of a device, None if there is none within a time.

        ``uuid``; ``xid``: number of an error as NVIDIA documents it, 0 for a double-bit error of the memory.
        """
        found = self.call("nvmlEventSetWait_v2", events, wait_ms)
        if found is None:
            return None
        is_xid = bool(found.eventType & self.library.nvmlEventTypeXidCriticalError)
        return {"uuid": self.text("nvmlDeviceGetUUID", found.device), "xid": int(found.eventData) if is_xid else 0}

    def processes(self, handle: Any) -> list[tuple[int, int]] | None:
        """Return pid and used bytes of every compute process on a device, None if the driver does not list them."""
        for version in ("v3", "v2"):
            found = self.call(f"nvmlDeviceGetComputeRunningProcesses_{version}", handle)
            if found is not None:
                return [(one.pid, one.usedGpuMemory or 0) for one in found]
        return None


def gpus() -> list[Json]:
    """Return the host's GPUs, and the MIG instances of those that are divided. [] without a driver."""
    with Nvml.opened() as nvml:
        return list(nvml.devices()) if nvml else []


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, None without one."""
    with Nvml.opened() as nvml:
        return nvml.call("nvmlSystemGetDriverVersion") if nvml else None
