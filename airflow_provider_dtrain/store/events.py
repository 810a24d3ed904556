"""What hosts report: events exactly once, log tails, ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.store.base import Base, guard, reads, writes
from airflow_provider_dtrain.store.metrics import add_checkpoint, add_metrics
from airflow_provider_dtrain.store.records import EventView, MetricGroup, RankView
from airflow_provider_dtrain.store.tables import allocations, attempts, events, ranks, streams

LOG_TAIL_BYTES = 64 * 1024
_RANK_STREAM = re.compile(r"rank(\d+)\.(events|log)")
Handler = Callable[[Connection, Row[Any], Mapping[str, Any], int | None], None]


class Events(Base):
    """An event, what it means, and the offset behind it are one transaction."""

    @reads
    def offsets(self, conn: Connection, attempt_id: int) -> dict[tuple[str, str], int]:
        """Return how many bytes of each (host, stream) of the attempt's current run are committed."""
        where = (streams.c.attempt_id == attempt_id, streams.c.token == _token_of(conn, attempt_id))
        rows = conn.execute(sa.select(streams.c.host, streams.c.stream, streams.c.position).where(*where))
        return {(row.host, row.stream): row.position for row in rows}

    @writes
    def commit_events(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        host: str,
        stream: str,
        old_offset: int,
        new_offset: int,
        batch: Sequence[Mapping[str, Any]],
    ) -> None:
        """Store events and all that follows from them, and move the stream's offset.

        :param stream: ``supervisor.events`` or ``rank<k>.events``
        :param batch: events as parsed, with ``seq``, ``at`` (Unix seconds) and ``kind``
        :raises StaleWatchError: the watch is not current, or the stream is not at ``old_offset``
        """
        attempt = guard(conn, attempt_id, watch)
        token = _token_of(conn, attempt_id)
        self._move(conn, attempt_id, token, host, stream, old_offset, new_offset)
        rows = [
            {
                "attempt_id": attempt_id, "token": token, "host": host, "stream": stream, "seq": event.get("seq"),
                "at": moment(event.get("at")), "kind": str(event.get("kind"))[:63], "body": dict(event),
            }
            for event in batch
        ]  # fmt: skip
        if rows:
            conn.execute(events.insert(), rows)
        source = _RANK_STREAM.fullmatch(stream)
        for event in batch:
            if (handler := HANDLERS.get(str(event.get("kind")))) is not None:
                handler(conn, attempt, {**event, "host": host, "token": token}, int(source[1]) if source else None)

    @writes
    def commit_log(
        self, conn: Connection, attempt_id: int, watch: int, host: str, rank: int, new_offset: int, tail: bytes
    ) -> None:
        """Store the end of a rank's log and how far it was read.

        :param tail: the last bytes; at most 64 KiB are kept
        :raises StaleWatchError: the watch is not current
        """
        guard(conn, attempt_id, watch)
        token, stream = _token_of(conn, attempt_id), f"rank{rank}.log"
        insert = self._insert(streams).values(
            attempt_id=attempt_id, token=token, host=host, stream=stream, position=new_offset
        )
        key = ["attempt_id", "token", "host", "stream"]
        conn.execute(insert.on_conflict_do_update(index_elements=key, set_={"position": new_offset}))
        where = (ranks.c.attempt_id == attempt_id, ranks.c.rank == rank)
        conn.execute(ranks.update().where(*where).values(log_tail=tail[-LOG_TAIL_BYTES:]))

    def _move(self, conn: Connection, attempt_id: int, token: int, host: str, stream: str, old: int, new: int) -> None:
        key = {"attempt_id": attempt_id, "token": token, "host": host, "stream": stream}
        moved: Any = None
        if old == 0:
            first = self._insert(streams).values(**key, position=new).on_conflict_do_nothing(index_elements=list(key))
            moved = conn.scalar(first.returning(streams.c.position))
        if moved is None:
            where = [streams.c[name] == value for name, value in key.items()]
            query = streams.update().where(*where, streams.c.position == old).values(position=new)
            moved = conn.scalar(query.returning(streams.c.position))
        if moved is None:
            raise StaleWatchError(
                f"{stream} of attempt {attempt_id} on '{host}' is not at byte {old} any more: another follower "
                "has committed it."
            )

    @reads
    def events(self, conn: Connection, attempt_id: int, *, kinds: Sequence[str] | None = None) -> list[EventView]:
        """Return the events of the attempt's current run in the order of their commits.

        :param kinds: only these kinds; None = all
        """
        where = [events.c.attempt_id == attempt_id, events.c.token == _token_of(conn, attempt_id)]
        if kinds is not None:
            where.append(events.c.kind.in_(list(kinds)))
        return [
            EventView(host=row.host, stream=row.stream, seq=row.seq, at=row.at, kind=row.kind, body=row.body)
            for row in conn.execute(sa.select(events).where(*where).order_by(events.c.id))
        ]

    @reads
    def ranks(self, conn: Connection, attempt_id: int) -> list[RankView]:
        """Return the processes of an attempt by rank."""
        query = sa.select(ranks).where(ranks.c.attempt_id == attempt_id).order_by(ranks.c.rank)
        names = ("rank", "host", "local_rank", "slot", "pid", "exit_code", "exited_at", "error", "sent_signal")
        return [
            RankView(
                **{name: getattr(row, name) for name in names},
                log_tail=(row.log_tail or b"").decode("utf-8", errors="replace"),
            )
            for row in conn.execute(query)
        ]


def moment(at: Any) -> datetime:
    """Return Unix seconds as a time; a number that is none becomes the epoch."""
    try:
        return datetime.fromtimestamp(float(at), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _token_of(conn: Connection, attempt_id: int) -> int:
    query = sa.select(allocations.c.token).join(attempts, attempts.c.allocation_id == allocations.c.id)
    return int(conn.scalar(query.where(attempts.c.id == attempt_id)) or 0)


def _started(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], _: int | None) -> None:
    for entry in _entries(event.get("ranks")):
        _update_rank(conn, attempt, event, entry.get("rank"), pid=_integer(entry.get("pid")))


def _exited(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], _: int | None) -> None:
    error, tail = event.get("error"), event.get("log_tail")
    values: dict[str, Any] = {
        "exit_code": _integer(event.get("exit_code")),
        "exited_at": moment(event.get("at")),
        "error": dict(error) if isinstance(error, Mapping) else None,
        "sent_signal": event.get("sent_signal") is True,
    }
    if isinstance(tail, str) and tail:
        encoded = tail.encode("utf-8", errors="replace")[-LOG_TAIL_BYTES:]
        # A longer tail that was followed live stays.
        longer = sa.func.length(sa.func.coalesce(ranks.c.log_tail, b"")) > len(encoded)
        values["log_tail"] = sa.case((longer, ranks.c.log_tail), else_=encoded)
    _update_rank(conn, attempt, event, event.get("rank"), **values)


def _update_rank(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], rank: Any, **values: Any) -> None:
    """Change a rank of the host that sent the event; ranks of other hosts are out of its reach."""
    where = (ranks.c.attempt_id == attempt.id, ranks.c.rank == _integer(rank), ranks.c.host == event["host"])
    conn.execute(ranks.update().where(*where).values(**values))


def _result(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], rank: int | None) -> None:
    if rank == 0:
        values = {"result": {"value": event.get("value")}}
        conn.execute(attempts.update().where(attempts.c.id == attempt.id).values(**values))


def _report(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], rank: int | None) -> None:
    group: MetricGroup = "validation" if event["kind"] == "validation" else "training"
    add_metrics(conn, attempt, group, event, rank=rank or 0, at=moment(event.get("at")))


def _checkpoint(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], _: int | None) -> None:
    add_checkpoint(conn, attempt, event, at=moment(event.get("at")))


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


#: What each kind of event changes besides its own row; other kinds are only stored.
HANDLERS: Mapping[str, Handler] = {
    "started": _started, "exit": _exited, "result": _result, "report": _report, "validation": _report,
    "checkpoint": _checkpoint,
}  # fmt: skip
