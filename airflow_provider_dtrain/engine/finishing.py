"""The end of a gang: every process confirmed gone on every host, then the slots are free."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle import classify, first_failure, is_aftermath
from airflow_provider_dtrain.errors import (
    DtrainError,
    ExecutionTimeoutError,
    HostError,
    HostLostError,
    NotFoundError,
    RankFailedError,
    RunEndedError,
    TrainingRefusedError,
)
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.lifecycle import RankExit
    from airflow_provider_dtrain.engine.following import GangEnd
    from airflow_provider_dtrain.engine.runtime import Runtime
    from airflow_provider_dtrain.store.records import AttemptView, Proof

FENCE_WAIT_S = 10.0
#: Most that is shown of processes that a host names.
SHOWN_CHARS = 1000
#: Last line of a traceback that the training library ended on purpose; see train/errors.py.
_REFUSED = re.compile(
    r"^airflow_provider_dtrain\.train\.errors\."
    r"(SetupError|TrialClassError|HparamError|BatchSizeError|OptimizerError|MissingMetricError): ",
    re.MULTILINE,
)


async def fence(rt: Runtime, view: AttemptView) -> list[str]:
    """End everything of the attempt on its hosts; return the hosts that answered ``clear``.

    A host that does not answer keeps its slots in the store: nobody else gets them.

    :raises StaleWatchError: another process follows the trial; nothing was sent
    """
    await rt.prove_watch()
    hosts = list(view.held_hosts)
    if view.run is None or not hosts:
        return hosts
    answers = await asyncio.gather(*(_fence(rt, view, host) for host in hosts), return_exceptions=True)
    clear = []
    for host, found in zip(hosts, answers, strict=True):
        if isinstance(found, HostError):
            rt.log.warning("%s Its slots stay taken until it answers: airflow dtrain hosts probe %s", found, host)
        elif isinstance(found, BaseException):
            raise found
        elif found.get("clear"):
            clear.append(host)
            await _show_foreign(rt, host, found.get("foreign"))
        else:
            words = survivors_words(found)
            rt.log.warning("Host '%s' could not end everything of %s. Left: %s", host, view.run, words)
            await _show_stuck(rt, view, host, words)
    if clear:
        rt.log.info("Nothing of %s runs any more on %s", view.run, ", ".join(clear))
    return clear


async def _fence(rt: Runtime, view: AttemptView, host: str) -> dict[str, Any]:
    return await rt.call(
        host, "fence", timeout_s=FENCE_WAIT_S + 20.0, run=view.run, token=view.token, wait_s=FENCE_WAIT_S,
        launch=launch_of(view, host),
    )  # fmt: skip


async def fence_forgotten(rt: Runtime, view: AttemptView) -> None:
    """End a run that its store has lost, on all its hosts; a host that does not answer is left to recovery.

    :param view: the attempt as it was before the store lost it
    """
    answers = await asyncio.gather(*(_fence(rt, view, host) for host in view.placement), return_exceptions=True)
    for host, found in zip(view.placement, answers, strict=True):
        if isinstance(found, BaseException) and not isinstance(found, HostError):
            raise found
        words = "is gone" if isinstance(found, dict) and found.get("clear") else f"may be left: {found}"
        rt.log.warning("Run %s, which the store does not know, %s on host '%s'", view.run, words, host)


def launch_of(view: AttemptView, host: str) -> str | None:
    """Return what tells this launch on a host from another one of the same name; None when it is not known."""
    plan = ((view.plan or {}).get("plans") or {}).get(host) or {}
    return plan.get("launch")


async def _show_stuck(rt: Runtime, view: AttemptView, host: str, words: str) -> None:
    """Show the slots of processes that are not gone; recovery shows them as ready again once they are."""
    for slot in view.placement.get(host, ()):
        with contextlib.suppress(NotFoundError):
            await rt.db(rt.store.mark_slot, host, slot, "stuck", words)


async def _show_foreign(rt: Runtime, host: str, foreign: object) -> None:
    """Show the slots on whose devices processes outside all runs are left, which belong to other accounts."""
    for user in _mappings(foreign):
        slot, words = user.get("slot"), f"process {user.get('pid')} ({user.get('name')}) of user {user.get('user')}"
        if isinstance(slot, int):
            rt.log.warning("Slot %d of host '%s' is in use by %s", slot, host, words)
            with contextlib.suppress(NotFoundError):
                await rt.db(rt.store.mark_slot, host, slot, "busy_elsewhere", plain(words, SHOWN_CHARS))


def survivors_words(found: Mapping[str, Any]) -> str:
    """Return in words which processes a fence has found alive, and which slots they keep."""
    words = [f"process {one.get('pid')} ({one.get('command')})" for one in _mappings(found.get("survivors"))]
    words += [f"lock of slot {one.get('slot')}" for one in _mappings(found.get("busy_slots"))] if not words else []
    return plain(", ".join(words[:20]) or "nothing that it can name", SHOWN_CHARS)


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


async def release(rt: Runtime, view: AttemptView) -> list[str]:
    """Free the attempt's slots where nothing of it can run; return those hosts.

    Without a plan no host was ever told to prepare; else each host has to answer ``clear``.
    """
    proof: Proof = "clear" if view.plan is not None else "untaken"
    clear = await fence(rt, view) if proof == "clear" else list(view.held_hosts)
    if clear:
        await rt.db(rt.store.release, rt.attempt_id, rt.watch, clear, proof=proof)
    return clear


def cause(end: GangEnd) -> DtrainError:
    """Return why the gang failed: the first failure by corrected time, not the noise that follows it."""
    if end.over is not None:
        return end.over
    found = first_failure(end.exits)
    # A rank that we sent a signal has not failed, and one that only lost a peer had a reason to.
    if found is not None and not found.sent_signal and not (end.lost and is_aftermath(found)):
        return _exit_error(found)
    for lost in end.lost.values():
        return lost
    for host, reason in end.ended.items():
        if reason != "completed":
            return _ended_error(host, reason)
    return _exit_error(found) if found is not None else RunEndedError("The run ended, and no host says why.")


def _ended_error(host: str, reason: str) -> DtrainError:
    """Return the error of a run whose ranks have not failed."""
    match reason:
        case "timeout":
            return ExecutionTimeoutError(f"Host '{host}' ended the run: the task's execution_timeout has passed.")
        case "stopped":
            return HostLostError(host, f"The run was stopped on host '{host}', not by us: the host may be going down.")
        case "orphaned":
            return RunEndedError(
                f"The run on host '{host}' ended itself: nobody had renewed its lease for orphan_timeout."
            )
        case "prepare_timeout":
            return RunEndedError(f"The run on host '{host}' was prepared and never got its go.")
        case "fenced":
            return RunEndedError(f"The run on host '{host}' was ended by another follower of this trial.")
        case _:
            return HostLostError(host, f"The run ended on host '{host}' with reason '{reason}'.")


def _exit_error(found: RankExit) -> DtrainError:
    error = found.error or {}
    text = str(error.get("traceback") or error.get("message") or found.log_tail or "It wrote nothing.")
    refused = _REFUSED.search(text) is not None
    failed = (TrainingRefusedError if refused else RankFailedError)(
        rank=found.rank, host=found.host, exit_code=found.exit_code, traceback=text,
        message=str(error.get("message") or ""),
    )  # fmt: skip
    return HostError(found.host, str(failed)) if classify(found) == "infra" else failed
