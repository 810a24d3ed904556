"""Spans of a trial's life for tracing, made of the entries of its timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from airflow_provider_dtrain.core.lifecycle.timeline import Detail, TimelineEntry, TimelineKind

#: Entries that are moments, with the names of their spans.
_MOMENTS: Final[Mapping[TimelineKind, str]] = {
    TimelineKind.CHECKPOINT: "checkpoint",
    TimelineKind.RUNG: "rung",
    TimelineKind.RANK_FAILED: "rank failed",
}
#: Entries whose spans belong to the trial, because an attempt may not have begun.
_OF_TRIAL: Final[Mapping[TimelineKind, str]] = {TimelineKind.WAITED: "waiting", TimelineKind.PAUSED: "paused"}


@dataclass(frozen=True, kw_only=True)
class TrialSpan:
    """One span, with the spans inside it."""

    name: str
    start: datetime
    end: datetime
    #: Values that are not None, by name without the prefix ``dtrain.``.
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    #: Cause of a failure; None: it did not fail.
    error: str | None = None
    children: tuple[TrialSpan, ...] = ()


def trial_span(entries: Sequence[TimelineEntry], attributes: Mapping[str, Detail], now: datetime) -> TrialSpan:
    """Return the span of a trial with the spans of its waits, attempts and reports.

    :param entries: timeline of the trial, in order
    :param attributes: facts about the trial
    :param now: end of spans whose end is not known
    """
    start = min((entry.at for entry in entries), default=now)
    ended = next((entry for entry in entries if entry.kind is TimelineKind.ENDED), None)
    end = max(start, now if ended is None else ended.at)
    has_failed = ended is not None and ended.detail.get("state") in {"errored", "killed"}
    inside = [*_of_trial(entries, end), *_attempts(entries, end)]
    return TrialSpan(
        name="dtrain.trial",
        start=start,
        end=max([end, *(span.end for span in inside)]),
        attributes=_known({**attributes, "state": None if ended is None else ended.detail.get("state")}),
        error=ended.text if ended is not None and has_failed else None,
        children=tuple(sorted(inside, key=lambda span: span.start)),
    )


def _of_trial(entries: Sequence[TimelineEntry], end: datetime) -> Iterator[TrialSpan]:
    for entry in entries:
        if entry.kind in _OF_TRIAL:
            yield _span(_OF_TRIAL[entry.kind], entry.at, entry.until or end, entry)


def _attempts(entries: Sequence[TimelineEntry], end: datetime) -> Iterator[TrialSpan]:
    numbers = sorted({entry.attempt for entry in entries if entry.attempt is not None})
    former: TrialSpan | None = None
    for number in numbers:
        own = [entry for entry in entries if entry.attempt == number]
        span = _attempt(number, own, end)
        if span is None:
            continue
        if any(entry.kind is TimelineKind.RESTARTED for entry in own) and former is not None:
            restarted = next(entry for entry in own if entry.kind is TimelineKind.RESTARTED)
            yield _span("restart", former.end, span.start, restarted)
        former = span
        yield span


def _attempt(number: int, own: Sequence[TimelineEntry], trial_end: datetime) -> TrialSpan | None:
    """Return the span of an attempt from its grant to its end, or None without slots."""
    first = {entry.kind: entry for entry in reversed(own)}
    granted, launched = first.get(TimelineKind.GRANTED), first.get(TimelineKind.LAUNCHED)
    begin = granted or first.get(TimelineKind.RESTARTED) if launched is not None else granted
    begin = begin or launched
    if begin is None:
        return None
    end = _end(own, launched or begin, trial_end)
    failed = first.get(TimelineKind.RANK_FAILED)
    facts: Mapping[str, Detail] = granted.detail if granted is not None else {}
    hosts, slots = facts.get("hosts"), facts.get("slots")
    return TrialSpan(
        name=f"attempt {number}",
        start=begin.at,
        end=max(begin.at, end),
        attributes=_known({"attempt": number, "hosts": hosts, "slots": slots}),
        error=failed.text if failed is not None else None,
        children=(*_phases(first, begin, launched, end), *_reports(own, end)),
    )


#: Kinds of entries at which an attempt has lost its slots.
_MOVED = frozenset({TimelineKind.PREEMPTED, TimelineKind.RELEASED, TimelineKind.RETURNED})


def _end(own: Sequence[TimelineEntry], last: TimelineEntry, trial_end: datetime) -> datetime:
    """Return the end of an attempt: of its run, or of its grant when no rank was started."""
    moved = [entry.at for entry in own if entry.kind in _MOVED]
    return last.until or max(moved, default=trial_end)


def _phases(
    first: Mapping[TimelineKind, TimelineEntry], begin: TimelineEntry, launched: TimelineEntry | None, end: datetime
) -> Iterator[TrialSpan]:
    if launched is not None:
        yield _span("launch", begin.at, launched.at, launched)
        step = first.get(TimelineKind.FIRST_STEP)
        if step is not None:
            yield _span("first step", launched.at, step.at, step)
        yield _span("training", (step or launched).at, end, launched)
    if (asked := first.get(TimelineKind.GIVE_WAY)) is not None:
        released = first.get(TimelineKind.PREEMPTED)
        yield _span("preemption", asked.at, end if released is None else released.at, asked)


def _reports(own: Sequence[TimelineEntry], end: datetime) -> Iterator[TrialSpan]:
    for entry in own:
        if entry.kind in _MOMENTS:
            yield _span(_MOMENTS[entry.kind], entry.at, min(entry.at, end), entry)


def _span(name: str, start: datetime, end: datetime, entry: TimelineEntry) -> TrialSpan:
    attributes = {"attempt": entry.attempt, "host": entry.host, "text": entry.text, **entry.detail}
    return TrialSpan(name=name, start=start, end=max(start, end), attributes=_known(attributes))


def _known(attributes: Mapping[str, Detail]) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in attributes.items() if value is not None}
