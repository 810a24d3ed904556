"""Faults of a run's GPUs, as the driver reports them to every account: Xid errors, and double-bit memory errors."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from typing import Any

from ..fields import Fields, parse_object
from ..file_access import read_bytes
from ..files.layout import RunFolder
from ..limits import FAULTS_LIMIT
from ..machine.gpu import Nvml
from ..names import Json
from ..refusal import Refused

#: File in the run's folder, one fault per line.
_FILE = "device_faults"
_WAIT_MS = 1000
_LINE_BYTES = 256


class DeviceFaults:
    """File with the faults of a run's GPUs. The sampler writes it, and the supervisor reads it."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.file(_FILE)

    def watch(self, nvml: Nvml, handles: Iterable[Any]) -> None:
        """Write each fault until there are too many, or the driver fails."""
        with contextlib.suppress(Exception):
            events = nvml.fault_events(handles)
            written = 0
            while events is not None and written < FAULTS_LIMIT:
                began = time.monotonic()
                fault = nvml.next_fault(events, _WAIT_MS)
                if fault is not None:
                    self._write({**fault, "at": time.time()})
                    written += 1
                elif time.monotonic() - began < 0.001:
                    # The driver does not wait, because it fails.
                    time.sleep(_WAIT_MS / 1000)

    def _write(self, fault: Json) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb", buffering=0) as file:
            file.write(json.dumps(fault).encode() + b"\n")

    def read(self) -> list[Json]:
        """Return the faults so far: ``uuid``, ``xid`` and ``at`` (Unix seconds)."""
        content = read_bytes(self.path, FAULTS_LIMIT * _LINE_BYTES) or b""
        found = []
        for line in content.splitlines():
            with contextlib.suppress(Refused):
                fields = Fields(parse_object(line) or {})
                found.append(
                    {
                        "uuid": fields.text("uuid", limit=96),
                        "xid": fields.integer("xid", 0, 1 << 31),
                        "at": fields.number("at", 0, 1e11),
                    }
                )
        return found
