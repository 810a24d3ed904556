"""Building blocks of the store's tests: a clock, a PostgreSQL server, hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_dtrain.store.database.tables import metadata
from airflow_provider_dtrain.store.store import Store

TABLES = metadata.sorted_tables


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def until(is_so: Callable[[], object], deadline_s: float = 60.0) -> None:
    """Return once something is so.

    :raises AssertionError: it was not within the time
    """
    give_up_at = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < give_up_at, "it did not become so in time"
        time.sleep(0.002)


Rows = dict[str, list[dict[str, Any]]]


def copy_of(store: Store) -> Rows:
    """Return all rows of a store, as a replica has them that receives no further commits."""
    with store.db.engine.connect() as connection:
        return {table.name: [dict(row._mapping) for row in connection.execute(table.select())] for table in TABLES}


def set_back(store: Store, rows: Rows) -> None:
    """Replace the rows of a store by an earlier copy, as after a failover."""
    with store.db.engine.begin() as connection:
        for table in reversed(TABLES):
            connection.execute(table.delete())
        for table in TABLES:
            if rows[table.name]:
                connection.execute(table.insert(), rows[table.name])
