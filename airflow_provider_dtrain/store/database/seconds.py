"""Seconds between times, as columns of SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.connections import UtcDateTime

Column = sa.ColumnElement[Any]


def seconds_between(begin: Column, end: Column, *, is_postgresql: bool) -> Column:
    """Return the seconds from one time to another, rounded to milliseconds. NULL: one of them is NULL."""
    if is_postgresql:
        found: Column = sa.cast(sa.extract("epoch", end) - sa.extract("epoch", begin), sa.Double)
        return found
    days = sa.func.julianday(end, type_=sa.Double) - sa.func.julianday(begin, type_=sa.Double)
    return sa.func.round(days * 86_400.0, 3, type_=sa.Double)


def seconds_since(begin: datetime, end: Column, *, is_postgresql: bool) -> Column:
    """Return the seconds from a time of this process to another one."""
    return seconds_between(sa.literal(begin, UtcDateTime()), end, is_postgresql=is_postgresql)
