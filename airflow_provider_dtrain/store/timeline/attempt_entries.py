"""Entries about the attempts of a trial: launches, failures, restarts and preemptions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from airflow_provider_dtrain.core.external_jobs import EndKind, end_of
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind, duration, one_line
from airflow_provider_dtrain.store.timeline.history import FailedRankRow, History, LaunchRow, NoteRow, SavedRow, Start

#: Value of a note -> start of its sentence.
_BUILDS = {
    None: "The environment is built",
    0: "The environment could not be built",
    1: "The environment was built",
}

#: Ends of a job that its scheduler, a user or a failure decided.
_TAKEN = frozenset({EndKind.TIMEOUT, EndKind.PREEMPTED, EndKind.NODE_FAILED, EndKind.CANCELLED, EndKind.LOST})


def attempt_entries(history: History) -> Iterator[TimelineEntry]:
    """Yield the entries about the attempts of a trial."""
    starts = defaultdict[int, list[Start]](list)
    for start in history.starts:
        starts[start.attempt_id].append(start)
    for attempt in history.attempts:
        if attempt.started_at is not None:
            yield TimelineEntry(
                at=attempt.started_at,
                until=attempt.ended_at,
                kind=TimelineKind.LAUNCHED,
                attempt=attempt.number,
                text=f"All ranks of attempt {attempt.number} were started.{_warmth(starts[attempt.id])}",
            )
        if attempt.state == "preempted" and attempt.ended_at is not None:
            yield _released(history, attempt, attempt.ended_at)
        failed = [row for row in history.failed_ranks if row.attempt_id == attempt.id]
        if failed:
            yield _rank_failed(history, attempt, failed[0], len(failed))
    yield from _noted(history)
    for note in history.notes_of(TimelineKind.EVACUATED):
        yield _evacuated(history, note)
    for former, attempt in pairwise(history.attempts):
        if former.state != "preempted":
            yield _restarted(former, attempt)


def _warmth(starts: Sequence[Start]) -> str:
    """Return on how many hosts ranks were forked from a warm parent, and why not on the other ones."""
    executed = Counter(one.why_executed or "the reason is unknown" for one in starts if one.is_forked is False)
    forked = sum(one.is_forked is True for one in starts)
    sentences = [f" Forked from a warm parent on {forked} of {len(starts)} host(s)."] if forked else []
    sentences += [f" Executed on {count} host(s): {reason}." for reason, count in executed.most_common(3)]
    return "".join(sentences)


def _released(history: History, attempt: LaunchRow, at: datetime) -> TimelineEntry:
    """Return that an attempt released its slots, for which of the reasons."""
    jobs = [row for row in history.jobs if row.allocation_id == attempt.allocation_id]
    end = end_of(jobs[-1].end) if jobs else None
    if end is not None and end.kind not in _TAKEN:
        end = None
    was_asked = any(row.id == attempt.allocation_id and row.preempted_at is not None for row in history.requests)
    is_preempted = was_asked if end is None else end.kind == EndKind.PREEMPTED
    # The warning before the end of a job does not say why it ends.
    reason = attempt.reason if end is None else end.message
    return TimelineEntry(
        at=at,
        kind=TimelineKind.PREEMPTED if is_preempted else TimelineKind.RELEASED,
        attempt=attempt.number,
        text=f"Released its slots: {one_line(reason) or 'it was asked to'}",
        detail={"reason": attempt.reason, "end": None if end is None else end.kind},
    )


def _noted(history: History) -> Iterator[TimelineEntry]:
    """Yield first steps, warnings of hosts, slow ranks and excluded hosts."""
    for note in history.notes_of(TimelineKind.FIRST_STEP):
        number = history.number_of(note.attempt_id)
        launched = next((row.started_at for row in history.attempts if row.id == note.attempt_id), None)
        after_s = None if launched is None else max(0.0, (note.at - launched).total_seconds())
        took = "" if after_s is None else f", {duration(after_s)} after the launch"
        yield TimelineEntry(
            at=note.at,
            kind=TimelineKind.FIRST_STEP,
            attempt=number,
            host=note.host,
            text=f"Rank 0 finished its first batch on {note.host}{took}.",
            detail={"after_s": after_s},
        )
    for note in history.notes_of(TimelineKind.ENVIRONMENT):
        ended_at = next((one.ended_at for one in history.attempts if one.id == note.attempt_id), None)
        yield TimelineEntry(
            at=note.at,
            until=note.until if note.value is not None else ended_at,
            kind=TimelineKind.ENVIRONMENT,
            attempt=history.number_of(note.attempt_id),
            host=note.host,
            text=f"{_BUILDS[note.value]} on {note.host}: {note.words}",
        )
    for note in history.notes_of(TimelineKind.WARNED):
        yield TimelineEntry(
            at=note.at,
            kind=TimelineKind.WARNED,
            attempt=history.number_of(note.attempt_id),
            host=note.host,
            text=f"Warning of host {note.host}: {note.words}.",
        )
    for one in history.stragglers:
        yield TimelineEntry(
            at=one.since,
            until=one.until,
            kind=TimelineKind.SLOW_RANK,
            attempt=one.attempt,
            host=one.host,
            text=f"{one.text} {one.advice}",
            detail={"rank": one.rank, "ratio": one.ratio, "cost": one.cost, "cause": one.cause},
        )
    for note in history.notes_of(TimelineKind.HOST_EXCLUDED):
        times = f" ({note.merged + 1:,} times)" if note.merged else ""
        yield TimelineEntry(
            at=note.at,
            until=note.until,
            kind=TimelineKind.HOST_EXCLUDED,
            attempt=history.number_of(note.attempt_id),
            host=note.host,
            text=f"Avoids host {note.host} from now on{times}, unless no other hosts can serve it: {note.words}",
            detail={"reason": note.words, "times": note.merged + 1},
        )


def _evacuated(history: History, note: NoteRow) -> TimelineEntry:
    """Return an evacuation with its cost, as far as the trial has resumed."""
    number = history.number_of(note.attempt_id) or 0
    left = next((one for one in history.attempts if one.id == note.attempt_id), None)
    saved = [row for row in _saved(history) if (history.number_of(row.attempt_id) or 0) <= number]
    step = saved[-1].step if saved else None
    resumed = next(
        (one for one in history.notes_of(TimelineKind.FIRST_STEP) if (history.number_of(one.attempt_id) or 0) > number),
        None,
    )
    took_s = None if resumed is None else max(0.0, (resumed.at - note.at).total_seconds())
    lost = None if note.value is None else max(0, note.value - (step or 0))
    parts = [_saving(left, step)]
    if resumed is not None and took_s is not None:
        parts.append(f"resumed on {resumed.host} after {duration(took_s)}")
    elif left is not None and left.ended_at is not None and history.trial.ended_at is None:
        parts.append("not resumed yet")
    cost = "" if lost is None else f"; lost work {lost:,} step" + ("" if lost == 1 else "s")
    return TimelineEntry(
        at=note.at,
        until=resumed.at if resumed is not None else None,
        kind=TimelineKind.EVACUATED,
        attempt=number or None,
        host=note.host,
        text=f"{_capital(note.words)}: {', '.join(parts)}{cost}.",
        detail={"step": step, "lost_steps": lost, "took_s": took_s, "resumed_on": resumed.host if resumed else None},
    )


def _saving(left: LaunchRow | None, step: int | None) -> str:
    if left is None or left.ended_at is None:
        return "asked to save and to release its slots"
    return "no checkpoint" if step is None else f"saved at step {step:,}"


def _saved(history: History) -> list[SavedRow]:
    return [*history.first_saved, *history.latest_saved]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rank_failed(history: History, attempt: LaunchRow, first: FailedRankRow, count: int) -> TimelineEntry:
    end = f"signal {-first.exit_code}" if first.exit_code < 0 else f"exit code {first.exit_code}"
    suffix = f" {count} ranks of the attempt ended with an error." if count > 1 else ""
    return TimelineEntry(
        at=history.in_attempt(first.exited_at or history.now, attempt.id),
        kind=TimelineKind.RANK_FAILED,
        attempt=attempt.number,
        host=first.host,
        text=f"Rank {first.rank} on {first.host} ended with {end}.{suffix}",
        detail={"rank": first.rank, "exit_code": first.exit_code, "ranks": count},
    )


def _restarted(former: LaunchRow, attempt: LaunchRow) -> TimelineEntry:
    failure = former.failure or {}
    cause = one_line(failure.get("message") or former.reason or "its attempt ended")
    ran_s = (former.ended_at - former.started_at).total_seconds() if former.ended_at and former.started_at else None
    after = f" after {duration(ran_s)}" if ran_s is not None else ""
    return TimelineEntry(
        at=attempt.created_at,
        kind=TimelineKind.RESTARTED,
        attempt=attempt.number,
        host=failure.get("host"),
        text=f"Attempt {attempt.number} follows attempt {former.number}, which failed{after}: {cause}",
        detail={"error": failure.get("error"), "failure_kind": failure.get("kind"), "cause": cause},
    )
