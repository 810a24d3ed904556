"""Sparklines of hosts and GPUs, from one row per host and attempt."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.utilization import MINUTE_S, MINUTES, Utilization
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.tables import telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import Sparkline

#: Hosts that one statement names.
HOSTS_PER_STATEMENT = 500


class _Minutes(NamedTuple):
    """Utilization of one host or GPU in an attempt, per minute.

    :param start: number of the first minute
    :param first_s: first second that was measured, and the last one
    """

    start: int
    values: Sequence[float | None]
    first_s: int
    last_s: int

    def measured(self) -> Iterator[tuple[int, float, int]]:
        """Yield minute, value, and seconds of the minute in which the attempt was measured."""
        for minute, value in enumerate(self.values, self.start):
            if value is not None:
                begin, end = minute * MINUTE_S, (minute + 1) * MINUTE_S
                yield minute, value, max(1, min(end, self.last_s + 1) - max(begin, self.first_s))


#: Mean of a minute or interval, and the seconds that it is the mean of; 0: nothing was measured.
_Mean = tuple[float, int]
_NOTHING: _Mean = (0.0, 0)


def find_sparklines(
    conn: Connection, hosts: Collection[str], since: datetime, now: datetime, points: int
) -> list[Sparkline]:
    """Return the mean utilization of hosts and GPUs from a time on, in at most ``points`` intervals."""
    if not 1 <= points <= MINUTES:
        raise UserError(f"points must be from 1 to {MINUTES}, got {points}: the store has a value per minute.")
    last = math.ceil(now.timestamp() / MINUTE_S) - 1
    # Rounded, because the caller read the clock earlier: 60 points of an hour are minutes.
    minutes = min(MINUTES, max(1, round((now - since) / timedelta(seconds=MINUTE_S))))
    width = -(-minutes // points)
    first = last + 1 - width * -(-minutes // width)
    rows: dict[tuple[str, str, str], list[_Minutes]] = {}
    for host, key, part in _stored(conn, sorted(set(hosts)), now):
        rows.setdefault((host, key[1], key[0]), []).append(part)
    start = datetime.fromtimestamp(first * MINUTE_S, UTC)
    found = []
    for (host, device, metric), parts in sorted(rows.items()):
        mean = _grouped(_joined(parts, first, last), width)
        if any(value is not None for value in mean):
            found.append(
                Sparkline(host=host, device=device, metric=metric, start=start, step_s=width * MINUTE_S, mean=mean)
            )
    return found


def _stored(conn: Connection, hosts: Sequence[str], now: datetime) -> Iterator[tuple[str, tuple[str, str], _Minutes]]:
    """Yield host, metric and device, and the minutes of an attempt."""
    of = telemetry_hosts.c
    since = now - timedelta(minutes=MINUTES)
    columns = (of.host, of.utilization, of.first_s, of.last_s)
    for start in range(0, len(hosts), HOSTS_PER_STATEMENT):
        where = (of.host.in_(hosts[start : start + HOSTS_PER_STATEMENT]), of.updated_at >= since)
        for row in conn.execute(sa.select(*columns).where(*where)):
            utilization = Utilization.parse(row.utilization)
            for key, values in utilization.rows().items():
                yield str(row.host), key, _Minutes(utilization.last - MINUTES + 1, values, row.first_s, row.last_s)


def _joined(parts: Sequence[_Minutes], first: int, last: int) -> list[_Mean]:
    """Return one mean per minute from several attempts.

    The last minute, of which only some seconds may be known, is left out if an earlier one is known.
    """
    by_minute: list[list[_Mean]] = [[] for _ in range(first, last + 1)]
    for part in parts:
        for minute, value, seconds in part.measured():
            if first <= minute <= last:
                by_minute[minute - first].append((value, seconds))
    found = [_mean(values) for values in by_minute]
    if found[-1][1] < MINUTE_S and any(seconds for _, seconds in found[:-1]):
        found[-1] = _NOTHING
    # Attempts that share a host at the same time do not make the minute longer.
    return [(value, min(seconds, MINUTE_S)) for value, seconds in found]


def _grouped(minutes: Sequence[_Mean], width: int) -> list[float | None]:
    means = [_mean(minutes[start : start + width]) for start in range(0, len(minutes), width)]
    return [round(value, 1) if seconds else None for value, seconds in means]


def _mean(values: Sequence[_Mean]) -> _Mean:
    """Return the mean of some means, each weighted with the seconds that it is the mean of."""
    seconds = sum(known for _, known in values)
    return (sum(value * known for value, known in values) / seconds, seconds) if seconds else _NOTHING
