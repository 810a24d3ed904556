"""Entries about the slots of a trial: waits, grants and preemptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind, duration
from airflow_provider_dtrain.store.timeline.history import History, LaunchRow, OwnRequestRow, OwnSlotRow


def queue_entries(history: History) -> Iterator[TimelineEntry]:
    """Yield the entries about the slots of a trial."""
    since = history.trial.created_at
    for request in history.requests:
        user = history.first_user(request.id)
        since = max(since, user.created_at) if user is not None else since
        number = user.number if user is not None else history.attempt_at(since)
        yield from _request_entries(history, request, since, number)
        since = max(filter(None, (since, request.granted_at, request.ended_at)))
    for attempt in history.attempts:
        if attempt.gang_task is not None:
            yield from _turn(history, attempt)


def _request_entries(
    history: History, request: OwnRequestRow, since: datetime, number: int | None
) -> Iterator[TimelineEntry]:
    until = request.granted_at or request.ended_at
    end = until or history.now
    if request.reason or end > since:
        yield _waited(request.reason, since, until, number, history.now)
    if request.granted_at is not None:
        yield _granted(history, request, number)
    if request.preempted_at is not None:
        yield _asked(history, request)


def _waited(reason: str, since: datetime, until: datetime | None, number: int | None, now: datetime) -> TimelineEntry:
    took = duration(((until or now) - since).total_seconds())
    words = f": {reason}" if reason else " for slots."
    return TimelineEntry(
        at=since,
        until=until,
        kind=TimelineKind.WAITED,
        attempt=number,
        text=f"Waited {took}{words}" if until is not None else f"Has waited {took}{words}",
        detail={"reason": reason or None},
    )


def _granted(history: History, request: OwnRequestRow, number: int | None) -> TimelineEntry:
    assert request.granted_at is not None
    places = _placement([row for row in history.slots if (row.allocation_id, row.token) == (request.id, request.token)])
    where = ", ".join(f"{host} ({slots})" if slots else host for host, slots in places.items())
    count = f"{request.slots} slot" if request.slots == 1 else f"{request.slots} slots"
    return TimelineEntry(
        at=request.granted_at,
        until=request.ended_at,
        kind=TimelineKind.GRANTED,
        attempt=number,
        host=next(iter(places)) if len(places) == 1 else None,
        text=f"Granted {count} of pool '{request.pool}': {where}.",
        detail={"slots": request.slots, "hosts": where, "pool": request.pool, "priority": request.priority},
    )


def _placement(rows: Sequence[OwnSlotRow]) -> dict[str, str]:
    """Return host -> its slots as a list of ranges."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row.host] += [row.slot] if row.slot >= 0 else []
    return {host: _ranges(sorted(indices)) for host, indices in found.items()}


def _ranges(indices: Sequence[int]) -> str:
    """Return numbers such as ``0-3, 6``."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _asked(history: History, request: OwnRequestRow) -> TimelineEntry:
    assert request.preempted_at is not None
    whom = f"trial {request.claimant_trial}" if request.claimant_trial is not None else "a more urgent gang"
    return TimelineEntry(
        at=request.preempted_at,
        kind=TimelineKind.GIVE_WAY,
        attempt=history.attempt_at(request.preempted_at),
        text=f"The queue asked it to release its slots for {whom}.",
        detail={"for_trial": request.claimant_trial},
    )


def _turn(history: History, attempt: LaunchRow) -> Iterator[TimelineEntry]:
    """Yield the wait for a held gang. The store does not know when the turn of the attempt came."""
    until = attempt.started_at or attempt.ended_at
    whose = f"the gang of {attempt.gang_dag}.{attempt.gang_task}"
    took = duration(((until or history.now) - attempt.created_at).total_seconds())
    reason = f": {attempt.reason}" if attempt.reason and until is None else "."
    yield TimelineEntry(
        at=attempt.created_at,
        until=until,
        kind=TimelineKind.WAITED,
        attempt=attempt.number,
        text=f"{'Waited' if until else 'Has waited'} {took} for its turn on {whose}{reason}",
        detail={"reason": attempt.reason or None, "gang": whose},
    )
