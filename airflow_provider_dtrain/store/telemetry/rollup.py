"""Roll-up of telemetry: slices become chunks, and chunks become longer ones with longer intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.points import Key, Points, merged
from airflow_provider_dtrain.core.series.tiers import LATE_S, SLICE, WINDOWS, Tier
from airflow_provider_dtrain.store.database.tables import telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.telemetry.chunk_rows import decoded
from airflow_provider_dtrain.store.telemetry.host_rows import ChunkRow, HostKey, chunks_of, insert_chunks

#: Tier -> the tier that its chunks are made of. Those of the first tier are made of slices.
SOURCES = {Tier.TEN_SECONDS: Tier.SECOND, Tier.MINUTE: Tier.TEN_SECONDS, Tier.TEN_MINUTES: Tier.MINUTE}


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of one host that can be rolled up, with the rows that it is made of."""

    key: HostKey
    tier: Tier
    #: Commits of the host when its rows were read.
    commits: int
    start_s: int
    end_s: int
    #: Ids and data of slices, or of chunks of the tier before.
    sources: Sequence[tuple[int, bytes]]

    def chunks(self) -> list[ChunkRow]:
        """Return the chunks of this window in its tier."""
        parts: dict[Key, list[Points]] = {}
        for row_id, data in self.sources:
            for key, points in decoded(row_id, data).items():
                parts.setdefault(key, []).append(points.between(self.start_s, self.end_s))
        joined = {key: merged(found, int(self.tier)) for key, found in parts.items()}
        return chunks_of({key: points for key, points in joined.items() if points.at}, self.tier, self.start_s)


def next_window(conn: Connection, key: HostKey, tier: Tier, *, is_over: bool) -> Window | None:
    """Return the first window of a host that is not rolled up in a tier, None while it may get further points.

    :param is_over: no further points follow
    """
    host = conn.execute(sa.select(telemetry_hosts).where(*key.where)).one_or_none()
    if host is None:
        return None
    of = telemetry_chunks.c
    # Chunks that are rolled up stay until they are old. Slices do not.
    where = [of.attempt_id == key.attempt_id, of.token == key.token, of.host == key.host, *_is_source(tier)]
    where.append(of.start_s >= _rolled(host, tier))
    first = conn.scalar(sa.select(sa.func.min(of.start_s)).where(*where))
    if first is None:
        return None
    length = WINDOWS[tier].chunk_s
    start = first - first % length
    is_full = start + length <= (_rolled(host, SOURCES[tier]) if tier in SOURCES else host.last_s - LATE_S)
    if not is_full and not is_over:
        return None
    rows = conn.execute(sa.select(of.id, of.data).where(*where, of.start_s < start + length)).all()
    sources = [(int(row.id), bytes(row.data)) for row in rows]
    return Window(key=key, tier=tier, commits=host.commits, start_s=start, end_s=start + length, sources=sources)


def write_window(conn: Connection, window: Window, chunks: Sequence[ChunkRow]) -> bool:
    """Store the chunks of a window in place of its slices, and return False when another writer was faster."""
    of = telemetry_hosts.c
    update = telemetry_hosts.update().where(*window.key.where, of.commits == window.commits)
    values = {"commits": window.commits + 1, _column(window.tier): window.end_s}
    if conn.execute(update.values(values).returning(of.commits)).first() is None:
        return False
    insert_chunks(conn, window.key, chunks)
    if window.tier not in SOURCES:
        gone = telemetry_chunks.c.id.in_([row_id for row_id, _ in window.sources])
        conn.execute(telemetry_chunks.delete().where(gone))
    return True


def _is_source(tier: Tier) -> tuple[sa.ColumnElement[bool], ...]:
    of = telemetry_chunks.c
    if tier in SOURCES:
        return of.metric != SLICE, of.step_s == int(SOURCES[tier])
    return of.metric == SLICE, of.step_s == int(Tier.SECOND)


def _column(tier: Tier) -> str:
    return f"rolled_{int(tier)}_s"


def _rolled(host: sa.Row[Any], tier: Tier) -> int:
    return int(getattr(host, _column(tier)))
