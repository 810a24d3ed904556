"""Timeline of a trial: the kinds of its entries, their order, and the limit for their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_provider_dtrain.core.lifecycle.states import Explained
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.core.safe_repr import printable_line

#: Entries that a timeline has at most. A trial that was preempted a thousand times has more.
MOST_ENTRIES = 2000
#: Characters of a sentence, and of a text in the details. Messages of user code can have megabytes.
MOST_CHARS = 500

#: A value of an entry's details, ready for JSON.
Detail = str | int | float | bool | None


class TimelineKind(Explained):
    """Kind of an entry in the timeline of a trial. Entries of one time are in this order."""

    SUBMITTED = "submitted", "a task submitted the trial"
    CLEARED = "cleared", "a newer trial of its task replaced it, because a user cleared the task"
    RESTARTED = "restarted", "the next attempt follows one that failed"
    WAITED = "waited", "its request waited for slots, for this reason"
    PAUSED = "paused", "a user paused it"
    ACTIVATED = "activated", "a user resumed it"
    PRIORITY_SET = "priority_set", "a user changed the priority of its gang"
    JOB_SUBMITTED = "job_submitted", "a job of an external scheduler was submitted for it"
    JOB_STARTED = "job_started", "the external scheduler started the job on its nodes"
    GRANTED = "granted", "the queue granted slots to it, or it got its turn on a held gang"
    RETURNED = "returned", "it gave a grant back before its ranks were started"
    ENVIRONMENT = "environment", "a host built the environment of its ranks"
    LAUNCHED = "launched", "every rank was started"
    FIRST_STEP = "first_step", "rank 0 finished the first batch"
    WARNED = "warned", "a host saw something that is probably a mistake of the program"
    SLOW_RANK = "slow_rank", "a rank takes longer than the other ranks, for a cause that the text names"
    CHECKPOINT = "checkpoint", "its ranks saved a checkpoint"
    RUNG = "rung", "it reported its metric at a rung, and the searcher answered"
    GIVE_WAY = "give_way", "the queue asked it to release its slots for a more urgent request"
    EVACUATED = "evacuated", "a host had to become empty, so it was asked to save and resume on other hosts"
    STOP_REQUESTED = "stop_requested", "a user requested that it ends with its best result so far"
    KILL_REQUESTED = "kill_requested", "a user requested that it is killed, or ended its job"
    RANK_FAILED = "rank_failed", "a rank of it ended with an error"
    HOST_EXCLUDED = "host_excluded", "it avoids a host from now on"
    JOB_ENDED = "job_ended", "the job of the external scheduler ended"
    PREEMPTED = "preempted", "it released its slots for a more urgent request, and waits again"
    RELEASED = (
        "released",
        "it released its slots for a pause, or because the time of its job was over or its job was ended",
    )
    ENDED = "ended", "it ended, in the state that its details name"
    OMITTED = "omitted", "further entries of this time are not shown"


_ORDER: Mapping[TimelineKind, int] = {kind: place for place, kind in enumerate(TimelineKind)}


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """One thing that happened to a trial."""

    # Answers of the API have all fields, also those with a default, and their schema says so.
    __pydantic_config__ = {"json_schema_serialization_defaults_required": True}

    #: Time of the store. A time that only a host knows is corrected by the offset of the host's clock.
    at: datetime
    #: End of an entry that lasts: a wait, the use of a grant, the run of an attempt. None: it is a moment, or lasts.
    until: datetime | None = None
    kind: TimelineKind
    #: Number of the attempt; None: it concerns the whole trial.
    attempt: int | None = None
    #: None: it concerns no host, or several.
    host: str | None = None
    #: One sentence.
    text: str
    #: Facts for a page, by name: at most ten, with short texts.
    detail: Mapping[str, Detail] = field(default_factory=dict)


def in_order(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Return the entries in the order of cause and effect.

    Entries of one attempt at the same time are in the order of :class:`TimelineKind`.
    """
    return sorted(entries, key=lambda entry: (entry.at, entry.attempt or 0, _ORDER[entry.kind]))


def limited(entries: Sequence[TimelineEntry], most: int = MOST_ENTRIES) -> list[TimelineEntry]:
    """Return at most ``most`` entries: the first quarter, the latest ones, and one entry for those between.

    :param entries: in order
    """
    if len(entries) <= most:
        return list(entries)
    first = most // 4
    last = most - first - 1
    omitted = entries[first : len(entries) - last]
    mark = TimelineEntry(
        at=omitted[0].at,
        until=omitted[-1].at,
        kind=TimelineKind.OMITTED,
        text=f"{len(omitted):,} further entries of this time are not shown.",
        detail={"entries": len(omitted)},
    )
    return [*entries[:first], mark, *entries[len(entries) - last :]]


def within(at: datetime, earliest: datetime | None, latest: datetime) -> datetime:
    """Return a host's time moved into the span in which it must have happened, whatever the host's clock says."""
    return min(max(at, earliest) if earliest is not None else at, latest)


def one_line(text: object, most: int = MOST_CHARS) -> str:
    """Return the first line of a text, printable and shortened."""
    return printable_line(str(text).strip().partition("\n")[0], most)


def duration(seconds: float) -> str:
    """Return a duration in words of at most two units, such as ``4 s``, ``12 min`` or ``3 h 20 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def shortened(entry: TimelineEntry) -> TimelineEntry:
    """Return an entry whose texts have a bounded length."""
    detail = {
        name: one_line(value) if isinstance(value, str) else plain_data(value) for name, value in entry.detail.items()
    }
    return replace(entry, text=one_line(entry.text), detail=detail)
