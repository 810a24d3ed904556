"""Entries about the slots of a trial: waits, grants and preemptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind, duration
from airflow_provider_dtrain.store.timeline.history import History, LaunchRow, NoteRow, OwnRequestRow

#: A shorter wait without a reason is the time between the request and the next scheduling pass.
SHOWN_FROM = timedelta(seconds=1)


def queue_entries(history: History) -> Iterator[TimelineEntry]:
    """Yield the entries about the slots of a trial."""
    for request in history.requests:
        yield from _request_entries(history, request)
    for note in history.notes_of(TimelineKind.GRANTED):
        if note.attempt_id is None:
            yield _revoked(history, note)
    for note in history.notes_of(TimelineKind.RETURNED):
        yield _returned(history, note)
    for attempt in history.attempts:
        if attempt.gang_task is not None:
            yield from _turn(history, attempt)


def _request_entries(history: History, request: OwnRequestRow) -> Iterator[TimelineEntry]:
    """Yield the waits of one request, its grant, and the request to release it."""
    since = request.requested_at
    number = history.attempt_at(since)
    until = request.granted_at or request.ended_at
    end = until or history.now
    ended = [row for row in history.notes_of(TimelineKind.WAITED) if since <= row.at < end]
    for row in ended:
        yield _waited(row.words, row.at, row.until, history.attempt_at(row.at), history.now)
    if request.granted_at is None and not request.paused and request.reason:
        begin = since if request.reason_since_s is None else datetime.fromtimestamp(request.reason_since_s, UTC)
        yield _waited(request.reason, begin, until, number, history.now)
    elif not ended and end - since >= SHOWN_FROM and not _is_paused(history, since, end):
        yield _waited("", since, until, number, history.now)
    if request.granted_at is not None:
        yield _granted(history, request, request.granted_at, request.ended_at, request.token)
    if request.preempted_at is not None:
        yield _asked(history, request)


def _is_paused(history: History, since: datetime, until: datetime) -> bool:
    """Return whether the trial was paused in a span, also from before it on."""
    of = (TimelineKind.PAUSED, TimelineKind.ACTIVATED)
    before = [row for row in history.notes_of(*of) if row.at <= until]
    return any(row.at >= since for row in before) or bool(before and before[-1].kind == TimelineKind.PAUSED)


def _waited(reason: str, since: datetime, until: datetime | None, number: int | None, now: datetime) -> TimelineEntry:
    took = duration(((until or now) - since).total_seconds())
    message = f": {reason}" if reason else " for slots."
    return TimelineEntry(
        at=since,
        until=until,
        kind=TimelineKind.WAITED,
        attempt=number,
        text=f"{'Waited' if until is not None else 'Has waited'} {took}{message}",
        detail={"reason": reason or None},
    )


def _granted(
    history: History, request: OwnRequestRow, at: datetime, until: datetime | None, token: int | None
) -> TimelineEntry:
    places = _placement(history, token)
    where = ", ".join(f"{host} ({slots})" if slots else host for host, slots in places.items())
    count = f"{request.slots} slot" if request.slots == 1 else f"{request.slots} slots"
    return TimelineEntry(
        at=at,
        until=until,
        kind=TimelineKind.GRANTED,
        attempt=history.attempt_at(at),
        host=next(iter(places)) if len(places) == 1 else None,
        text=f"Granted {count} of pool '{request.pool}': {where}.",
        detail={"slots": request.slots, "hosts": where, "pool": request.pool, "priority": request.priority},
    )


def _revoked(history: History, note: NoteRow) -> TimelineEntry:
    """Return a grant under which no rank was started."""
    of = next((row.allocation_id for row in history.slots if row.token == note.value), None)
    request = next((row for row in history.requests if row.id == of), history.requests[-1])
    return _granted(history, request, note.at, note.until, note.value)


def _placement(history: History, token: int | None) -> dict[str, str]:
    """Return host -> its slots in a grant, as a list of ranges."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in history.slots:
        if row.token == token:
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


def _returned(history: History, note: NoteRow) -> TimelineEntry:
    times = f" ({note.merged + 1:,} times)" if note.merged else ""
    return TimelineEntry(
        at=note.at,
        until=note.until,
        kind=TimelineKind.RETURNED,
        attempt=history.number_of(note.attempt_id) or history.attempt_at(note.at),
        text=f"Gave its grant back and waits again{times}: {note.words}",
        detail={"reason": note.words, "times": note.merged + 1},
    )


def _asked(history: History, request: OwnRequestRow) -> TimelineEntry:
    assert request.preempted_at is not None
    claimant = f"trial {request.claimant_trial}" if request.claimant_trial is not None else "a more urgent gang"
    return TimelineEntry(
        at=request.preempted_at,
        kind=TimelineKind.GIVE_WAY,
        attempt=history.attempt_at(request.preempted_at),
        text=f"The queue asked it to release its slots for {claimant}.",
        detail={"for_trial": request.claimant_trial},
    )


def _turn(history: History, attempt: LaunchRow) -> Iterator[TimelineEntry]:
    """Yield the wait of an attempt for its turn on a held gang, and the turn."""
    turn = next((row for row in history.notes_of(TimelineKind.GRANTED) if row.attempt_id == attempt.id), None)
    until = turn.at if turn is not None else attempt.started_at or attempt.ended_at
    holder = f"the gang of {attempt.gang_dag}.{attempt.gang_task}"
    waited = (until or history.now) - attempt.created_at
    reason = f": {attempt.reason}" if attempt.reason and until is None else "."
    if until is None or waited >= SHOWN_FROM:
        yield TimelineEntry(
            at=attempt.created_at,
            until=until,
            kind=TimelineKind.WAITED,
            attempt=attempt.number,
            text=f"{'Waited' if until else 'Has waited'} {duration(waited.total_seconds())} for its turn on "
            f"{holder}{reason}",
            detail={"reason": attempt.reason or None, "gang": holder},
        )
    if turn is not None:
        yield TimelineEntry(
            at=turn.at,
            until=attempt.ended_at,
            kind=TimelineKind.GRANTED,
            attempt=attempt.number,
            text=f"Got its turn on {holder}.",
            detail={"gang": holder},
        )
