"""Commands to a prepared or running supervisor."""

from __future__ import annotations

import os

from ..file_access import read_json, write_json
from ..files.layout import Layout, RunFolder, why_lost
from ..limits import DECISIONS_LIMIT
from ..machine.locks import wait_lock
from ..machine.processes import boottime
from ..names import Json
from ..refusal import Refused, fenced_refusal


def decide(folder: RunFolder, token: int, decisions: dict[str, str]) -> Json:
    """Write the searcher's decisions to the file that the run's ranks poll. Earlier decisions stand.

    :param decisions: number of a rung -> ``continue``, ``stop`` or ``complete``
    :raises Refused: ``stale_token``, the decisions are for another grant
    """
    known = (folder.plan() or {}).get("token")
    if token != known:
        raise Refused("stale_token", f"Run {folder.name} was granted under token {known}, not {token}.", recorded=known)
    lock = wait_lock(folder.file("decisions.lock"), 5.0)
    try:
        before = read_json(folder.file("decisions.json")) or {}
        after = {**decisions, **before}
        if len(after) > DECISIONS_LIMIT:
            raise Refused("bad_plan", f"decisions: must be at most {DECISIONS_LIMIT} for a run", field="decisions")
        if after != before:
            # Not durable: the ranks that poll it do not survive a crash of the host.
            folder.command("decisions.json", after)
    finally:
        os.close(lock)
    return {"decisions": after}


def go(layout: Layout, run: str, document: Json) -> Json | None:
    """Start a prepared run. Return an answer if there is nothing to wait for.

    :raises Refused: the run is not prepared here, or must no longer start
    """
    folder = layout.run(run)
    if folder.has("ended"):
        return ended_answer(folder)
    if folder.has_tombstone:
        raise fenced_refusal(run)
    if not folder.alive():
        if folder.has("started"):
            cause, message = why_lost(folder)
            raise Refused("lost", f"Run {run} was started here and did not end: {message}.", cause=cause)
        raise Refused("not_prepared", f"Run {run} is not prepared on this host. Prepare it first.")
    state = folder.state().get("state")
    if state in ("running", "stopping", "killing"):
        return {"state": "running"}
    if state != "prepared":
        raise Refused("not_prepared", f"Run {run} is not prepared on this host yet.")
    if not folder.has("go.json"):
        write_json(folder.file("go.json"), document, durable=False)
    folder.ring()
    return None


def ended_answer(folder: RunFolder) -> Json:
    """Return the answer for a run that has ended.

    :raises Refused: ``lost``, the run ended because its supervisor disappeared
    """
    ended = folder.ended() or {}
    if ended.get("reason") == "lost":
        message = f"Run {folder.name} was started here and did not end: its supervisor is gone."
        raise Refused("lost", message, cause=ended.get("cause"))
    return {"state": "ended", "reason": ended.get("reason")}


def go_outcome(folder: RunFolder) -> Json | None:
    """Return the answer to ``go`` once it is known, None before.

    :raises Refused: the supervisor is gone
    """
    if folder.has("ended"):
        return ended_answer(folder)
    if folder.state().get("state") in ("running", "stopping", "killing"):
        return {"state": "running"}
    if not folder.alive() and not folder.has("ended"):
        cause, message = why_lost(folder)
        raise Refused("lost", f"Run {folder.name} did not start: {message}.", cause=cause)
    return None


def run_state(folder: RunFolder) -> str:
    """Return a run's state for display: the supervisor's own, ``ended``, ``lost``, or ``gone`` before its start."""
    if folder.has("ended"):
        return "ended"
    if folder.alive():
        return str(folder.state().get("state", "preparing"))
    return "lost" if folder.has("started") else "gone"


def renew(layout: Layout, runs: list[str], reading: float, orphan_timeout_s: float) -> None:
    """Set the deadline of some runs to ``reading`` + ``orphan_timeout_s``, 0 = never.

    The reading is this host's own, from a heartbeat. A reading from the future is refused. A reading
    that is older than the last one changes nothing. A run that cannot be renewed does not keep others from it.

    :raises OSError: of the first run that could not be renewed
    """
    if reading > boottime():
        raise Refused("bad_plan", f"boottime_s: must not be in this host's future, got {reading:g}", field="boottime_s")
    failed: OSError | None = None
    for name in runs:
        folder = layout.run(name)
        known = folder.renewal()
        if not folder.exists or folder.has("ended") or known.get("renewed_boottime_s", -1.0) >= reading:
            continue
        deadline = reading + orphan_timeout_s if orphan_timeout_s else 0
        try:
            folder.renew(reading, deadline)
        except OSError as error:
            failed = failed or error
        # The new deadline may be nearer than the old one, which may have been "never".
        folder.ring()
    if failed is not None:
        raise failed
