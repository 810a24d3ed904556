"""Rates of this host, measured while the locks of the slots are held."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from ..environments.supervised import SupervisedProgram
from ..fields import Fields, number, parse_object
from ..file_access import read_text
from ..files.layout import Layout
from ..limits import MEASURE_BYTES, MEASURE_MOST_S
from ..machine.locks import take_lock, take_machine_lock
from ..names import DEVICE, WORD, Json
from ..refusal import Refused


def measure_request(layout: Layout, fields: Fields, is_open: Callable[[], bool]) -> Callable[[], Json]:
    """Check a request, and return the work of a thread.

    :param is_open: returns False once the control side is gone, which ends the measurement
    """
    slots = [Fields(item, "slots") for item in fields.items("slots", limit=4096)]
    devices = {one.integer("index", 0, 65535): one.text("device", DEVICE, default=None) for one in slots}
    store = fields.text("store", WORD)
    token = fields.integer("token", 0, 10**18)
    python = fields.text("python", default=None)
    limit_s = fields.number("limit_s", 0.1, MEASURE_MOST_S)
    request: Json = {
        "folder": os.path.join(layout.state_dir, "runs"),
        "slots": sorted(devices),
        "gpus": any(devices.values()),
        "windows": fields.integer("windows", 1, 64),
        "disk_bytes": fields.integer("disk_bytes", 0, 1 << 30),
        "cpus": 0,
    }
    share = fields.number("cpu_share", 0, 1)
    if not request["gpus"] and share > 0:
        request["cpus"] = max(1, int(len(os.sched_getaffinity(0)) * share))

    def work() -> Json:
        with _held(layout, devices, store, token) as locks:
            visible = [devices[slot] or "" for slot in sorted(devices)] if request["gpus"] else []
            return _measured(python, request, visible, locks, limit_s, is_open)

    return work


@contextlib.contextmanager
def _held(layout: Layout, devices: dict[int, str | None], store: str, token: int) -> Iterator[list[int]]:
    """Hold the locks of slots without a mark in them, because no run has the slots.

    :raises Refused: a run holds one, or one was granted again
    """
    locks: list[int] = []
    try:
        for index in sorted(devices):
            if number(layout.tokens(index).get(store)) > token:
                raise Refused("stale_token", f"Slot {index} was granted again. Its check is over.", slot=index)
            lock = take_lock(layout.slot_lock(index))
            if lock is None:
                raise Refused("slot_busy", f"Slot {index} is held by a run.", slot=index, run=None)
            locks.append(lock)
            path = layout.machine_lock(index, devices[index])
            if path is None:
                continue
            lock = take_machine_lock(path, create=True)
            if lock is None:
                raise Refused("slot_busy", f"Slot {index} is held outside this account's runs.", slot=index, run=None)
            locks.append(lock)
        yield locks
    finally:
        for lock in locks:
            os.close(lock)


def _measured(
    python: str | None, request: Json, visible: list[str], locks: list[int], limit_s: float, is_open: Callable[[], bool]
) -> Json:
    """Return the results that the program printed, also if it was ended."""
    text = read_text(os.path.join(os.path.dirname(os.path.abspath(__file__)), "rates.py"))
    if text is None:
        raise Refused("internal", "The program of the measurement is missing.")
    found = shutil.which(os.path.expanduser(python or sys.executable))
    if found is None:
        raise Refused("not_found", f"This host has no interpreter {python}. Name another one with --python.")
    argv = [found, "-E", "-c", text, json.dumps(request)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible)}
    program = SupervisedProgram(
        argv, limit_s, locks, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    output = bytearray()
    process = program.process
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline and is_open():
            if not select.select([process.stdout], [], [], 0.2)[0]:
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            output += data[: max(0, MEASURE_BYTES - len(output))]
        else:
            # Its end ends the program and all that it started.
            process.stdin.close()
    finally:
        status = program.wait()
        process.stdout.close()
    return {"results": _parsed(bytes(output)), "exit_code": status}


def _parsed(output: bytes) -> list[Json]:
    lines = (line[7:] for line in output.splitlines() if line.startswith(b"DTRAIN "))
    return [found for found in map(parse_object, lines) if found is not None]
