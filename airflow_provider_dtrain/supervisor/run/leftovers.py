"""Processes that a dead supervisor left behind, and those suspected of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator

from ..fields import number
from ..file_access import read_json, read_text
from ..files.layout import RunFolder, rank_records
from ..machine.locks import is_locked, lock_holders
from ..machine.processes import (
    Proc,
    all_procs,
    ancestors,
    boot_id,
    descendants,
    environment_of,
    find_process,
    is_dead,
    is_ours,
    pid_namespace,
    read_proc,
    real_uid,
    recorded_processes,
    send_signal,
)
from ..names import CONTAINER_RECORD, RUN_NAME, Json
from .cgroup import Cgroup

_RUN_LOCK = re.compile(rf".*/runs/({RUN_NAME.pattern})/lock(?: \(deleted\))?")


def environment_names(pid: int, folder: RunFolder) -> bool:
    """Return whether a process's environment names the run of exactly this folder."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(4 << 20).split(b"\0")
    except OSError:
        return False
    wanted = (b"DTRAIN_RUN=" + folder.name.encode(), b"DTRAIN_RUN_DIR=" + os.fsencode(folder.path))
    return all(one in variables for one in wanted)


def leftovers(folder: RunFolder) -> list[Proc]:
    """Return the living processes of a run whose supervisor is gone.

    They are found by the run's cgroup, by its ranks (pid and start time) and their descendants, by
    their environment, by the slot locks that they hold, and below the run's reaper. This process and
    its ancestors are never returned.
    """
    procs = all_procs()
    found: dict[int, Proc] = {}
    known = folder.supervisor() or {}
    if known.get("boot_id") == boot_id() and known.get("pid_ns") == pid_namespace():
        ranks = [procs.get(number(rank.get("pid"))) for rank in rank_records(folder)]
        starts = {number(rank.get("pid")): rank.get("start_time") for rank in rank_records(folder)}
        mine = [proc for proc in ranks if proc is not None and proc.start_time == starts[proc.pid]]
        group = Cgroup.known(known.get("cgroup"))
        inside = [procs[pid] for pid in (group.pids() if group else ()) if pid in procs]
        for proc in [*mine, *inside, *descendants([proc.pid for proc in [*mine, *inside]], procs)]:
            found[proc.pid] = proc
        # The reaper inherits the children of its dead supervisor, also a sampler stuck in a driver, which is skipped.
        if (reaper := find_reaper(folder)) is not None:
            found.update({one.pid: one for one in descendants([reaper.pid], procs) if not is_ours(one.pid)})
    for proc in procs.values():
        if proc.pid not in found and environment_names(proc.pid, folder):
            found[proc.pid] = proc
    for proc in slot_keepers(folder):
        found[proc.pid] = proc
    for pid in ancestors(os.getpid(), procs):
        found.pop(pid, None)
    return [proc for proc in found.values() if not is_dead(proc)]


def slot_keepers(folder: RunFolder) -> list[Proc]:
    """Return the processes that hold a slot lock taken by this run, even if its folder is gone."""
    found: list[Proc] = []
    for index in folder.layout.slots():
        path = folder.layout.slot_lock(index)
        if (read_json(path) or {}).get("run") == folder.name and is_locked(path):
            # The next holder of the slot writes its name a moment after it has the lock.
            found += [proc for proc in lock_holders(path) if run_of(proc.pid) in (None, folder.name)]
    return found


def descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """Yield path and target of the descriptors of a process, none if they are hidden."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            with contextlib.suppress(OSError):
                yield path, os.readlink(path)


def run_of(pid: int) -> str | None:
    """Return the run that a process belongs to: by its environment, or by the lock of a run that it has open."""
    named = environment_of(pid).get(b"DTRAIN_RUN", b"").decode("ascii", "replace")
    if RUN_NAME.fullmatch(named):
        return named
    locks = (_RUN_LOCK.fullmatch(target) for _, target in descriptors(pid))
    return next((found[1] for found in locks if found), None)


def find_reaper(folder: RunFolder) -> Proc | None:
    """Return the living reaper of a run, None if it is gone or not recorded."""
    known = folder.supervisor() or {}
    reaper = known.get("reaper")
    return find_process({**known, **reaper}) if isinstance(reaper, dict) else None


def origin() -> Json:
    """Return properties that every descendant of this process shares and no ordinary system call changes.

    ``heirs`` are the processes above the reaper, nearest first. One of them inherits the reaper's orphans.
    """
    heirs: list[Json] = []
    session = os.getsid(0)
    # The process that forked the reaper leads the session and exits at once. The run must not start before that.
    while (reaper := read_proc(os.getppid())) is not None and reaper.ppid == session:
        time.sleep(0.0005)
    heir = read_proc(reaper.ppid) if reaper else None
    while heir is not None and len(heirs) < 64:
        heirs.append({"pid": heir.pid, "start_time": heir.start_time})
        heir = read_proc(heir.ppid)
    return {"heirs": heirs, "session": session, **place_of(os.getpid())}


def place_of(pid: int) -> Json:
    """Return the kernel's login session of a process, and its place in the hierarchy of systemd."""
    groups = (read_text(f"/proc/{pid}/cgroup") or "").splitlines()
    group = [line.partition(":")[2] for line in groups if line.split(":")[1:2] in ([""], ["name=systemd"])]
    return {"login": read_text(f"/proc/{pid}/sessionid"), "group": sorted(group)}


def suspects(folder: RunFolder) -> list[Proc]:
    """Return the possible leftovers of a run whose supervisor and reaper are both gone.

    They belong to this account, are younger than the run, belong to no known run, and either share a session with the
    run or were inherited by the process that inherits the run's orphans. They are not killed, because another program
    of the user may look the same. A process with another login session or another place in systemd's hierarchy than
    the run is no suspect, because neither changes without privileges.
    """
    known = folder.supervisor() or {}
    start = number(known.get("start_time"))
    if folder.has("ended") or not folder.has("started") or start < 0 or is_proved(known) or folder.has("swept"):
        return []
    procs = all_procs()
    recorded = (read_json(folder.file("started")) or {}).get("origin")
    source: Json = recorded if isinstance(recorded, dict) else {}
    parents = orphans_parents(source, procs)
    sessions = {number(rank.get("pid")) for rank in rank_records(folder)}
    sessions.add(number(source.get("session")))
    first = [
        proc
        for proc in procs.values()
        if proc.start_time >= start
        and (proc.ppid in parents or (proc.session in sessions and proc.session > 0))
        and is_suspect(proc, source)
    ]
    found = {proc.pid: proc for proc in [*first, *descendants([proc.pid for proc in first], procs)]}
    spared = recorded_processes(procs) | ancestors(os.getpid(), procs)
    return [proc for proc in found.values() if proc.pid not in spared and not is_dead(proc)]


def is_proved(known: Json) -> bool:
    """Return whether a run without supervisor provably has no process: another boot, or an empty cgroup."""
    if known.get("boot_id") != boot_id() or known.get("pid_ns") != pid_namespace():
        return True
    path = known.get("cgroup")
    return isinstance(path, str) and not (os.path.isdir(path) and Cgroup(path).pids())


def orphans_parents(source: Json, procs: dict[int, Proc]) -> set[int]:
    """Return the pids that may have inherited a run's orphans, none without a record of them."""
    heirs = source.get("heirs")
    heirs = [heir for heir in heirs if isinstance(heir, dict)] if isinstance(heirs, list) else []
    living = [
        procs[heir["pid"]].pid
        for heir in heirs
        if heir.get("pid") in procs and procs[heir["pid"]].start_time == heir.get("start_time")
    ]
    # The nearest heir inherits. Once it is gone, any of the heirs above it may have inherited.
    return set(living[:1] if len(living) == len(heirs) else living)


def is_suspect(proc: Proc, source: Json) -> bool:
    """Return whether a process has this account, and the run's login session and place if they are known."""
    if real_uid(proc.pid) != os.getuid():
        return False
    place = place_of(proc.pid)
    return all(place[key] == source.get(key, place[key]) for key in place)


def left_of(folder: RunFolder) -> tuple[list[Proc], list[Proc]]:
    """Return the living processes of a run without supervisor, and its suspects if there are none.

    The reaper is returned if it is the only process left.
    """
    found = leftovers(folder)
    if not found and (reaper := find_reaper(folder)) is not None:
        found = [reaper]
    return found, [] if found else suspects(folder)


def has_left(folder: RunFolder) -> bool:
    """Return whether a started run without supervisor may still have processes, or a container."""
    if folder.has("ended") or folder.alive():
        return False
    return folder.has(CONTAINER_RECORD) or (folder.has("started") and any(left_of(folder)))


def remains(folder: RunFolder) -> tuple[list[Proc], list[Proc]]:
    """Kill the leftovers of a run without supervisor. Return the processes that survive, and the suspects."""
    kill_leftovers(folder)
    if (reaper := find_reaper(folder)) is not None and reaper.state in "Tt":
        send_signal(reaper, signal.SIGCONT)
    return left_of(folder)


def kill_leftovers(folder: RunFolder) -> list[Proc]:
    """Kill the leftovers of a run without supervisor. Return the processes that were alive before."""
    group = Cgroup.known((folder.supervisor() or {}).get("cgroup"))
    if group is not None:
        group.kill()
    found = leftovers(folder)
    for proc in found:
        send_signal(proc, signal.SIGKILL)
    if group is not None and not found:
        group.remove()
    return found
