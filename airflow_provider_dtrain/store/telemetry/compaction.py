"""Compaction of telemetry: the slices of a host are merged into the chunks of every tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.points import Key, Points, merged
from airflow_provider_dtrain.core.series.tiers import SLICE_S, TIERS, by_window
from airflow_provider_dtrain.store.database.tables import telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.telemetry.chunk_rows import decoded
from airflow_provider_dtrain.store.telemetry.host_rows import ChunkRow, TelemetryKey, chunks_of, insert_chunks

#: Slices of one compaction. A host has 60 in ten minutes.
SLICES_MOST = 200

Series = dict[Key, Points]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Slices of one host, and the rows that replace them."""

    key: TelemetryKey
    #: Commits of the host when its slices were read.
    commits: int
    #: Ids of the slices, and of the chunks into which they are merged.
    replaced: Sequence[int]
    chunks: Sequence[ChunkRow]


def next_compaction(conn: Connection, key: TelemetryKey) -> Compaction | None:
    """Return the oldest slices of a host with their chunks, None without slices."""
    of = telemetry_chunks.c
    own = (of.attempt_id == key.attempt_id, of.token == key.token, of.host == key.host)
    commits = conn.scalar(sa.select(telemetry_hosts.c.commits).where(*key.where))
    slices = sa.select(of.id, of.data).where(*own, of.step_s == SLICE_S).order_by(of.start_s).limit(SLICES_MOST)
    rows = conn.execute(slices).all()
    if commits is None or not rows:
        return None
    replaced = [row.id for row in rows]
    series = _joined([decoded(row.id, row.data) for row in rows], 1)
    metrics = list({key.metric for key in series})
    chunks: list[ChunkRow] = []
    for tier in TIERS:
        series = {key: points.reduced(tier.step_s) for key, points in series.items()}
        windows = by_window(series, tier.chunk_s)
        present: dict[int, list[Series]] = {start: [part] for start, part in windows.items()}
        query = sa.select(of.id, of.start_s, of.data).where(
            *own, of.step_s == tier.step_s, of.start_s.in_(list(present)), of.metric.in_(metrics)
        )
        for row in conn.execute(query):
            replaced.append(row.id)
            present[row.start_s].append(decoded(row.id, row.data))
        for start, parts in present.items():
            chunks += chunks_of(_joined(parts, tier.step_s), tier, start)
    return Compaction(key=key, commits=commits, replaced=replaced, chunks=chunks)


def write_compaction(conn: Connection, compaction: Compaction) -> bool:
    """Store the chunks of a compaction in place of its sources, and return False when another writer was faster."""
    of = telemetry_hosts.c
    update = telemetry_hosts.update().where(*compaction.key.where, of.commits == compaction.commits)
    if conn.execute(update.values(commits=compaction.commits + 1).returning(of.commits)).first() is None:
        return False
    conn.execute(telemetry_chunks.delete().where(telemetry_chunks.c.id.in_(compaction.replaced)))
    insert_chunks(conn, compaction.key, compaction.chunks)
    return True


def _joined(parts: Sequence[Series], step_s: int) -> Series:
    found: dict[Key, list[Points]] = {}
    for part in parts:
        for key, points in part.items():
            found.setdefault(key, []).append(points)
    return {key: merged(points, step_s) for key, points in found.items()}
