"""Gaps, which mark data of hosts that the store omits, and the usage of an attempt's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.quotas import SupervisorKey, Usage, names_of
from airflow_provider_dtrain.store.database.tables import allocations, attempts, events, metrics, streams

GAP = "gap"
#: Most separate gaps of one stream. Later gaps are merged into the last one with the same code.
MOST_GAPS = 100
#: Latest metric rows from which a new follower learns the metric names in use.
NAMES_OF_ROWS = 1000


def usage_of(conn: Connection, attempt_id: int) -> Usage:
    """Return the amounts of data that the ranks of an attempt have stored."""
    of_ranks = (events.c.attempt_id == attempt_id, events.c.stream != "supervisor.events", events.c.kind != GAP)
    query = sa.select(events.c.kind, sa.func.count()).where(*of_ranks).group_by(events.c.kind)
    counts = {str(kind): int(count) for kind, count in conn.execute(query)}
    files = (streams.c.attempt_id == attempt_id, streams.c.stream.like("rank%.events"))
    size = conn.scalar(sa.select(sa.func.coalesce(sa.func.sum(streams.c.position), 0)).where(*files))
    own = metrics.c.attempt_id == attempt_id, metrics.c.metric_group != "builtin"
    rows = sa.select(metrics.c.metrics).where(*own)
    latest = conn.scalars(rows.order_by(metrics.c.id.desc()).limit(NAMES_OF_ROWS))
    return Usage(
        of_supervisors=_of_supervisors(conn, attempt_id),
        events=sum(counts.values()),
        event_bytes=int(size or 0),
        checkpoints=counts.get("checkpoint", 0),
        reports=counts.get("report", 0),
        validations=counts.get("validation", 0),
        builtins=counts.get("builtin", 0),
        names=names_of(latest),
    )


def _of_supervisors(conn: Connection, attempt_id: int) -> dict[SupervisorKey, set[int]]:
    """Return the numbers of the events that the supervisors of an attempt's current run have stored."""
    # Only the rank of an exit is checked to be an integer.
    rank = sa.case((events.c.kind == "exit", events.c.body["rank"].as_integer()))
    query = (
        sa.select(events.c.host, events.c.kind, events.c.seq, rank.label("rank"))
        .join(attempts, attempts.c.id == events.c.attempt_id)
        .join(allocations, allocations.c.id == attempts.c.allocation_id)
        .where(events.c.attempt_id == attempt_id, events.c.token == allocations.c.token)
        .where(events.c.stream == "supervisor.events", events.c.kind != GAP)
    )
    found: dict[SupervisorKey, set[int]] = {}
    for row in conn.execute(query):
        found.setdefault((row.host, row.kind, row.rank), set()).add(row.seq)
    return found


def add_gaps(conn: Connection, key: Mapping[str, Any], marks: Sequence[Mapping[str, Any]]) -> None:
    """Store gaps of one stream, merged with a stored gap where possible.

    A gap is merged if it continues the last one of its code, if its code is a limit, or after ``MOST_GAPS`` gaps.

    :param key: attempt_id, token, host and stream
    :param marks: rows of the table of events
    """
    of = [events.c[name] == value for name, value in key.items()]
    query = sa.select(events.c.id, events.c.body).where(*of, events.c.kind == GAP).order_by(events.c.id)
    known = [(row.id, dict(row.body)) for row in conn.execute(query)]
    for mark in marks:
        found = _extended(known, mark["body"])
        if found is None:
            done = conn.execute(events.insert().values(**mark).returning(events.c.id))
            known.append((done.scalar_one(), dict(mark["body"])))
        else:
            conn.execute(events.update().where(events.c.id == found[0]).values(body=found[1]))


def _extended(known: Sequence[tuple[int, JsonObject]], mark: Mapping[str, Any]) -> tuple[int, JsonObject] | None:
    """Return the stored gap that a new one extends, merged with it, None for a separate gap."""
    code = mark.get("code")
    same = [(of, body) for of, body in known if body.get("code") == code and "bytes" in body]
    if not same:
        return None
    of, body = same[-1]
    is_next = body["offset"] + body["bytes"] == mark["offset"]
    if not is_next and not str(code).endswith("_limit") and len(known) < MOST_GAPS:
        return None
    body.update(bytes=body["bytes"] + mark["bytes"], lines=body["lines"] + mark["lines"], last_at=mark.get("at"))
    return of, body
