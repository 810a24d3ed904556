"""State of the runs and slots of this host."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from ..fields import number
from ..file_access import read_json
from ..files.layout import Layout, RunFolder, rank_records
from ..limits import STATUS_BYTES
from ..machine.locks import is_locked, machine_holder, take_lock
from ..machine.processes import boot_id, boottime
from ..names import Json
from .control import run_state
from .device_users import device_users, unlisted_text
from .leftovers import has_left
from .plan import plan_slots


def busy_slots(folder: RunFolder, plan: Json, token: int) -> list[Json]:
    """Return the run's slots that cannot be locked.

    A slot held under a later grant of the same store no longer belongs to this run. The store granted
    it only because this run was known to be gone.
    """
    found = []
    for index in plan_slots(plan):
        path = folder.layout.slot_lock(index)
        lock = take_lock(path)
        if lock is not None:
            os.close(lock)
            continue
        holder = read_json(path) or {}
        if holder.get("store") == plan.get("store") and number(holder.get("token")) > token:
            continue
        found.append({"slot": index, "run": holder.get("run")})
    return found


def status(layout: Layout, devices: dict[int, str | None] | None = None, names: Iterable[str] | None = None) -> Json:
    """Return runs of this host and the holder of each slot.

    The runs take at most :data:`STATUS_BYTES`: those that have not ended come first, then the newest. ``left_out``
    counts the rest.

    :param devices: slots to check in addition to those that were ever locked here, with their devices
    :param names: the only runs to return; None = all
    """
    folders = [folder for folder in map(layout.run, layout.runs() if names is None else names) if folder.exists]
    runs: Json = {}
    room = STATUS_BYTES
    for folder in sorted(folders, key=status_order):
        found = run_status(folder)
        room -= len(json.dumps({folder.name: found}))
        if room < 0:
            break
        runs[folder.name] = found
    devices = devices or {}
    stuck = stuck_slots(layout)
    slots = {}
    for index in sorted({*layout.slots(), *devices}):
        slots[str(index)] = {"held_by": slot_holder(layout, index, devices, stuck)}
    return {"runs": runs, "left_out": len(folders) - len(runs), "slots": slots, "stores": layout.stores()}


def status_order(folder: RunFolder) -> tuple[bool, float]:
    """Return a key that sorts runs that have not ended first, then the newest."""
    try:
        return folder.has("ended"), -os.lstat(folder.path).st_mtime
    except FileNotFoundError:
        return True, 0.0


def slot_holder(layout: Layout, index: int, devices: dict[int, str | None], stuck: dict[int, str]) -> str | None:
    """Return the holder of a slot: the run of this account that holds it or has leftovers, or another process."""
    path = layout.slot_lock(index)
    label = read_json(path) or {}
    if is_locked(path):
        return str(label.get("run", "unknown"))
    if index in stuck:
        return stuck[index]
    device = devices.get(index, label.get("device"))
    holder = machine_holder(layout.machine_lock(index, device))
    if holder is not None or index not in devices or device is None:
        return holder
    users, unlisted = device_users(layout, [device])
    return process_text(users[0]) if users else unlisted_text(device) if unlisted else None


def stuck_slots(layout: Layout) -> dict[int, str]:
    """Return the slots of runs that have leftovers but no supervisor, with the name of the run."""
    found = {}
    for name in layout.runs():
        folder = layout.run(name)
        if has_left(folder):
            found.update(dict.fromkeys(plan_slots(folder.plan() or {}), name))
    return found


def process_text(user: Json) -> str:
    """Return a description of a process on a device."""
    return f"process {user['pid']} ({user['name'][:100]}) of user {user['user']}"


def run_status(folder: RunFolder) -> Json:
    """Return state, token, store and ranks of a run, and the time since its last renewal.

    ``unrenewed_s`` is measured on this host's own clock. It is None if no reading of this boot is known.
    """
    state = folder.state()
    known = folder.supervisor() or {}
    plan = folder.plan() or {}
    renewed = folder.renewal().get("renewed_boottime_s", state.get("prepared_boottime_s"))
    of_this_boot = known.get("boot_id") == boot_id()
    # The ``ended`` event is sent shortly before the file that records it. Until then state.json counts.
    ended = folder.ended() or (state if state.get("state") == "ended" else {})
    return {
        "state": run_state(folder),
        "reason": ended.get("reason"),
        "unrenewed_s": boottime() - renewed if of_this_boot and isinstance(renewed, (int, float)) else None,
        "ranks": [{key: rank.get(key) for key in ("rank", "pid", "exit_code")} for rank in rank_records(folder)],
        "token": int(folder.name.rpartition(".")[2]),
        "store": plan.get("store"),
        "launch": plan.get("launch"),
        "buried": folder.has_tombstone,
        "stop_requested": folder.has("stop_requested"),
    }
