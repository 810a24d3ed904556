"""Progress of a batch inference, from the events of its ranks. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_provider_dtrain.core.lifecycle.shard_blame import DONE, FAILED, SKIPPED, STARTED
from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.core.search.trial_progress import TrialProgress

#: Longest time left that is added to a date, seconds: a year.
MOST_LEFT_S = 366 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class ShardCounts:
    """Reports of the latest attempt that has counted its shards."""

    #: All shards of the input, and those that were missing when the attempt began.
    total: int
    missing: int
    #: All rows of the input; None: not known, as for text files.
    rows: int | None
    #: Rows of the shards that were finished when the attempt began.
    rows_done: int
    #: Shards that the attempt has finished or set aside, and the rows of the former.
    done: int = 0
    done_rows: int = 0
    #: Bad rows of the shards that are finished.
    bad_rows: int = 0
    skipped: int = 0
    #: Failures that ranks of the attempt reported.
    failed: int = 0
    #: Unix seconds by the hosts' clocks: first start and last end of a shard in this attempt.
    first_start_s: float | None = None
    last_end_s: float | None = None
    #: The output folder has its manifest.
    is_published: bool = False
    #: Shards that were finished when the attempt began, such as ``0-17,20``; None: not reported.
    finished: str | None = None


@dataclass(frozen=True, kw_only=True)
class InferenceProgress:
    """Progress of a batch inference."""

    total: int
    #: Shards with results, also from earlier attempts and runs.
    done: int
    #: Shards that were missing when the attempt began, and those of them that it has finished.
    missing: int
    computed: int
    skipped: int
    failed: int
    rows: int | None
    rows_done: int
    #: Rows without a result, because they could not be read or computed.
    rows_bad: int
    #: From 0 to 1: of the rows, or of the shards while the number of rows is not known.
    share: float
    #: Of all ranks together in this attempt; None: no shard has ended yet.
    rows_per_s: float | None
    #: Seconds until the last shard ends; None: not known, or nothing is left.
    eta_s: float | None


def inference_progress(counts: ShardCounts, *, now_s: float, is_live: bool) -> InferenceProgress:
    """Return the progress that reports show.

    :param now_s: Unix seconds
    :param is_live: False: the attempt has ended, so there is no time left
    """
    total = max(0, counts.total)
    before = max(0, total - counts.missing)
    done = min(total, before + counts.done)
    rows_done = counts.rows_done + counts.done_rows
    if counts.rows is not None:
        rows_done = min(rows_done, counts.rows)
    is_over = counts.is_published or done + counts.skipped >= total
    rows_per_s, shards_per_s = _rates(counts)
    eta_s = None
    if is_live and not is_over and shards_per_s:
        left_s = (total - done - counts.skipped) / shards_per_s
        if counts.rows is not None and rows_per_s and not counts.skipped:
            left_s = (counts.rows - rows_done) / rows_per_s
        # A clock that was set back does not add time.
        eta_s = max(0.0, left_s - max(0.0, now_s - (counts.last_end_s or now_s)))
    return InferenceProgress(
        total=total,
        done=done,
        missing=counts.missing,
        computed=counts.done,
        skipped=counts.skipped,
        failed=counts.failed,
        rows=counts.rows,
        rows_done=rows_done,
        rows_bad=counts.bad_rows,
        share=_share(counts, done, rows_done),
        rows_per_s=rows_per_s,
        eta_s=eta_s,
    )


def as_trial_progress(progress: InferenceProgress, now: datetime) -> TrialProgress:
    """Return the progress as that of any running trial, in shards."""
    return TrialProgress(
        done=progress.done,
        total=progress.total,
        unit="shards",
        share=progress.share,
        expected_end=None if progress.eta_s is None else now + timedelta(seconds=min(progress.eta_s, MOST_LEFT_S)),
    )


def _rates(counts: ShardCounts) -> tuple[float | None, float | None]:
    """Return rows and shards per second of the attempt."""
    if counts.first_start_s is None or counts.last_end_s is None or not counts.done:
        return None, None
    took_s = counts.last_end_s - counts.first_start_s
    # Clocks of several hosts: a shard may seem to end before another one begins.
    return (counts.done_rows / took_s, counts.done / took_s) if took_s > 0 else (None, None)


def _share(counts: ShardCounts, done: int, rows_done: int) -> float:
    if counts.is_published and not counts.skipped:
        return 1.0
    if counts.rows and not counts.skipped:
        return min(1.0, rows_done / counts.rows)
    return min(1.0, (done + counts.skipped) / counts.total) if counts.total else 1.0


def inference_text(progress: InferenceProgress) -> str:
    """Return the progress in words, e.g. ``63 % done, 63 of 100 shards, 12,345 rows/s, 2 min left``."""
    # 100 % only when nothing is left.
    percent = int(progress.share * 100)
    parts = [f"{percent} % done", f"{progress.done:,} of {progress.total:,} shards"]
    if progress.skipped:
        parts.append(f"{progress.skipped:,} set aside")
    if progress.rows_bad:
        parts.append(_bad_rows_text(progress.rows_bad))
    if progress.rows_per_s is not None:
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    return ", ".join(parts)


def result_text(progress: InferenceProgress) -> str:
    """Return what an ended batch inference has computed, e.g. ``3 of 80 shards computed, ...``."""
    if not progress.missing:
        return f"nothing computed, because the output folder had all {progress.total:,} shards"
    shards = f"{progress.computed:,} of {progress.total:,} shards computed"
    bad = f", {_bad_rows_text(progress.rows_bad)}" if progress.rows_bad else ""
    return f"{shards}, {progress.rows_done:,} rows in the output folder{bad}"


def _bad_rows_text(number: int) -> str:
    return f"{number:,} bad row{'' if number == 1 else 's'}"


class ShardState(StrEnum):
    """State of a shard. The value is its letter in an answer for many shards."""

    #: Its results are in the output folder.
    DONE = "d"
    #: A rank processes it.
    RUNNING = "r"
    #: No rank has it.
    WAITING = "w"
    #: It failed, and is tried again or ended the run.
    FAILED = "f"
    #: It failed too often and was set aside.
    SKIPPED = "s"


@dataclass(frozen=True)
class ShardReport:
    """Report of a rank about a shard.

    :param is_current: the report is of the trial's latest attempt, and the attempt is live
    """

    shard: int
    kind: str
    is_current: bool


_STATES = {DONE: ShardState.DONE, FAILED: ShardState.FAILED, SKIPPED: ShardState.SKIPPED}


def shard_states(
    total: int,
    missing: int,
    reports: Iterable[ShardReport],
    *,
    blamed: Collection[int] = (),
    is_published: bool = False,
    finished: str | None = None,
) -> str:
    """Return one letter of :class:`ShardState` for each shard.

    Ranks take the missing shards in order. Without a list of finished shards, a shard before the last one that was
    taken, without a report, counts as finished by an earlier run.

    :param missing: shards that were missing when the latest attempt began
    :param reports: in order, of all attempts
    :param blamed: shards to which failures of attempts are attributed
    :param is_published: the output folder has its manifest
    :param finished: shards that were finished when the latest attempt began, as ranges
    """
    states: list[str | None] = [None] * total
    last = -1
    for report in reports:
        if not 0 <= report.shard < total:
            continue
        if report.kind == STARTED:
            states[report.shard] = _of_started(report, blamed)
        else:
            states[report.shard] = _STATES[report.kind]
        last = max(last, report.shard) if report.is_current else last
    if is_published or not missing:
        before: Collection[int] = range(total)
    else:
        before = range(max(0, last)) if finished is None else in_ranges(finished, total)
    return "".join(
        state or (ShardState.DONE if index in before else ShardState.WAITING) for index, state in enumerate(states)
    )


def in_ranges(text: str, total: int) -> frozenset[int]:
    """Return the numbers below ``total`` that a text such as ``0-17,20`` names. A part that is no range names none."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if _is_number(first) and _is_number(last or first):
            found.update(range(int(first), min(int(last or first) + 1, total)))
    return frozenset(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _of_started(report: ShardReport, blamed: Collection[int]) -> ShardState:
    if report.is_current:
        return ShardState.RUNNING
    return ShardState.FAILED if report.shard in blamed else ShardState.WAITING
