"""Fences, stops and ends of runs whose supervisor may be dead."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any

from ..file_access import read_json, write_json
from ..files.events import EventLog
from ..files.layout import Layout, RunFolder, why_lost
from ..limits import FENCE_WAIT_S, KILLING_S, OBEY_S
from ..machine.locks import lock_holders, take_lock
from ..machine.processes import Proc, describe, find_process, open_pidfd, send_signal
from ..names import Json
from ..refusal import Refused
from .container import end_container
from .device_users import foreign_device_users, unlisted_text
from .leftovers import left_of, leftovers, remains
from .lost_folder import Launched, end_lost
from .plan import plan_slots
from .rank_exec import exec_processes
from .status import busy_slots


def write_end(folder: RunFolder, reason: str, cause: str | None = None) -> None:
    """Record the end of a run whose supervisor could not. The caller holds the run's lock."""
    last = write_ended_event(folder, reason, cause)
    shown = {key: last[key] for key in ("reason", "first_failure", "cause", "at") if key in last}
    write_json(folder.file("ended"), shown)


def write_ended_event(folder: RunFolder, reason: str, cause: str | None) -> Json:
    """Write the ``ended`` event unless it exists already, and return it. The caller holds the run's lock."""
    events = EventLog(folder.file("events.supervisor"))
    try:
        last = events.last
        if last is None or last.get("kind") != "ended":
            last = {"at": time.time(), "kind": "ended", "reason": reason, "first_failure": events.first_failure}
            if cause is not None:
                last["cause"] = cause
            events.write(last)
        return last
    finally:
        events.close()


def restore_end(folder: RunFolder) -> None:
    """Restore the ``ended`` event of a recorded end if another process of the account removed it."""
    try:
        lock = take_lock(folder.file("lock"))
    except FileNotFoundError:
        return
    if lock is None:
        return
    try:
        ended = folder.ended() or {}
        write_ended_event(folder, str(ended.get("reason", "lost")), ended.get("cause"))
    finally:
        os.close(lock)


def recover(folder: RunFolder, wait_s: float = 5.0) -> bool:
    """Kill what a dead supervisor left behind. Return whether the run has ended now.

    A run that was not started yet is left unchanged, because it may be prepared again.
    """
    try:
        lock = take_lock(folder.file("lock"))
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    try:
        if folder.alive():
            return False
        if folder.ended() or not folder.has("started"):
            return True
        deadline = time.monotonic() + wait_s
        pause_s = 0.005
        while True:
            reason, left = end_container(folder), remains(folder)
            if reason is None and not any(left):
                break
            if time.monotonic() > deadline or (reason is None and not left[0]):
                # Send followers the event now, so that they fence the run and show what is left.
                write_ended_event(folder, "lost", why_lost(folder)[0])
                return False
            time.sleep(pause_s)
            pause_s = min(0.25, pause_s * 2)
        write_end(folder, "lost", why_lost(folder)[0])
        return True
    finally:
        os.close(lock)


def fence(
    layout: Layout,
    run: str,
    token: int,
    wait_s: float = FENCE_WAIT_S,
    launch: str | None = None,
    launched: Launched | None = None,
) -> Json:
    """End a run and prevent any later start here. Return ``clear``, or what is left of the run.

    Tombstone and token are on the disk before any process is killed. On a full disk the run's reserve makes room. A
    run that was started here never starts again, so its end needs no tombstone.

    :param launch: the only launch that is ended; another one of the same name is not the caller's and continues
    :param launched: facts about the launch, for a host that has lost the folder of the run
    :raises Refused: ``stale_token``, the caller's grant is older than the run; a tombstone cannot be written
    """
    folder = layout.run(run)
    if token < int(run.rpartition(".")[2]):
        raise Refused("stale_token", f"Run {run} was granted later than token {token}. This fence is out of date.")
    if folder.is_other_launch(launch):
        layout.bury(run, token, launch)
        return {"clear": True, "other_launch": True}
    unwritten: Exception | None = None
    try:
        mark_fenced(layout, folder, token)
    except (OSError, Refused) as error:
        unwritten = None if folder.has("started") or folder.has("ended") else error
    begun = time.monotonic()
    while True:
        found = fence_once(folder, token, time.monotonic() - begun, launched)
        if found["clear"] or time.monotonic() - begun >= wait_s:
            break
        wait_for_end(folder, 0.02)
    if unwritten is not None:
        raise unwritten
    return found


def mark_fenced(layout: Layout, folder: RunFolder, token: int) -> None:
    """Write tombstone and token of a fence, durably."""
    try:
        layout.bury(folder.name, token)
    except OSError:
        if not folder.has("reserve"):
            raise
        os.unlink(folder.file("reserve"))
        layout.bury(folder.name, token)
    plan = folder.plan() if folder.exists else None
    if plan is not None:
        layout.record_tokens(plan["store"], token, plan_slots(plan))


def fence_once(folder: RunFolder, token: int, elapsed_s: float, launched: Launched | None = None) -> Json:
    """Kill the processes of a run and return what is left of it."""
    if not folder.exists:
        procs, doubts = end_lost(folder, launched)
        if procs or doubts:
            return {"clear": False, "survivors": [describe(proc) for proc in procs], "busy_slots": [], "doubts": doubts}
        return {"clear": True}
    lock = None
    with contextlib.suppress(FileNotFoundError):
        lock = take_lock(folder.file("lock"))
    try:
        proc = find_process(folder.supervisor())
        if proc is not None or lock is None:
            return fence_supervisor(folder, proc, elapsed_s)
        plan = folder.plan() or {}
        reason = end_container(folder)
        left = [describe(proc) for found in remains(folder) for proc in found]
        left += [describe(proc) for proc in end_commands(folder, elapsed_s)]
        busy = [] if left else busy_slots(folder, plan, token)
        own, foreign, unlisted = ([], [], []) if left or busy else foreign_device_users(folder, plan)
        if left or busy or own or unlisted or reason:
            keepers = [describe(one) for found in busy for one in lock_holders(folder.layout.slot_lock(found["slot"]))]
            answer: Json = {"clear": False, "survivors": unique([*left, *own, *keepers]), "busy_slots": busy}
            more = {"unlisted": [unlisted_text(device) for device in unlisted], "doubts": [reason] if reason else []}
            return {**answer, **{name: texts for name, texts in more.items() if texts}}
        if plan and not folder.has("ended"):
            # On a full disk the next fence or recovery writes it.
            with contextlib.suppress(OSError):
                write_end(folder, "fenced")
        return {"clear": True, "foreign": foreign} if foreign else {"clear": True}
    finally:
        if lock is not None:
            os.close(lock)


def end_commands(folder: RunFolder, elapsed_s: float) -> list[Proc]:
    """Return the processes of commands beside the run's ranks. They end with the ranks, or are killed."""
    found = exec_processes(folder)
    for proc in found if elapsed_s > OBEY_S else ():
        send_signal(proc, signal.SIGKILL)
    return found


def fence_supervisor(folder: RunFolder, proc: Proc | None, elapsed_s: float) -> Json:
    """Make a living supervisor end the run, or kill the supervisor. Return what is left."""
    folder.ring()
    # A supervisor that is killing its run does so more reliably. One that does not react is killed with the rest.
    patience_s = KILLING_S if folder.state().get("state") in ("killing", "ended") else OBEY_S
    if proc is not None and (proc.state in "Tt" or elapsed_s > patience_s):
        send_signal(proc, signal.SIGKILL)
    # Without a supervisor, the process that holds the run's lock is doing the same.
    left = [proc, *leftovers(folder)] if proc is not None else [one for found in left_of(folder) for one in found]
    return {"clear": False, "survivors": unique([describe(one) for one in left]), "busy_slots": []}


def unique(survivors: list[Json]) -> list[Json]:
    """Return each process once."""
    return list({one["pid"]: one for one in survivors}.values())


def wait_for_end(folder: RunFolder, timeout_s: float) -> None:
    """Wait until the supervisor is gone or ``timeout_s`` has passed, 5 ms if it is gone already."""
    proc = find_process(folder.supervisor())
    fd = open_pidfd(proc.pid) if proc is not None else -1
    if fd < 0:
        time.sleep(0.005)
        return
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(timeout_s * 1000)
    finally:
        os.close(fd)


def stop(layout: Layout, run: str, grace_s: float | None) -> Json:
    """Request the end of a run. A run that is not here yet is prevented from starting later."""
    folder = layout.run(run)
    if folder.has("ended"):
        return {}
    if folder.exists:
        known: Any = (read_json(folder.file("stop.json")) or {}).get("grace_s")
        grace: Any = (folder.plan() or {}).get("grace_s", 30.0) if grace_s is None else grace_s
        grace = grace if known is None else min(grace, known)
        folder.command("stop.json", {"grace_s": grace, "at": time.time()})
    # The run is not here yet, or its supervisor does not listen yet. It checks for a tombstone once it does.
    if not (folder.exists and folder.ring()) and not folder.has("started"):
        layout.bury(run, None)
        folder.ring()
    return {}
