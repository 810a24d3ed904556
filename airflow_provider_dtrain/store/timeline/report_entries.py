"""Entries about the reports of a trial: checkpoints, and decisions at rungs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind, one_line
from airflow_provider_dtrain.core.search.names import length_text
from airflow_provider_dtrain.store.timeline.history import History, OwnRungRow, SavedRow

#: Decision -> its words.
_ANSWERS = {
    "continue": "the searcher let it continue",
    "stop": "the searcher stopped it",
    "complete": "it completed the last rung",
}


def report_entries(history: History) -> Iterator[TimelineEntry]:
    """Yield the entries about the reports of a trial."""
    for row in history.rungs:
        yield _rung(history, row)
    yield from _checkpoints(history)


def _rung(history: History, row: OwnRungRow) -> TimelineEntry:
    metric = "no finite number" if row.metric is None else f"{row.metric:.6g}"
    name = one_line(history.trial.metric or "metric", 60)
    return TimelineEntry(
        at=row.at,
        kind=TimelineKind.RUNG,
        attempt=row.attempt,
        text=f"Rung {row.rung} ({length_text(row.units, history.trial.searcher)}): {name} {metric}{_standing(row)}; "
        f"{_ANSWERS.get(row.decision, row.decision)}.",
        detail={
            "rung": row.rung,
            "units": row.units,
            "metric": row.metric,
            "decision": row.decision,
            "place": row.place,
            "entries": row.entries,
            "cutoff": row.cutoff,
        },
    )


def _standing(row: OwnRungRow) -> str:
    if row.place is None or row.entries is None:
        return ""
    needed = "" if row.cutoff is None else f", cut-off {row.cutoff:.6g}"
    return f", place {row.place:,} of {row.entries:,}{needed}"


def _checkpoints(history: History) -> Iterator[TimelineEntry]:
    shown = [*history.first_saved, *history.latest_saved]
    times = _rising(history, shown)
    for row, at in zip(shown, times, strict=True):
        yield TimelineEntry(
            at=at,
            kind=TimelineKind.CHECKPOINT,
            attempt=history.number_of(row.attempt_id),
            host=row.host,
            text=f"Saved a checkpoint at step {row.step:,} on {row.host}.",
            detail={"step": row.step, "checkpoint": row.id},
        )
    if (hidden := history.saved_count - len(shown)) > 0:
        between = len(history.first_saved)
        yield TimelineEntry(
            at=times[between - 1],
            until=times[between],
            kind=TimelineKind.OMITTED,
            text=f"{hidden:,} further checkpoints of this time are not shown.",
            detail={"checkpoints": hidden},
        )


def _rising(history: History, rows: Sequence[SavedRow]) -> list[datetime]:
    """Return the times of rows that were stored one after the other, although clocks of hosts may run backwards."""
    times: list[datetime] = []
    for row in rows:
        at = history.in_attempt(row.at, row.attempt_id)
        times.append(max(at, times[-1]) if times else at)
    return times
