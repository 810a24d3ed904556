"""Entries about the trial as a whole: its submission, the requests of users, its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.external_jobs import is_scheduler
from airflow_provider_dtrain.core.lifecycle.timeline import Detail, TimelineEntry, TimelineKind, duration, one_line
from airflow_provider_dtrain.store.timeline.history import History, NoteRow

#: State of a trial -> the sentence about its end, without the period.
_END_TEXT = {
    "completed": "The trial completed",
    "stopped": "The trial was stopped with its result so far",
    "errored": "The trial failed",
    "killed": "The trial was killed",
}


def trial_entries(history: History) -> Iterator[TimelineEntry]:
    """Yield the entries about the trial as a whole."""
    yield _submitted(history)
    yield from _requests(history)
    yield from _pauses(history)
    trial = history.trial
    if trial.cleared_at is not None:
        yield TimelineEntry(
            at=trial.cleared_at,
            kind=TimelineKind.CLEARED,
            text="A newer trial replaced this one, because a user cleared its task in Airflow.",
        )
    if trial.ended_at is not None:
        yield _ended(history)


def _submitted(history: History) -> TimelineEntry:
    trial = history.trial
    index = f"[{trial.map_index}]" if trial.map_index >= 0 else ""
    task = f"{trial.dag_id}.{trial.task_id}{index}"
    first = history.requests[0] if history.requests else None
    wants = "" if first is None else f": {_slots(first.slots)} of pool '{first.pool}' at priority {first.priority}"
    return TimelineEntry(
        at=trial.created_at,
        kind=TimelineKind.SUBMITTED,
        text=f"Submitted by {task}, run {trial.run_id}{wants}.",
        detail={
            "task": task,
            "run": trial.run_id,
            "slots": None if first is None else first.slots,
            "pool": None if first is None else first.pool,
        },
    )


def _slots(count: int) -> str:
    return f"{count} slot" if count == 1 else f"{count} slots"


def _requests(history: History) -> Iterator[TimelineEntry]:
    trial = history.trial
    if trial.stop_requested_at is not None:
        yield TimelineEntry(
            at=trial.stop_requested_at,
            kind=TimelineKind.STOP_REQUESTED,
            attempt=history.attempt_at(trial.stop_requested_at),
            text=f"{_user(trial.stop_requested_by)} requested that the trial ends with its best result so far.",
            detail={"by": trial.stop_requested_by},
        )
    if trial.kill_requested_at is not None:
        yield TimelineEntry(
            at=trial.kill_requested_at,
            kind=TimelineKind.KILL_REQUESTED,
            attempt=history.attempt_at(trial.kill_requested_at),
            text=_kill_text(trial.kill_requested_by),
            detail={"by": trial.kill_requested_by},
        )


def _pauses(history: History) -> Iterator[TimelineEntry]:
    """Yield the pauses with their ends, and the changes of the priority."""
    resumed = history.notes_of(TimelineKind.ACTIVATED)
    for note in history.notes_of(TimelineKind.PAUSED):
        until = next((row.at for row in resumed if row.at >= note.at), history.trial.ended_at)
        yield _of_user(history, note, TimelineKind.PAUSED, "paused the trial", until=until)
    for note in resumed:
        yield _of_user(history, note, TimelineKind.ACTIVATED, "resumed the trial")
    for note in history.notes_of(TimelineKind.PRIORITY_SET):
        message = f"set the priority of its gang to {note.value}"
        yield _of_user(history, note, TimelineKind.PRIORITY_SET, message, priority=note.value)


def _of_user(
    history: History,
    note: NoteRow,
    kind: TimelineKind,
    message: str,
    *,
    until: datetime | None = None,
    **detail: Detail,
) -> TimelineEntry:
    return TimelineEntry(
        at=note.at,
        until=until,
        kind=kind,
        attempt=history.attempt_at(note.at),
        text=f"{_user(note.by)} {message}.",
        detail={"by": note.by, **detail},
    )


def _kill_text(by: str | None) -> str:
    if is_scheduler(by):
        return f"The trial is killed, because its job was ended. Request of {by}."
    return f"{_user(by)} requested that the trial is killed."


def _user(by: str | None) -> str:
    return f"User {by}" if by else "An unknown user"


def _ended(history: History) -> TimelineEntry:
    trial = history.trial
    assert trial.ended_at is not None
    took_s = (trial.ended_at - trial.created_at).total_seconds()
    text = f"{_END_TEXT.get(trial.state, f'The trial is {trial.state}')} after {duration(took_s)}"
    if trial.state == "stopped":
        text += f" by {trial.stop_requested_by}" if trial.stop_requested_by else " by the searcher"
    failure: JsonObject = trial.failure or {}
    message = one_line(failure.get("message") or "")
    return TimelineEntry(
        at=trial.ended_at,
        kind=TimelineKind.ENDED,
        attempt=history.attempts[-1].number if history.attempts else None,
        host=failure.get("host"),
        text=f"{text}: {message}" if message else f"{text}.",
        detail={
            "state": trial.state,
            "metric": trial.best_metric,
            "error": failure.get("error"),
            "failure_kind": failure.get("kind"),
        },
    )
