"""Execution of the store's statements by SQLAlchemy Core alone, to compare with ``store.database.statements``.

:func:`install` replaces three functions. Core compiles each statement once and caches it, makes its own rows, and waits
for each answer on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.statements import Orders, Statement


def install() -> None:
    """Replace the execution of statements in this process."""
    statements.read, statements.count, statements.write = read, count, write
    statements.writer = lambda engine: engine


@cache
def clause(statement: Statement, dialect: str) -> tuple[sa.ClauseElement, tuple[str, ...]]:
    """Return the statement for a database, and the names of its parameters."""
    own = statement._postgresql if dialect == "postgresql" else None
    found: Any = statement._clause if own is None else own
    binds = found.compile(dialect=sa.make_url(f"{dialect}://").get_dialect()()).binds
    return found, tuple(name for name, bind in binds.items() if bind.required)


def execute(conn: Connection, statement: Statement, *sets: Mapping[str, Any]) -> sa.CursorResult[Any]:
    found, names = clause(statement, conn.dialect.name)
    values = [{name: one[name] for name in names} for one in sets]
    return conn.execute(found, values if len(values) > 1 else values[0])  # type: ignore[call-overload, no-any-return]


def read(conn: Connection, asked: Sequence[Statement], values: Mapping[str, Any]) -> list[list[Any]]:
    results = [execute(conn, statement, values) for statement in asked]
    return [list(result.all()) if result.returns_rows else [] for result in results]


def count(conn: Connection, statement: Statement, values: Mapping[str, Any]) -> int:
    return int(execute(conn, statement, values).rowcount)


def write(conn: Connection, orders: Orders) -> None:
    for statement, sets in orders:
        if sets:
            execute(conn, statement, *sets)
