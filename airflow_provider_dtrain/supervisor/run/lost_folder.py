"""Processes of a run whose folder was removed: the locks that they hold, and their reapers, prove that they live."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator

from ..fields import Fields, number, parse_object
from ..file_access import read_json
from ..files.layout import Layout, RunFolder
from ..machine.container_runtime import RUNTIMES, remove_containers
from ..machine.locks import lock_holders, lock_taker, take_machine_lock
from ..machine.processes import Proc, all_procs, boot_id, has_name, read_arguments, send_signal
from ..names import DEVICE, MAX_LABEL, REAPER_NAME, SUPERVISOR_NAME, WORD, Json
from ..refusal import Refused
from .container import label_of
from .leftovers import descriptors, remains, run_of

#: Mark of the kernel behind the path of an open file that was removed.
_REMOVED = " (deleted)"
_SLOT_LOCK = re.compile(r"slots/(\d+)\.lock")


class Launched:
    """Facts about the launch of a run that the control side has kept.

    :param fields: ``boot_id`` and ``state_dir`` at the launch, ``slots`` with their devices, ``runtime`` of a container
    """

    def __init__(self, fields: Fields) -> None:
        self.boot_id = fields.text("boot_id", WORD, default=None)
        self.state_dir = fields.text("state_dir", limit=4096, default=None)
        #: Runtime of the run's container, None if it had none.
        self.runtime = fields.text("runtime", re.compile("|".join(RUNTIMES)), default=None)
        slots = [Fields(item, "slots") for item in fields.items("slots", default=[], limit=1024)]
        self.slots = {slot.integer("slot", 0, 65535): slot.text("device", DEVICE, default=None) for slot in slots}


def end_lost(folder: RunFolder, launched: Launched | None) -> tuple[list[Proc], list[str]]:
    """End the processes of a run whose folder is not here. Return those that are left, and reasons for doubt.

    Without both, no process of the run is left: none has its name in the environment, none holds its lock or the lock
    of one of its slots, and no reaper is at work for a run without a folder.
    """
    if launched is not None and launched.boot_id not in (None, boot_id()):
        return [], []
    reapers = unknown_reapers(folder)
    left = {proc.pid: proc for proc in supervisors_of(folder)}
    left.update({proc.pid: proc for _, children in reapers for proc in children if run_of(proc.pid) == folder.name})
    for proc in left.values():
        send_signal(proc, signal.SIGKILL)
    for proc, _ in reapers:
        left[proc.pid] = proc
        if proc.state in "Tt":
            send_signal(proc, signal.SIGCONT)
    left.update({proc.pid: proc for found in remains(folder) for proc in found})
    for proc, _, label in removed_slot_locks(folder.layout):
        if label.get("run") == folder.name:
            left[proc.pid] = proc
            send_signal(proc, signal.SIGKILL)
    keepers, doubts = machine_keepers(folder, launched)
    if launched is not None and launched.runtime is not None:
        reason = remove_containers(launched.runtime, label_of(folder))
        doubts += [reason] if reason else []
    left.update({proc.pid: proc for proc in keepers})
    is_elsewhere = launched is not None and launched.state_dir not in (None, folder.layout.state_dir)
    if is_elsewhere and folder.layout.lock_dir is None and launched is not None and launched.slots:
        doubts.append(
            f"the run was started with state_dir {launched.state_dir}, this channel has {folder.layout.state_dir}, and "
            "no lock_dir shows whether its processes live: connect as the account that started it, or reboot the host"
        )
    return list(left.values()), doubts


def open_files(state_dir: str) -> Iterator[tuple[Proc, str, str]]:
    """Yield process, path of the descriptor and former path for each removed file of a state folder that is open."""
    root = os.path.realpath(state_dir)
    for proc in all_procs().values():
        for path, target in descriptors(proc.pid):
            if target.endswith(_REMOVED) and target.startswith(f"{root}/"):
                yield proc, path, target.removesuffix(_REMOVED)[len(root) + 1 :]


def supervisors_of(folder: RunFolder) -> list[Proc]:
    """Return the processes that hold the removed lock of a run. Only its supervisor opens it for long."""
    path = f"runs/{folder.name}/lock"
    return [proc for proc, _, former in open_files(folder.layout.state_dir) if former == path]


def removed_slot_locks(layout: Layout) -> Iterator[tuple[Proc, int, Json]]:
    """Yield the processes with a removed lock file of a slot, the slot, and what its last holder wrote into it."""
    for proc, path, former in open_files(layout.state_dir):
        found = _SLOT_LOCK.fullmatch(former)
        if found is not None:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                yield proc, int(found[1]), parse_object(file.read(MAX_LABEL)) or {}


def unknown_reapers(folder: RunFolder) -> list[tuple[Proc, list[Proc]]]:
    """Return the reapers of this state folder that may be at work for a run, because no folder of a run names them.

    Each comes with its supervisor, if that lives.

    One whose supervisor lives and has the lock of another run belongs to that run.
    """
    layout = folder.layout
    known = set()
    for name in layout.runs():
        reaper = (read_json(layout.run(name).file("supervisor.json")) or {}).get("reaper")
        if isinstance(reaper, dict):
            known.add((number(reaper.get("pid")), number(reaper.get("start_time"))))
    procs = all_procs()
    found = []
    for proc in procs.values():
        if (proc.pid, proc.start_time) in known or not has_name(proc.pid, REAPER_NAME) or not _is_of(layout, proc.pid):
            continue
        children = [one for one in procs.values() if one.ppid == proc.pid and has_name(one.pid, SUPERVISOR_NAME)]
        runs = {run_of(one.pid) for one in children}
        if not runs or None in runs or folder.name in runs:
            found.append((proc, children))
    return found


def _is_of(layout: Layout, pid: int) -> bool:
    """Return whether a role of this program has the state folder of this one."""
    parts = read_arguments(pid)
    given = parts[parts.index("--state-dir") + 1] if "--state-dir" in parts[:-1] else None
    if given is None or layout.is_default:
        return given is None and layout.is_default
    return os.path.abspath(os.path.expanduser(given)) == layout.state_dir


def machine_keepers(folder: RunFolder, launched: Launched | None) -> tuple[list[Proc], list[str]]:
    """Return the processes that hold the locks of the run's slots for all accounts, and texts for hidden ones.

    A slot of a later run of this account is not this run's any longer. Processes of this run are killed.
    """
    keepers = []
    doubts = []
    for index, device in (launched.slots if launched is not None else {}).items():
        path = folder.layout.machine_lock(index, device)
        if path is None:
            continue
        try:
            lock = take_machine_lock(path, create=False)
        except FileNotFoundError:
            continue
        except Refused as error:
            doubts.append(error.message)
            continue
        if lock is not None:
            os.close(lock)
            continue
        holders = lock_holders(path)
        runs = {proc.pid: run_of(proc.pid) for proc in holders}
        own = [proc for proc in holders if runs[proc.pid] == folder.name]
        for proc in own:
            send_signal(proc, signal.SIGKILL)
        unknown = [proc for proc in holders if runs[proc.pid] is None]
        keepers += own + ([] if any(runs.values()) and not own else unknown)
        if not holders:
            doubts.append(f"slot {index} is locked by {lock_taker(path)}")
    return keepers, doubts
