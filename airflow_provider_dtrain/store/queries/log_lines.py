"""Lines of a rank's log: those of the copy in the store, and those of the stored end of the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.logs.clock import Sample, time_of
from airflow_provider_dtrain.core.logs.query import line_starts
from airflow_provider_dtrain.core.logs.text import levels_of, lines_of
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.logs import LogLine, LogLines
from airflow_provider_dtrain.store.log_copies import READ_PERIOD
from airflow_provider_dtrain.store.queries.ranks import attempt_of
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.log_copies import LogChunk, LogCopy
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import AttemptView, LogTail, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Most characters of a line in an answer.
LINE_CHARS: Final = 4000
#: Bytes at the end of a copy by which the stored end of a log is recognized as its continuation.
_OVERLAP_BYTES: Final = 64
#: Places that are tried: a log may repeat the same line.
_OVERLAPS_MOST: Final = 100
#: Chunks of a piece of a download.
_TEXT_CHUNKS: Final = 4


@dataclass(frozen=True, kw_only=True)
class LogPart:
    """Part of a log: a chunk of a copy, or what of the stored end of the log is behind the copy."""

    content: bytes
    #: Offset of its first byte, and number of its first line; None: not known.
    start: int | None
    first_line: int | None
    samples: Sequence[Sample]

    def rows(self, lines: Sequence[str], indices: Iterable[int]) -> list[LogLine]:
        """Return some of the lines as records.

        :param lines: all lines of the part
        """
        levels = levels_of(lines)
        starts = line_starts(self.content, self.start or 0)
        return [
            LogLine(
                number=None if self.first_line is None else self.first_line + index,
                offset=None if self.start is None else starts[index],
                at=time_of(self.samples, starts[index]),
                level=levels[index],
                text=escaped(lines[index][:LINE_CHARS]),
                chars=len(lines[index]),
            )
            for index in indices
        ]


@dataclass(frozen=True, kw_only=True)
class KnownLog:
    """The log of a rank as far as the store has it."""

    trial: TrialView
    view: AttemptView
    ranks: int
    rank: int
    copy: LogCopy | None
    tail: LogTail | None

    @property
    def total(self) -> int:
        """Number of lines of the copy."""
        return 0 if self.copy is None else self.copy.lines

    @property
    def is_complete(self) -> bool:
        """True when the store has the whole log."""
        return self.copy is not None and self.copy.is_complete


def known_log(store: Store, rights: Rights, trial_id: int, *, attempt: int | None, rank: int) -> KnownLog:
    """Return the log of a rank as far as the store has it.

    :param attempt: its number; None = the latest
    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt or rank
    """
    trial = readable_trial(store, rights, trial_id)
    rights.require_logs(trial.key.dag_id)
    # The state is read before the log: an attempt that is over then has its end in the store.
    view = attempt_of(store, trial, attempt)
    tails = store.events.log_tails(view.attempt_id)
    tail = next((one for one in tails if one.rank == rank), None)
    if tail is None and tails:
        raise NotFoundError(f"Attempt {view.number} has no rank {rank}; it has 0 to {len(tails) - 1}.")
    copy = store.log_copies.get(view.attempt_id, rank)
    if copy is not None and copy.read_at < store.db.now() - READ_PERIOD:
        store.log_copies.mark_read(view.attempt_id, rank)
    return KnownLog(trial=trial, view=view, ranks=len(tails), rank=rank, copy=copy, tail=tail)


def part_of(chunk: LogChunk) -> LogPart:
    """Return a chunk of a copy as a part of its log."""
    return LogPart(content=chunk.content, start=chunk.start, first_line=chunk.first_line, samples=chunk.samples)


def tail_part(store: Store, log: KnownLog) -> LogPart | None:
    """Return what of the stored end of a log is behind its copy, None if the copy has everything."""
    if log.tail is None or not log.tail.content or log.is_complete:
        return None
    content, copied = log.tail.content, 0 if log.copy is None else log.copy.end
    if log.tail.end is not None:
        start: int | None = log.tail.end - len(content)
    elif copied:
        last = store.log_copies.chunks_from(log.view.attempt_id, log.rank, offset=copied - 1, most=1)
        known = _overlap(last[-1].content if last else b"", content)
        start = copied - known if known else None
    else:
        start = None
    if start is not None and start <= copied:
        content = content[copied - start :]
        part = LogPart(content=content, start=copied, first_line=log.total, samples=())
        return part if content else None
    return LogPart(content=content, start=start, first_line=None, samples=())


def _overlap(copy: bytes, tail: bytes) -> int:
    """Return the length of the part at the beginning of the stored end with which the copy ends, 0 if there is none.

    :param copy: the last bytes of the copy
    """
    end = copy[-_OVERLAP_BYTES:]
    place = tail.rfind(end) if end else -1
    for _ in range(_OVERLAPS_MOST):
        length = place + len(end)
        if place < 0 or tail[max(0, length - len(copy)) : length] == copy[-length:]:
            break
        place = tail.rfind(end, 0, length - 1)
    return place + len(end) if place >= 0 else 0


def log_lines(
    store: Store,
    rights: Rights,
    trial_id: int,
    *,
    attempt: int | None,
    rank: int,
    first: int,
    most: int,
    at: datetime | None = None,
    with_tail: bool = False,
) -> LogLines:
    """Return lines of a rank's log.

    :param first: number of the first line; negative = counted from the end of the copy
    :param at: begin with the first line that was written at this time or later, instead of ``first``
    :param with_tail: also lines behind the copy, from the stored end of the log
    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt or rank
    """
    log = known_log(store, rights, trial_id, attempt=attempt, rank=rank)
    if at is not None:
        first = _line_at(store, log, at)
    first = max(0, log.total + first) if first < 0 else min(first, log.total)
    rows: list[LogLine] = []
    while len(rows) < most and (line := first + len(rows)) < log.total:
        chunks = store.log_copies.chunks(log.view.attempt_id, rank, line=line, most=1)
        part = part_of(chunks[0]) if chunks else None
        lines = lines_of(part.content) if part is not None else []
        begin = line - (chunks[0].first_line if chunks else 0)
        if part is None or not 0 <= begin < len(lines):
            break
        rows += part.rows(lines, range(begin, min(len(lines), begin + most - len(rows))))
    tail = tail_part(store, log) if with_tail else None
    tail_lines = lines_of(tail.content) if tail is not None else []
    return LogLines(
        attempt=log.view.number,
        rank=rank,
        ranks=log.ranks,
        is_started=log.view.run is not None,
        is_over=log.view.ended_at is not None,
        state=log.view.state,
        latest=log.trial.attempts,
        reason=log.view.reason or None,
        total=log.total,
        copied_bytes=0 if log.copy is None else log.copy.end,
        is_complete=log.is_complete,
        first=first,
        rows=rows,
        tail=tail.rows(tail_lines, range(len(tail_lines))) if tail is not None else [],
    )


def log_text(
    store: Store, rights: Rights, trial_id: int, *, attempt: int | None, rank: int
) -> tuple[str, Iterator[bytes]]:
    """Return the name of a file for a rank's log, and its content as far as the store has it.

    Bytes between the copy and the stored end of the log are replaced by a line that names them.

    :raises NotFoundError: there is no such trial that the user may read, or it has no such attempt or rank
    """
    log = known_log(store, rights, trial_id, attempt=attempt, rank=rank)
    return f"trial-{trial_id}-attempt-{log.view.number}-rank-{rank}.log", _text(store, log)


def _text(store: Store, log: KnownLog) -> Iterator[bytes]:
    offset = 0
    while chunks := store.log_copies.chunks_from(log.view.attempt_id, log.rank, offset=offset, most=_TEXT_CHUNKS):
        yield b"".join(chunk.content for chunk in chunks)
        offset = chunks[-1].end
    tail = tail_part(store, log)
    if tail is None:
        return
    if tail.start != offset:
        until = "an unknown byte" if tail.start is None else str(tail.start)
        yield f"\n[bytes {offset} to {until} are on the host only]\n".encode()
    yield tail.content


def _line_at(store: Store, log: KnownLog, at: datetime) -> int:
    """Return the number of the first line that was written at a time or later, else that of the last line."""
    wanted = at.timestamp()
    extents = store.log_copies.extents(log.view.attempt_id, log.rank)
    found = next((one for one in extents if one.times and one.times[-1] >= wanted), None)
    if found is None:
        return max(0, log.total - 1)
    chunk = store.log_copies.chunks(log.view.attempt_id, log.rank, line=found.first_line, most=1)[0]
    index = bisect_left([at_s for _, at_s in chunk.samples], wanted)
    start = chunk.samples[index - 1][0] if index else chunk.start
    return chunk.first_line + min(bisect_left(line_starts(chunk.content, chunk.start), start), chunk.lines - 1)
