"""Processes on the devices of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ..fields import number
from ..file_access import read_json, write_json
from ..files.layout import Layout, RunFolder
from ..machine.gpu import Nvml, gpus
from ..machine.processes import (
    all_procs,
    ancestors,
    boot_id,
    command_of,
    describe,
    is_dead,
    real_uid,
    recorded_processes,
    user_of,
)
from ..names import Json
from .plan import slot_devices


def list_processes(devices: Iterable[str]) -> dict[str, list[Json]]:
    """Return the processes on each of some devices that the driver lists, with user, memory and command."""
    found = dict[str, list[Json]]()
    wanted = list(devices)
    if not wanted:
        return {}
    with Nvml.opened() as nvml:
        for uuid in wanted if nvml else ():
            handle = nvml.handle_of(uuid) if nvml else None
            if nvml is None or handle is None or (listed := nvml.processes(handle)) is None:
                continue
            found[uuid] = [
                {"device": uuid, "pid": pid, "user": user_of(pid), "memory_bytes": used, "name": command_of(pid)}
                for pid, used in listed
            ]
    return found


def device_users(layout: Layout, devices: Iterable[str]) -> tuple[list[Json], list[str]]:
    """Return the processes on some devices, and the devices whose processes are no longer listed.

    The latter were listed earlier since the last boot. A device that was never listed, e.g. without a driver, is none.
    """
    devices = list(devices)
    listed = list_processes(devices)
    path = os.path.join(layout.state_dir, "listed_devices.json")
    boot = boot_id()
    known = read_json(path) or {}
    before = known.get("devices") if known.get("boot_id") == boot else None
    before = [device for device in before if isinstance(device, str)] if isinstance(before, list) else []
    if not all(device in before for device in listed):
        with contextlib.suppress(OSError):
            write_json(path, {"boot_id": boot, "devices": sorted({*before, *listed})}, durable=False)
    users = [user for found in listed.values() for user in found]
    return users, [device for device in devices if device in before and device not in listed]


def unlisted_text(device: str) -> str:
    """Return the reason why a device with unlisted processes does not count as free."""
    return f"{device}: the driver no longer lists its processes. Repair the driver, or reboot the host."


def device_problems(layout: Layout, devices: list[str]) -> tuple[list[Json], list[str]]:
    """Return the processes on some devices, and a text for each device that cannot be used."""
    present = {gpu["uuid"] for gpu in gpus()} if devices else set()
    users, unlisted = device_users(layout, devices)
    missing = [missing_text(device) for device in devices if device not in present]
    return users, missing + [unlisted_text(device) for device in unlisted if device in present]


def missing_text(device: str) -> str:
    """Return the reason why a device that the driver does not know cannot be used."""
    return (
        f"{device}: the driver does not list this GPU. Repair the driver, reboot the host, or disable the slot "
        "(airflow dtrain hosts disable --slot)"
    )


def foreign_device_users(folder: RunFolder, plan: Json) -> tuple[list[Json], list[Json], list[str]]:
    """Return the processes on a run's GPUs that belong to no known run: possible own ones, and foreign ones.

    A process of this account that is younger than the run may be its own. Each foreign process has its ``slot``. The
    third result lists the GPUs on which the run's processes can no longer be seen.
    """
    slots = {device: index for index, device in slot_devices(plan).items() if device is not None}
    known = folder.supervisor() or {}
    # No process of a run from before the last boot is alive.
    is_of_this_boot = known.get("boot_id") == boot_id()
    start = number(known.get("start_time")) if is_of_this_boot else 1 << 62
    own = []
    foreign = []
    users, unlisted = device_users(folder.layout, slots)
    procs = all_procs() if users else {}
    spared = recorded_processes(procs) | ancestors(os.getpid(), procs) if users else set()
    for user in users:
        proc = procs.get(user["pid"])
        if proc is not None and (proc.pid in spared or is_dead(proc)):
            continue
        if proc is not None and proc.start_time >= start and real_uid(proc.pid) == os.getuid():
            own.append(describe(proc))
        else:
            foreign.append({"slot": slots[user["device"]], **user})
    return own, foreign, unlisted if is_of_this_boot else []
