"""Columns and timeline entries that a scheduling pass writes for the requests that keep waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from airflow_provider_dtrain.core.scheduling.decision import PassDecision
from airflow_provider_dtrain.core.scheduling.estimated_start import without_position
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.queue.accounting import waited_s
from airflow_provider_dtrain.store.queue.pass_snapshot import EntryRow, Situation

#: Shortest time in seconds for which a reason gets an entry of its own, and entries after which that time is doubled.
KEPT_FROM_S, DOUBLED_AFTER = 10.0, 8
#: A smaller change of the expected start is not written.
EXPECTED_WITHIN_S = 30.0
SILENT_REASON = "its task has not renewed the request for 60 s: skipped until it does, keeps its place in the queue"

#: Columns that a pass writes for a request that keeps waiting.
NOTES = (
    "reason", "unplaceable", "never_fits", "position", "claim", "reserved_hosts", "expected", "expected_at",
    "waited_s", "eligible_since",
)  # fmt: skip


class EndedReasons(NamedTuple):
    """Requests whose reason ends."""

    #: Because they are granted.
    granted: Sequence[EntryRow]
    #: Because another reason replaces it.
    replaced: Sequence[EntryRow]


def notes(found: Situation, decision: PassDecision, granted: Sequence[int]) -> list[Values]:
    """Return the columns of every waiting request whose row must change, with its id as ``of``."""
    kept: dict[str, list[str]] = {}
    for host, request_id in decision.reserved.items():
        kept.setdefault(request_id, []).append(host)
    considered = {entry.id for entry in found.followed}
    changed: list[Values] = []
    for entry in found.waiting:
        if entry.id in granted:
            continue
        new = _note(entry, found, decision, kept) if entry.id in considered else _passed_over(entry, found)
        if any(getattr(entry, name) != new[name] for name in NOTES):
            changed.append({"of": entry.id, **{f"new_{name}": value for name, value in new.items()}})
    return changed


def _note(entry: EntryRow, found: Situation, decision: PassDecision, kept: Mapping[str, list[str]]) -> Values:
    key = str(entry.id)
    never = decision.unplaceable.get(key)
    claim = decision.claims.get(key)
    expected = decision.expected.get(key)
    return {
        "reason": never.reason if never else decision.ineligible.get(key) or decision.reasons.get(key, entry.reason),
        "unplaceable": never is not None and entry.on_unplaceable == "fail",
        "never_fits": never is not None,
        "position": decision.positions.get(key),
        "claim": claim and {host: list(indices) for host, indices in sorted(claim.slots.items())},
        "reserved_hosts": sorted(kept[key]) if key in kept else None,
        "expected": expected.text if expected else "",
        "expected_at": _expected_at(entry, expected.within_s if expected else None, found.now),
        **_waiting_time(entry, found.now, counts=never is None and key not in decision.ineligible),
    }


def _passed_over(entry: EntryRow, found: Situation) -> Values:
    return {
        "reason": entry.reason if entry.paused else SILENT_REASON,
        "unplaceable": entry.unplaceable,
        "never_fits": entry.never_fits,
        "position": None,
        "claim": None,
        "reserved_hosts": None,
        "expected": "",
        "expected_at": None,
        **_waiting_time(entry, found.now, counts=False),
    }


def ended_reasons(found: Situation, rows: Sequence[Mapping[str, Any]], granted: Sequence[int]) -> EndedReasons:
    """Return the requests whose reasons end with a pass, and get entries in the timelines of their trials.

    A reason that lasted too short for an entry is merged into the next one. The shortest time doubles with every eighth
    entry, so that the entries of a wait grow with the logarithm of its length.

    :param rows: of :func:`notes`
    """
    now_s = found.now.timestamp()
    new = {row["of"]: row["new_reason"] for row in rows}
    waiting = [entry for entry in found.waiting if entry.reason and entry.trial_id is not None]
    return EndedReasons(
        granted=[entry for entry in waiting if entry.id in granted],
        replaced=[entry for entry in waiting if entry.id in new and _is_kept(entry, new[entry.id], now_s)],
    )


def shortest_s(entries: int, first_s: float = KEPT_FROM_S) -> float:
    """Return the seconds that a reason must have lasted for an entry of its own.

    :param entries: that the wait has
    :param first_s: seconds for the first one
    """
    return float(first_s * 2 ** (entries / DOUBLED_AFTER))


def _is_kept(entry: EntryRow, reason: str, now_s: float) -> bool:
    """Return whether the reason of a request has lasted long enough for an entry when another one replaces it."""
    since_s = entry.reason_since_s
    if since_s is None and entry.eligible_since is not None:
        since_s = entry.eligible_since.timestamp()
    if since_s is not None and now_s - since_s < shortest_s(entry.reason_entries):
        return False
    return without_position(reason) != without_position(entry.reason)


def _expected_at(entry: EntryRow, within_s: float | None, now: datetime) -> datetime | None:
    if within_s is None:
        return None
    new = now + timedelta(seconds=within_s)
    old: datetime | None = entry.expected_at
    return old if old is not None and abs((new - old).total_seconds()) < EXPECTED_WITHIN_S else new


def _waiting_time(entry: EntryRow, now: datetime, *, counts: bool) -> Values:
    """Return the counter columns.

    They change only with ``counts``, so that the passage of time alone writes nothing.
    """
    if counts == (entry.eligible_since is not None):
        return {"waited_s": entry.waited_s, "eligible_since": entry.eligible_since}
    return {"waited_s": waited_s(entry, now), "eligible_since": now if counts else None}
