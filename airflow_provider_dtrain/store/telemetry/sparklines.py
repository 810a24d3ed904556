"""Utilization of hosts and GPUs per minute, a chunk in the row of each host, and the sparklines that are made of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.chunk import ChunkError, decode, encode
from airflow_provider_dtrain.core.series.points import Key, Points, merged
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.tables import telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import Sparkline

#: Minutes that are kept.
MINUTES = 120
MINUTE_S = 60
METRICS = ("cpu_util", "gpu_util")
#: Metrics of which only the latest minutes are kept, for the heat map. No older value is shown as a present one.
LATEST = ("memory_available", "gpu_free_memory", "gpu_temperature", "gpu_power")
LATEST_MINUTES = 3
#: Hosts that one statement names.
HOSTS_PER_STATEMENT = 500


def with_utilization(data: bytes | None, series: Mapping[Key, Points]) -> bytes:
    """Return the chunk of the last minutes with further points.

    :param data: the chunk before, None for the first one
    """
    new = {key: points for key, points in series.items() if key.metric in METRICS + LATEST}
    if not new and data is not None:
        return data
    known = _known(data)
    found = {
        key: merged([part[key] for part in (known, new) if key in part], MINUTE_S)
        for key in dict.fromkeys((*known, *new))
    }
    last = max((points.at[-1] for points in found.values()), default=0)
    kept = {key: points.between(last - (_minutes(key) - 1) * MINUTE_S, last + 1) for key, points in found.items()}
    # A GPU without a point is one that another attempt uses now. Equal columns take one byte.
    return encode({key: Points(one.at, one.count, *[one.mean] * 3) for key, one in kept.items() if one.at})


def _minutes(key: Key) -> int:
    return MINUTES if key.metric in METRICS else LATEST_MINUTES


def _known(data: bytes | None) -> dict[Key, Points]:
    try:
        return {} if data is None else decode(data)
    except ChunkError:
        return {}


def find_sparklines(
    conn: Connection, hosts: Collection[str], since: datetime, now: datetime, points: int
) -> list[Sparkline]:
    """Return the mean utilization of hosts and GPUs from a time on, in at most ``points`` intervals."""
    if not 1 <= points <= MINUTES:
        raise UserError(f"points must be from 1 to {MINUTES}, got {points}: the store has a value per minute.")
    end_s = MINUTE_S * math.ceil(now.timestamp() / MINUTE_S)
    # Rounded, because the caller read the clock earlier: 60 points of an hour are minutes.
    minutes = min(MINUTES, max(1, round((now - since) / timedelta(seconds=MINUTE_S))))
    step_s = MINUTE_S * -(-minutes // points)
    start_s = end_s - step_s * -(-minutes * MINUTE_S // step_s)
    parts: dict[tuple[str, str, str], list[Points]] = {}
    for host, key, part in _stored(conn, sorted(set(hosts)), now - timedelta(minutes=MINUTES)):
        if key.metric not in METRICS:
            continue
        parts.setdefault((host, key.device, key.metric), []).append(part)
    start = datetime.fromtimestamp(start_s, UTC)
    found = []
    for (host, device, metric), some in sorted(parts.items()):
        known = _without_open(merged(some, MINUTE_S).between(start_s, end_s), now)
        if known.at:
            mean = _means(known, range(start_s, end_s, step_s))
            found.append(Sparkline(host=host, device=device, metric=metric, start=start, step_s=step_s, mean=mean))
    return found


def find_latest(conn: Connection, hosts: Collection[str], now: datetime) -> dict[tuple[str, str, str], float]:
    """Return (host, device, metric) -> mean of the latest minute, of hosts that were measured in the last minutes."""
    since = now - timedelta(minutes=LATEST_MINUTES)
    found: dict[tuple[str, str, str], list[Points]] = {}
    for host, key, part in _stored(conn, sorted(set(hosts)), since):
        found.setdefault((host, key.device, key.metric), []).append(part)
    latest = {}
    for name, parts in found.items():
        known = merged(parts, MINUTE_S).between(
            math.floor(since.timestamp()) - MINUTE_S, math.ceil(now.timestamp()) + 1
        )
        if known.at:
            latest[name] = known.mean[-1]
    return latest


def _stored(conn: Connection, hosts: Sequence[str], since: datetime) -> Iterator[tuple[str, Key, Points]]:
    """Yield host and series, and the minutes of an attempt, for attempts that have reported since a time."""
    of = telemetry_hosts.c
    for start in range(0, len(hosts), HOSTS_PER_STATEMENT):
        where = (of.host.in_(hosts[start : start + HOSTS_PER_STATEMENT]), of.updated_at >= since)
        for row in conn.execute(sa.select(of.host, of.utilization).where(*where)):
            for key, points in _known(row.utilization).items():
                yield row.host, key, points


def _without_open(minutes: Points, now: datetime) -> Points:
    """Return the minutes without one that is not over, unless it is the only one."""
    is_open = len(minutes) > 1 and minutes.at[-1] + MINUTE_S > now.timestamp()
    return minutes.between(0, minutes.at[-1]) if is_open else minutes


def _means(minutes: Points, intervals: range) -> list[float | None]:
    """Return the mean of each interval, with the weight of the samples of each minute."""
    sums, counts = [0.0] * len(intervals), [0] * len(intervals)
    for at, count, mean in zip(minutes.at, minutes.count, minutes.mean, strict=True):
        index = (at - intervals.start) // intervals.step
        sums[index] += count * mean
        counts[index] += count
    return [round(total / count, 1) if count else None for total, count in zip(sums, counts, strict=True)]
