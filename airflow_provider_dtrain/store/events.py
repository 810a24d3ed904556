"""Reports of hosts: events (exactly once), log tails and ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.event_log import RUNTIME_FIELDS
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind, within
from airflow_provider_dtrain.core.quotas import Usage
from airflow_provider_dtrain.errors import StoreSetBackError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.moments import moment, store_moment
from airflow_provider_dtrain.store.database.rows import AttemptRow, record_of
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    events,
    ranks,
    streams,
)
from airflow_provider_dtrain.store.database.transactions import Database, guard, reads, set_back, writes
from airflow_provider_dtrain.store.gaps import GAP, add_gaps, usage_of
from airflow_provider_dtrain.store.metrics import METRIC_GROUPS, add_checkpoint, add_metrics
from airflow_provider_dtrain.store.records.trials import EventView, LogTail, OpenLog, RankView
from airflow_provider_dtrain.store.rungs import answer, note_best
from airflow_provider_dtrain.store.timeline.notes import note, note_once

LOG_TAIL_BYTES = 64 * 1024
#: Key in the body of a stored event: seconds by which the host's clock was ahead. Measured here, not by the host.
OFFSET_KEY = "clock_offset_s"
_RANK_STREAM = re.compile(r"rank(\d+)\.(events|log)")
Handler = Callable[[Connection, AttemptRow, Mapping[str, Any], int | None], None]


class Events:
    """Events of attempts. An event, its consequences and the offset behind it are one transaction."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def offsets(self, conn: Connection, attempt_id: int) -> dict[tuple[str, str], int]:
        """Return the number of committed bytes of each (host, stream) of the attempt's current run."""
        return {key: position for key, (position, _) in _positions(conn, attempt_id).items()}

    @reads
    def epochs(self, conn: Connection, attempt_id: int) -> dict[tuple[str, str], int]:
        """Return the number of restarts of each (host, stream) of the attempt's current run."""
        return {key: epoch for key, (_, epoch) in _positions(conn, attempt_id).items()}

    @writes
    def commit(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        host: str,
        stream: str,
        old_offset: int,
        new_offset: int,
        batch: Sequence[Mapping[str, Any]],
        *,
        epoch: int = 0,
        clock_offset_s: float = 0.0,
    ) -> list[Mapping[str, Any]]:
        """Store events with their consequences, move the stream's offset, and return the new events.

        Only a stream that was restarted can contain events that are stored already.

        :param stream: ``supervisor.events`` or ``rank<k>.events``
        :param batch: events as parsed, with ``seq``, ``at`` (Unix seconds) and ``kind``; a ``gap`` stands for bytes
            that are left out, with ``offset``, ``bytes``, ``lines``, ``code`` and ``reason``
        :param epoch: number of restarts of the stream; see :meth:`begin_epoch`
        :param clock_offset_s: seconds by which the host's clock is ahead of this one; stored with each event, and
            subtracted from the times of metrics, which pages show beside the telemetry
        :raises StaleWatchError: the watch is not current
        :raises StoreSetBackError: the stream is not at ``old_offset`` of ``epoch``
        """
        attempt = guard(conn, attempt_id, watch)
        token = _token_of(conn, attempt_id)
        _move(conn, _Stream(attempt_id, token, host, stream, epoch), old_offset, new_offset)
        if epoch:
            batch = _unknown(conn, attempt_id, token, host, stream, batch)
        rows = [
            {
                "attempt_id": attempt_id,
                "token": token,
                "host": host,
                "stream": stream,
                "seq": event.get("seq"),
                "at": moment(event.get("at")),
                "kind": str(event.get("kind"))[:63],
                "body": {**event, OFFSET_KEY: clock_offset_s},
            }
            for event in batch
        ]
        statements.add(conn, events, *(row for row in rows if row["kind"] != GAP))
        if marks := [row for row in rows if row["kind"] == GAP]:
            add_gaps(conn, {"attempt_id": attempt_id, "token": token, "host": host, "stream": stream}, marks)
            batch = [event for event in batch if event.get("kind") != GAP]
            _show_limit(conn, attempt, marks)
        source = _RANK_STREAM.fullmatch(stream)
        rank = int(source[1]) if source else None
        reports = [event for event in batch if event.get("kind") in METRIC_GROUPS]
        add_metrics(conn, attempt, reports, rank=rank or 0, clock_offset_s=clock_offset_s)
        for event in batch:
            if (handler := HANDLERS.get(str(event.get("kind")))) is not None:
                handler(conn, attempt, {**event, "host": host, "token": token, OFFSET_KEY: clock_offset_s}, rank)
        # Last, because they lock the trial and its search, which must be locked after the pool.
        for warning in (event for event in batch if event.get("kind") == "warning"):
            at = within(store_moment(warning.get("at"), clock_offset_s), attempt.started_at, self.db.now())
            message = str(warning.get("text"))
            note(conn, attempt.trial_id, TimelineKind.WARNED, at, attempt_id=attempt.id, host=host, message=message)
        if source and source[1] == "0":
            if (step := next((event for event in batch if event.get("kind") == "first_step"), None)) is not None:
                at = within(store_moment(step.get("at"), clock_offset_s), attempt.started_at, self.db.now())
                note_once(conn, attempt.trial_id, TimelineKind.FIRST_STEP, at, attempt_id=attempt.id, host=host)
            if validations := [event for event in batch if event.get("kind") == "validation"]:
                note_best(conn, attempt, validations)
            if questions := [event for event in batch if event.get("kind") == "rung"]:
                answer(conn, attempt, questions, self.db.now())
        return list(batch)

    @writes
    def begin_epoch(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        host: str,
        stream: str,
        old_offset: int,
        epoch: int,
        reason: str,
    ) -> None:
        """Start a new epoch of a stream, whose file is shorter than its committed offset. Repeatable.

        The file is read from its start again. An event of kind ``gap`` marks the gap.

        :param old_offset: committed offset of the previous epoch
        :param epoch: number of the new epoch
        :param reason: in words
        :raises StaleWatchError: the watch is not current
        :raises StoreSetBackError: the stream is at another offset or epoch
        """
        guard(conn, attempt_id, watch)
        token = _token_of(conn, attempt_id)
        where = [streams.c.attempt_id == attempt_id, streams.c.token == token, streams.c.host == host]
        where.append(streams.c.stream == stream)
        found = conn.execute(sa.select(streams.c.position, streams.c.epoch).where(*where)).one_or_none()
        if found is not None and (found.position, found.epoch) == (0, epoch):
            return
        if found is None or (found.position, found.epoch) != (old_offset, epoch - 1):
            raise _moved(attempt_id, host, stream, old_offset)
        conn.execute(streams.update().where(*where).values(position=0, epoch=epoch))
        body = {"kind": "gap", "epoch": epoch, "read_bytes": old_offset, "reason": reason}
        conn.execute(
            events.insert().values(
                attempt_id=attempt_id,
                token=token,
                host=host,
                stream=stream,
                seq=None,
                at=self.db.now(),
                kind="gap",
                body=body,
            )
        )

    @writes
    def commit_log(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        host: str,
        rank: int,
        new_offset: int | None,
        tail: bytes | None,
        *,
        tail_end: int | None = None,
        closed: bool = False,
    ) -> None:
        """Store the last bytes of a rank's log, and its position in the task log.

        :param new_offset: position up to which the task log has the rank's log; None = unchanged
        :param tail: the last bytes, of which at most 64 KiB are kept; None = unchanged
        :param tail_end: offset behind the last byte of the tail; None = not known
        :param closed: True: the task log has everything, or marks for the missing parts
        :raises StaleWatchError: the watch is not current
        """
        guard(conn, attempt_id, watch)
        if new_offset is not None:
            self._move_log(conn, attempt_id, host, rank, new_offset)
        if tail is not None:
            where = (ranks.c.attempt_id == attempt_id, ranks.c.rank == rank)
            conn.execute(ranks.update().where(*where).values(log_tail=tail[-LOG_TAIL_BYTES:], log_end=tail_end))
        if closed:
            conn.execute(attempts.update().where(attempts.c.id == attempt_id).values(log_closed=True))

    def _move_log(self, conn: Connection, attempt_id: int, host: str, rank: int, new_offset: int) -> None:
        token = _token_of(conn, attempt_id)
        stream = f"rank{rank}.log"
        insert = self.db.insert(streams).values(
            attempt_id=attempt_id, token=token, host=host, stream=stream, position=new_offset
        )
        key = ["attempt_id", "token", "host", "stream"]
        conn.execute(insert.on_conflict_do_update(index_elements=key, set_={"position": new_offset}))

    @reads
    def open_logs(self, conn: Connection, trial_id: int) -> list[OpenLog]:
        """Return a trial's ended attempts whose rank 0 log may be incomplete in the task log."""
        return _open_logs(conn, attempts.c.trial_id == trial_id, attempts.c.ended_at.is_not(None))

    @reads
    def open_log(self, conn: Connection, attempt_id: int) -> OpenLog | None:
        """Return the rank 0 log of an attempt, None if the task log has all of it or its ranks were never started."""
        return next(iter(_open_logs(conn, attempts.c.id == attempt_id)), None)

    @reads
    def of_attempt(self, conn: Connection, attempt_id: int, *, kinds: Sequence[str] | None = None) -> list[EventView]:
        """Return the events of the attempt's current run in commit order.

        :param kinds: only these kinds; None = all
        """
        where = [events.c.attempt_id == attempt_id, events.c.token == _token_of(conn, attempt_id)]
        if kinds is not None:
            where.append(events.c.kind.in_(list(kinds)))
        rows = conn.execute(sa.select(events).where(*where).order_by(events.c.id))
        return [record_of(EventView, row) for row in rows]

    @reads
    def kinds_of(self, conn: Connection, attempt_id: int, kinds: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return each (host, stream, kind) of the attempt's current run that has events of these kinds.

        A rank may write any number of such events, so their bodies are not read.
        """
        of = events.c
        query = sa.select(of.host, of.stream, of.kind).distinct().where(of.attempt_id == attempt_id)
        query = query.where(of.token == _token_of(conn, attempt_id), of.kind.in_(list(kinds)))
        return [(row.host, row.stream, row.kind) for row in conn.execute(query)]

    @reads
    def ranks(self, conn: Connection, attempt_id: int) -> list[RankView]:
        """Return the processes of an attempt by rank."""
        query = sa.select(ranks).where(ranks.c.attempt_id == attempt_id).order_by(ranks.c.rank)
        return [
            record_of(RankView, row, log_tail=(row.log_tail or b"").decode("utf-8", errors="replace"))
            for row in conn.execute(query)
        ]

    @reads
    def log_tails(
        self, conn: Connection, attempt_id: int, *, rank: int | None = None, beyond: int = -1
    ) -> list[LogTail]:
        """Return the ends of logs by rank.

        :param rank: None = of all ranks
        :param beyond: the content of a log that ends at this offset or before is empty: the caller has it
        """
        is_new = sa.or_(ranks.c.log_end.is_(None), ranks.c.log_end > beyond)
        content = sa.case((is_new, ranks.c.log_tail), else_=b"").label("content")
        where = [ranks.c.attempt_id == attempt_id, *([ranks.c.rank == rank] if rank is not None else [])]
        query = sa.select(ranks.c.rank, ranks.c.host, ranks.c.log_end, content).where(*where).order_by(ranks.c.rank)
        return [
            LogTail(rank=row.rank, host=row.host, end=row.log_end, content=bytes(row.content or b""))
            for row in conn.execute(query)
        ]

    @reads
    def usage(self, conn: Connection, attempt_id: int) -> Usage:
        """Return the amounts of data that the ranks of an attempt have stored."""
        return usage_of(conn, attempt_id)


_STREAM_KEY = ("attempt_id", "token", "host", "stream")
_BEGIN_STREAM = (
    postgresql.insert(streams)
    .values({name: sa.bindparam(f"of_{name}") for name in _STREAM_KEY} | {"position": sa.bindparam("new"), "epoch": 0})
    .on_conflict_do_nothing(index_elements=_STREAM_KEY)
    .returning(streams.c.position)
)
_MOVE_STREAM = (
    streams.update()
    .where(*(streams.c[name] == sa.bindparam(f"of_{name}") for name in _STREAM_KEY))
    .where(streams.c.position == sa.bindparam("old"), streams.c.epoch == sa.bindparam("of_epoch"))
    .values(position=sa.bindparam("new"))
    .returning(streams.c.position)
)


def _show_limit(conn: Connection, attempt: AttemptRow, marks: Sequence[Mapping[str, Any]]) -> None:
    """Set an attempt's reason to the limit that it has reached, unless it has a reason."""
    limit = next((mark["body"]["reason"] for mark in marks if str(mark["body"].get("code")).endswith("_limit")), None)
    if limit is not None and not attempt.reason:
        conn.execute(attempts.update().where(attempts.c.id == attempt.id).values(reason=limit))


class _Stream(NamedTuple):
    """One file of a run, with the number of its restarts."""

    attempt_id: int
    token: int
    host: str
    stream: str
    epoch: int


def _moved(attempt_id: int, host: str, stream: str, old: int) -> StoreSetBackError:
    """Return the error for a stream at another position, although the follower's watch is current.

    The store has lost commits, or has one that this follower took for lost: the follower must read its state again.
    """
    return set_back(attempt_id, f"stream {stream} of host '{host}' is not at byte {old}")


def _positions(conn: Connection, attempt_id: int) -> dict[tuple[str, str], tuple[int, int]]:
    where = (streams.c.attempt_id == attempt_id, streams.c.token == _token_of(conn, attempt_id))
    return {(row.host, row.stream): (row.position, row.epoch) for row in conn.execute(sa.select(streams).where(*where))}


def _unknown(
    conn: Connection, attempt_id: int, token: int, host: str, stream: str, batch: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the events that are not stored yet.

    A file that lost its end and was restarted begins with events that are stored already.
    """
    of = events.c
    where = (of.attempt_id == attempt_id, of.token == token, of.host == host, of.stream == stream)
    seqs = [event.get("seq") for event in batch]
    rows = conn.execute(sa.select(of.seq, of.body).where(*where, of.seq.in_(seqs)))
    known: dict[Any, list[Any]] = {}
    for row in rows:
        known.setdefault(row.seq, []).append({key: value for key, value in row.body.items() if key != OFFSET_KEY})
    return [event for event in batch if dict(event) not in known.get(event.get("seq"), ())]


_TOKEN = (
    sa.select(allocations.c.token)
    .join(attempts, attempts.c.allocation_id == allocations.c.id)
    .where(attempts.c.id == sa.bindparam("attempt"))
)


def _token_of(conn: Connection, attempt_id: int) -> int:
    found = statements.first(conn, _TOKEN, {"attempt": attempt_id})
    return 0 if found is None else int(found.token or 0)


def _open_logs(conn: Connection, *where: sa.ColumnElement[bool]) -> list[OpenLog]:
    query = (
        sa.select(attempts.c.id, ranks.c.host)
        .join(ranks, sa.and_(ranks.c.attempt_id == attempts.c.id, ranks.c.rank == 0))
        .where(*where, ~attempts.c.log_closed)
        .order_by(attempts.c.number)
    )
    found = []
    for row in conn.execute(query).all():
        position, _ = _positions(conn, row.id).get((row.host, "rank0.log"), (0, 0))
        found.append(OpenLog(attempt_id=row.id, host=row.host, position=position))
    return found


def _started(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], _: int | None) -> None:
    for entry in _entries(event.get("ranks")):
        _update_rank(conn, attempt, event, entry.get("rank"), pid=_integer(entry.get("pid")))


def _initialized(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], rank: int | None) -> None:
    runtime = {name: event[name] for name in RUNTIME_FIELDS if event.get(name) is not None}
    _update_rank(conn, attempt, event, rank, runtime=runtime)


def _exited(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], _: int | None) -> None:
    error = event.get("error")
    tail = event.get("log_tail")
    values: JsonObject = {
        "exit_code": _integer(event.get("exit_code")),
        "exited_at": store_moment(event.get("at"), event[OFFSET_KEY]),
        "error": dict(error) if isinstance(error, Mapping) else None,
        "sent_signal": event.get("sent_signal") is True,
    }
    if isinstance(tail, str) and tail:
        encoded = tail.encode("utf-8", errors="replace")[-LOG_TAIL_BYTES:]
        # A longer tail from the live log stays, and one whose place is known.
        longer = sa.func.length(sa.func.coalesce(ranks.c.log_tail, b"")) > len(encoded)
        values["log_tail"] = sa.case((sa.or_(longer, ranks.c.log_end.is_not(None)), ranks.c.log_tail), else_=encoded)
    _update_rank(conn, attempt, event, event.get("rank"), **values)


def _update_rank(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], rank: Any, **values: Any) -> None:
    """Update a rank of the host that sent the event. A host cannot change ranks of another host."""
    where = (ranks.c.attempt_id == attempt.id, ranks.c.rank == _integer(rank), ranks.c.host == event["host"])
    conn.execute(ranks.update().where(*where).values(**values))


def _result(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], rank: int | None) -> None:
    if rank == 0:
        values = {"result": {"value": event.get("value")}}
        conn.execute(attempts.update().where(attempts.c.id == attempt.id).values(**values))


def _checkpoint(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], _: int | None) -> None:
    add_checkpoint(conn, attempt, event, at=store_moment(event.get("at"), event[OFFSET_KEY]))


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


#: Handler for each kind of event that changes more than its own row. Other kinds are only stored.
HANDLERS: Mapping[str, Handler] = {
    "started": _started, "init": _initialized, "exit": _exited, "result": _result, "checkpoint": _checkpoint,
}  # fmt: skip


def _move(conn: Connection, of: _Stream, old: int, new: int) -> None:
    key = {"attempt_id": of.attempt_id, "token": of.token, "host": of.host, "stream": of.stream}
    values = {**{f"of_{name}": value for name, value in key.items()}, "old": old, "new": new, "of_epoch": of.epoch}
    moved: Any = None
    if old == 0 and of.epoch == 0:
        moved = statements.first(conn, _BEGIN_STREAM, values)
    if moved is None:
        moved = statements.first(conn, _MOVE_STREAM, values)
    if moved is None:
        raise _moved(of.attempt_id, of.host, of.stream, old)
