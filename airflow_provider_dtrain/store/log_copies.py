"""Copies of complete logs of ranks, in compressed chunks that are read by the number of a line."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.logs.chunks import CHUNK_BYTES, cut
from airflow_provider_dtrain.core.logs.clock import Sample, within
from airflow_provider_dtrain.core.logs.text import count_lines
from airflow_provider_dtrain.errors import ConflictError
from airflow_provider_dtrain.store.database.log_tables import log_chunks, log_copies
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes

#: Most bytes of the chunks of all copies. Text of a log takes about a tenth of its size.
STORE_MOST_BYTES: Final = 2 << 30
#: Most bytes of a log that are copied. The log of a rank with the default ``log_limit`` has at most half of this.
LOG_MOST_BYTES: Final = 512 << 20
#: A copy that a user has read lately is not removed for another one.
IN_USE: Final = timedelta(minutes=15)
#: Period in which a reader marks a copy as read.
READ_PERIOD: Final = timedelta(minutes=5)
_FAST: Final = 1


@dataclass(frozen=True, kw_only=True)
class LogCopy:
    """Extent of a copy."""

    #: Offset behind its last byte.
    end: int
    lines: int
    stored_bytes: int
    is_complete: bool
    #: Time of a recent request for its lines.
    read_at: datetime


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """Part of a log."""

    #: Offset of the first byte, and the one behind the last byte. The content of a chunk that stands for bytes which a
    #: host has freed is a sentence of another length.
    start: int
    end: int
    first_line: int
    lines: int
    content: bytes
    samples: Sequence[Sample]


class LogCopies:
    """Copies of logs. Operations append to them, pages and commands read them."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def get(self, conn: Connection, attempt_id: int, rank: int) -> LogCopy | None:
        """Return the extent of a copy, None if there is none."""
        row = conn.execute(sa.select(log_copies).where(*_of(log_copies, attempt_id, rank))).one_or_none()
        return None if row is None else _copy(row)

    @writes
    def append(
        self,
        conn: Connection,
        attempt_id: int,
        rank: int,
        start: int,
        content: bytes,
        *,
        end: int | None = None,
        samples: Sequence[Sample] = (),
    ) -> LogCopy:
        """Append bytes behind the end of a copy, and return its new extent. Bytes that it has already are skipped.

        :param start: offset of the first byte
        :param end: offset behind the bytes for which the content stands; None = those of the content
        :param samples: sizes of the log at known times
        :raises ConflictError: bytes are missing before ``start``, or other copies that are in use take all room
        """
        copy = self._locked(conn, attempt_id, rank)
        is_mark = end is not None
        end = start + len(content) if end is None else end
        samples = _sorted(samples)
        if start > copy.end:
            raise ConflictError(f"The copy of the log ends at byte {copy.end}, so bytes from {start} on do not follow.")
        if end <= copy.end or (is_mark and start < copy.end):
            return copy
        self._make_room(conn, attempt_id, rank)
        line, stored = copy.lines, copy.stored_bytes
        last = None if is_mark else self._last(conn, attempt_id, rank)
        if is_mark:
            parts = [(start, end, content)]
        elif last is not None and last.end - last.start == len(last.content) < CHUNK_BYTES:
            # Small pieces become one chunk.
            is_last = log_chunks.c.start == last.start
            conn.execute(log_chunks.delete().where(*_of(log_chunks, attempt_id, rank), is_last))
            line, stored = last.first_line, stored - last.stored_bytes
            parts = _parts(last.start, last.content + content[copy.end - start :])
            samples = _sorted([*last.samples, *samples])
        else:
            parts = _parts(copy.end, content[copy.end - start :])
        for first, behind, part in parts:
            values = _values(first, behind, line, part, samples)
            conn.execute(log_chunks.insert().values(attempt_id=attempt_id, rank=rank, **values))
            line, stored = line + values["lines"], stored + len(values["content"])
        new = {"end": end, "lines": line, "stored_bytes": stored, "read_at": self.db.now()}
        of = _of(log_copies, attempt_id, rank)
        return _copy(conn.execute(log_copies.update().where(*of).values(**new).returning(*log_copies.c)).one())

    @writes
    def complete(self, conn: Connection, attempt_id: int, rank: int, end: int) -> None:
        """Record that nothing follows a copy which ends at ``end``."""
        of = (*_of(log_copies, attempt_id, rank), log_copies.c.end == end)
        self._locked(conn, attempt_id, rank)
        conn.execute(log_copies.update().where(*of).values(is_complete=True))

    @writes
    def mark_read(self, conn: Connection, attempt_id: int, rank: int) -> None:
        """Record that a user reads a copy now."""
        now = self.db.now()
        of = (*_of(log_copies, attempt_id, rank), log_copies.c.read_at < now - READ_PERIOD)
        conn.execute(log_copies.update().where(*of).values(read_at=now))

    @reads
    def chunks(self, conn: Connection, attempt_id: int, rank: int, *, line: int, most: int) -> list[LogChunk]:
        """Return chunks in order, from the one with a line on.

        :param line: number of the line, from 0
        :param most: number of chunks
        """
        of = log_chunks.c
        query = sa.select(log_chunks).where(*_of(log_chunks, attempt_id, rank), of.first_line + of.lines > line)
        return [_chunk(row) for row in conn.execute(query.order_by(of.start).limit(most))]

    @reads
    def chunks_from(self, conn: Connection, attempt_id: int, rank: int, *, offset: int, most: int) -> list[LogChunk]:
        """Return chunks in order, from the one with the byte at an offset on."""
        of = log_chunks.c
        query = sa.select(log_chunks).where(*_of(log_chunks, attempt_id, rank), of.end > offset)
        return [_chunk(row) for row in conn.execute(query.order_by(of.start).limit(most))]

    @reads
    def extents(self, conn: Connection, attempt_id: int, rank: int) -> list[LogExtent]:
        """Return lines and times of all chunks without their content, in order."""
        of = log_chunks.c
        query = sa.select(of.first_line, of.lines, of.samples).where(*_of(log_chunks, attempt_id, rank))
        return [
            LogExtent(first_line=row.first_line, lines=row.lines, times=[float(one[1]) for one in row.samples])
            for row in conn.execute(query.order_by(of.start))
        ]

    def _locked(self, conn: Connection, attempt_id: int, rank: int) -> LogCopy:
        """Return a copy that no other process changes in this transaction, an empty one if there was none."""
        now = self.db.now()
        empty = {"end": 0, "lines": 0, "stored_bytes": 0, "is_complete": False, "read_at": now}
        insert = self.db.insert(log_copies).values(attempt_id=attempt_id, rank=rank, **empty)
        conn.execute(insert.on_conflict_do_nothing(index_elements=["attempt_id", "rank"]))
        query = sa.select(log_copies).where(*_of(log_copies, attempt_id, rank)).with_for_update()
        return _copy(conn.execute(query).one())

    def _last(self, conn: Connection, attempt_id: int, rank: int) -> _StoredChunk | None:
        query = sa.select(log_chunks).where(*_of(log_chunks, attempt_id, rank)).order_by(log_chunks.c.start.desc())
        row = conn.execute(query.limit(1)).one_or_none()
        return None if row is None else _StoredChunk(**vars(_chunk(row)), stored_bytes=len(row.content))

    def _make_room(self, conn: Connection, attempt_id: int, rank: int) -> None:
        """Remove the copies that were not read for the longest time, if the copies take all room.

        :raises ConflictError: users have read all of them lately
        """
        total = int(conn.scalar(sa.select(sa.func.sum(log_copies.c.stored_bytes))) or 0)
        while total >= STORE_MOST_BYTES:
            is_own = sa.and_(*_of(log_copies, attempt_id, rank))
            unused = sa.select(log_copies).where(sa.not_(is_own), log_copies.c.read_at < self.db.now() - IN_USE)
            row = conn.execute(
                unused.order_by(log_copies.c.read_at).limit(1).with_for_update(skip_locked=True)
            ).one_or_none()
            if row is None:
                raise ConflictError(
                    f"Complete logs take {STORE_MOST_BYTES >> 20} MiB of the store, which is the limit, and users have "
                    f"read all of them in the last {IN_USE.total_seconds() / 60:.0f} min. Try again later."
                )
            for table in (log_chunks, log_copies):
                conn.execute(table.delete().where(*_of(table, row.attempt_id, row.rank)))
            total -= row.stored_bytes


@dataclass(frozen=True, kw_only=True)
class LogExtent:
    """Lines of a chunk, and the times of its samples in seconds since 1970."""

    first_line: int
    lines: int
    times: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class _StoredChunk(LogChunk):
    stored_bytes: int


def _of(table: sa.Table, attempt_id: int, rank: int) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.attempt_id == attempt_id, table.c.rank == rank


def _parts(start: int, content: bytes) -> list[tuple[int, int, bytes]]:
    """Return content as chunks, each with the offset of its first byte and the one behind its last byte."""
    chunks = cut(content)
    starts = list(accumulate((len(chunk) for chunk in chunks), initial=start))
    return list(zip(starts, starts[1:], chunks, strict=False))


def _values(start: int, end: int, line: int, content: bytes, samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "start": start,
        "end": end,
        "first_line": line,
        "lines": count_lines(content),
        "content": zlib.compress(content, _FAST),
        "samples": [list(one) for one in within(samples, start, end)],
    }


def _sorted(samples: Sequence[Sample]) -> list[Sample]:
    return sorted({size: (size, at_s) for size, at_s in samples}.values())


def _copy(row: Row[Any]) -> LogCopy:
    return LogCopy(
        end=row.end, lines=row.lines, stored_bytes=row.stored_bytes, is_complete=row.is_complete, read_at=row.read_at
    )


def _chunk(row: Row[Any]) -> LogChunk:
    return LogChunk(
        start=row.start,
        end=row.end,
        first_line=row.first_line,
        lines=row.lines,
        content=zlib.decompress(row.content),
        samples=[(int(one[0]), float(one[1])) for one in row.samples],
    )
