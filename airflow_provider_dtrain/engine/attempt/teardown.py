"""Teardown of a gang: its slots are released once every process is confirmed gone on every host."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.failure_cause import Cause, CauseKind, cause_of
from airflow_provider_dtrain.core.lifecycle.rank_exits import classify
from airflow_provider_dtrain.core.lifecycle.rank_text import clock
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import FENCE_WAIT_S
from airflow_provider_dtrain.engine.slots.source import slots_of
from airflow_provider_dtrain.errors import (
    DtrainError,
    ExecutionTimeoutError,
    HostError,
    HostLostError,
    HostRefusedError,
    NotFoundError,
    RankFailedError,
    RankHangsError,
    RunEndedError,
    TrainingRefusedError,
)
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.gang import GangEnd
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView, Proof

#: Most characters of a text about processes that a host names.
SHOWN_CHARS = 1000
#: Seconds between two warnings that a host does not confirm the end of its processes.
WARN_EVERY_S = 60.0
#: Codes of refusals that name a fault of the host. It gets no new gangs until a probe finds it repaired.
FAULTS = ("os_error", "internal", "disk_full", "read_only", "state_dir", "lock_dir")
#: Errors that the training library raises on purpose, and that another attempt would raise again; see train/errors.py.
_FINAL = (
    "SetupError|TrialClassError|HparamError|BatchSizeError|OptimizerError|MissingMetricError"
    "|StateError|InputError|SchemaError|WeightsError|UnusableFolderError|FolderInUseError|OtherRunError"
)
#: Last line of the traceback of such an error, on the rank itself or on one that waited for it.
_REFUSED = re.compile(
    rf"^airflow_provider_dtrain\.train\.errors\.(LeaderFailedError: [^:]{{0,100}}: )?({_FINAL}): ", re.MULTILINE
)


async def fence(rt: Runtime, view: AttemptView) -> list[str]:
    """End every process of the attempt on its hosts, and return the hosts that answered ``clear``.

    The slots of a host that does not answer stay taken in the store.

    :raises StaleWatchError: another process follows the trial; nothing was sent
    """
    await rt.prove_watch()
    hosts = list(view.held_hosts)
    if view.run is None or not hosts:
        return hosts
    clear_hosts = await slots_of(rt, view).clear_hosts()
    clear = [host for host in hosts if host in clear_hosts]
    hosts = [host for host in hosts if host not in clear_hosts]
    answers = await asyncio.gather(*(_fence(rt, view, host) for host in hosts), return_exceptions=True)
    for host, found in zip(hosts, answers, strict=True):
        if isinstance(found, Exception):
            # The slots of the other hosts are released, whatever went wrong with this one.
            message = str(found) if isinstance(found, HostError) else f"Host '{host}' could not be asked: {found!r}."
            if isinstance(found, HostRefusedError) and found.code in FAULTS:
                await rt.note_host(host, HostState.UNREACHABLE, message)
            await _warn_of_silence(rt, host, message)
        elif isinstance(found, BaseException):
            raise found
        elif found.get("clear"):
            clear.append(host)
            await _show_foreign(rt, view, host, found.get("foreign"))
        else:
            message = (await rt.redactor()).rank_text(survivors_text(found))
            rt.log.warning("Host '%s' could not end every process of %s. Still there: %s", host, view.label, message)
            await _show_stuck(rt, view, host, message)
    if clear:
        rt.log.info("No process of %s is left on %s", view.label, ", ".join(clear))
    return clear


async def _warn_of_silence(rt: Runtime, host: str, message: str) -> None:
    """Log at most once a minute that a host does not confirm the end of its processes. It is asked again meanwhile."""
    now = time.monotonic()
    if now - rt.silence_logged_at.get(host, -WARN_EVERY_S) < WARN_EVERY_S:
        return
    rt.silence_logged_at[host] = now
    try:
        is_node = (await rt.record(host)).is_node
    except NotFoundError:
        is_node = False
    until = "or its job has ended" if is_node else f"airflow dtrain hosts probe {host}"
    rt.log.warning("%s Its slots stay taken until it answers%s%s", message, " " if is_node else ": ", until)


async def _fence(rt: Runtime, view: AttemptView, host: str) -> JsonObject:
    return await rt.call(
        host,
        "fence",
        timeout_s=FENCE_WAIT_S + 20.0,
        **fence_arguments(view, host),
    )


async def fence_forgotten(rt: Runtime, view: AttemptView) -> None:
    """End a run that its store has lost, on all its hosts.

    A host that does not answer is left to recovery.

    :param view: the attempt as it was before the store lost it
    """
    answers = await asyncio.gather(*(_fence(rt, view, host) for host in view.placement), return_exceptions=True)
    for host, found in zip(view.placement, answers, strict=True):
        if isinstance(found, BaseException) and not isinstance(found, Exception):
            raise found
        message = "is gone" if isinstance(found, dict) and found.get("clear") else f"may be left: {found}"
        rt.log.warning("%s, which the store has lost, %s on host '%s'", view.label.capitalize(), message, host)


def launch_of(view: AttemptView, host: str) -> str | None:
    """Return the id that distinguishes launches of one run on a host, or None when it is not known."""
    plan = ((view.plan or {}).get("plans") or {}).get(host) or {}
    return plan.get("launch")


def fence_arguments(view: AttemptView, host: str) -> JsonObject:
    """Return the arguments of the command that fences an attempt on a host."""
    found = {"run": view.run, "token": view.token, "wait_s": FENCE_WAIT_S, "launch": launch_of(view, host)}
    launched = _launched(view, host)
    return found if launched is None else {**found, "launched": launched}


def _launched(view: AttemptView, host: str) -> JsonObject | None:
    """Return the facts about a launch that a host needs if it has lost the run's folder.

    None if no rank was started, because another process may hold a slot that the host has refused to this run.
    """
    record = view.plan or {}
    plan = (record.get("plans") or {}).get(host)
    if view.started_at is None or plan is None:
        return None
    slots = [{"slot": rank["slot"], "device": rank["device"]} for rank in plan["ranks"] if rank["slot"] >= 0]
    boot_id = (record.get("boots") or {}).get(host)
    found = {"boot_id": boot_id, "state_dir": (record.get("state_dirs") or {}).get(host), "slots": slots}
    container = plan.get("container")
    return {**found, "runtime": container["runtime"]} if container else found


async def _show_stuck(rt: Runtime, view: AttemptView, host: str, message: str) -> None:
    """Mark the slots of surviving processes as stuck. Recovery marks them as ready once the processes are gone."""
    for slot in view.placement.get(host, ()):
        with contextlib.suppress(NotFoundError):
            await rt.db(rt.store.hosts.mark_slot, host, slot, "stuck", message)


async def _show_foreign(rt: Runtime, view: AttemptView, host: str, foreign: object) -> None:
    """Mark the attempt's slots whose devices are in use by processes of other accounts, outside all runs.

    It precedes the release, because a released slot is granted again at once.
    """
    users = {user.get("slot"): user for user in reversed(_mappings(foreign)) if type(user.get("slot")) is int}
    for slot in view.placement.get(host, ()):
        if (user := users.get(slot)) is not None:
            message = f"process {user.get('pid')} ({user.get('name')}) of user {user.get('user')}"
            message = plain(message, SHOWN_CHARS)
            rt.log.warning("Slot %d of host '%s' is in use by %s", slot, host, message)
            with contextlib.suppress(NotFoundError):
                await rt.db(rt.store.hosts.mark_slot, host, slot, "busy_elsewhere", message)


def survivors_text(found: Mapping[str, Any]) -> str:
    """Return a text that names living processes, slots that are still locked, and other reasons for doubt."""
    parts = [f"process {one.get('pid')} ({one.get('command')})" for one in _mappings(found.get("survivors"))]
    parts += [f"lock of slot {one.get('slot')}" for one in _mappings(found.get("busy_slots"))] if not parts else []
    for texts in (found.get("unlisted"), found.get("doubts")):
        parts += [one for one in texts if isinstance(one, str)] if isinstance(texts, list) else []
    return plain(", ".join(parts[:20]) or "nothing that it can name", SHOWN_CHARS)


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


async def release(rt: Runtime, view: AttemptView) -> list[str]:
    """Release the attempt's slots where none of its processes can run, and return those hosts.

    Without a plan, no host was ever asked to prepare. With a plan, each host has to answer ``clear``.
    """
    proof: Proof = "clear" if view.plan is not None else "untaken"
    clear = await fence(rt, view) if proof == "clear" else list(view.held_hosts)
    if clear:
        await slots_of(rt, view).release(clear, proof=proof)
    return clear


def cause(end: GangEnd) -> DtrainError:
    """Return the error of a failed gang: its first failure by corrected time, not the failures that follow."""
    if end.over is not None:
        return end.over
    found = cause_of(end.exits)
    # A rank that the follower sent a signal has not failed, and one that only lost a peer failed because of the peer.
    if found is not None and not (found.is_signalled or (end.lost and found.is_consequence)):
        return _exit_error(found)
    for lost in end.lost.values():
        return lost
    for host, reason in end.ended.items():
        if reason != "completed":
            return _ended_error(host, reason)
    return _exit_error(found) if found is not None else RunEndedError("The run ended, and no host reported a reason.")


def _ended_error(host: str, reason: str) -> DtrainError:
    """Return the error of a run whose ranks have not failed."""
    match reason:
        case "timeout":
            return ExecutionTimeoutError(
                f"Host '{host}' ended the run: the task's execution_timeout has passed. The checkpoints are kept. "
                "Raise execution_timeout, or train for less."
            )
        case "stopped":
            return HostLostError(
                host, f"The run was stopped on host '{host}' from outside. The host may be going down."
            )
        case "orphaned":
            return RunEndedError(
                f"The run on host '{host}' ended itself: its lease had not been renewed for orphan_timeout. Check that "
                "a triggerer or worker runs, and that it reaches the host: airflow dtrain doctor"
            )
        case "prepare_timeout":
            return RunEndedError(f"The run on host '{host}' was prepared but never started.")
        case "fenced":
            return RunEndedError(f"The run on host '{host}' was ended by another follower of this trial.")
        case _:
            return HostLostError(host, f"The run ended on host '{host}' with reason '{reason}'.")


def _exit_error(found: Cause) -> DtrainError:
    leaving = found.leaving
    error = leaving.error or {}
    if found.kind == CauseKind.MISSING:
        message = f"Rank {leaving.rank} on host '{leaving.host}' {found.fact}. {found.kind.advice}"
        stack = f"\n{leaving.stack}" if leaving.stack else ""
        return RankHangsError(f"{message}{stack}", rank=leaving.rank, host=leaving.host, cause_kind=found.kind.value)
    if found.kind == CauseKind.MISMATCH:
        message = f"{found.fact}. {found.kind.advice}\n{leaving.text}".rstrip()
        return RankHangsError(message, rank=leaving.rank, host=leaving.host, cause_kind=found.kind.value)
    text = str(error.get("traceback") or error.get("message") or leaving.log_tail or "It wrote nothing.")
    refused = _REFUSED.search(text) is not None
    failed = (TrainingRefusedError if refused else RankFailedError)(
        rank=leaving.rank,
        host=leaving.host,
        exit_code=leaving.exit_code,
        traceback=text,
        message=found.fact,
        when=clock(leaving.corrected_at),
        advice="" if refused else found.advice,
        cause_kind=found.kind.value,
    )
    if classify(leaving) != "infra":
        return failed
    return HostError(leaving.host, str(failed), rank=leaving.rank, cause_kind=found.kind.value)
