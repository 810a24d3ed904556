"""Short forms for the execution of statements, and the writing transaction of each database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Engine

from airflow_provider_dtrain.store.database.connections import is_pooled
from airflow_provider_dtrain.store.database.durability import local_settings
from airflow_provider_dtrain.store.database.time_limit import limited_write
from airflow_provider_dtrain.store.database.write_queue import write_turn


@dataclass(frozen=True)
class ByDialect:
    """A statement that differs between the databases."""

    sqlite: sa.Executable
    postgresql: sa.Executable


Statement = sa.Executable | ByDialect
Values = Mapping[str, Any]
#: Statements, each with the sets of values for its executions.
Orders = list[tuple[Statement, Sequence[Values]]]


def execute(conn: Connection, statement: Statement, *sets: Values) -> sa.CursorResult[Any]:
    """Execute a statement once per set of values."""
    if isinstance(statement, ByDialect):
        statement = statement.postgresql if conn.dialect.name == "postgresql" else statement.sqlite
    return conn.execute(statement, sets[0] if len(sets) == 1 else sets)


def read(conn: Connection, statements: Sequence[Statement], values: Values) -> list[Sequence[Any]]:
    """Return the rows of several queries with the same values."""
    return [rows(conn, statement, values) for statement in statements]


def rows(conn: Connection, statement: Statement, values: Values) -> Sequence[Any]:
    """Return the rows of a statement."""
    return execute(conn, statement, values).all()


def first(conn: Connection, statement: Statement, values: Values) -> Any:
    """Return the first row of a statement, None without rows."""
    return execute(conn, statement, values).first()


def write(conn: Connection, orders: Orders) -> None:
    """Execute statements whose answers are not needed, each once per set of values."""
    for statement, sets in orders:
        if sets:
            execute(conn, statement, *sets)


def insert(conn: Connection, table: sa.Table, **values: Any) -> int:
    """Insert a row and return its id."""
    key: Any = conn.execute(table.insert().values(values)).inserted_primary_key
    return int(key[0])


def add(conn: Connection, table: sa.Table, *rows: Values) -> None:
    """Insert rows with the same columns, whose ids are not needed."""
    if rows:
        conn.execute(table.insert(), rows)


def add_unless(conn: Connection, table: sa.Table, same: Sequence[str], **values: Any) -> None:
    """Insert a row unless one has the same values in the columns of a unique index."""
    # Both databases spell ON CONFLICT alike.
    conn.execute(postgresql.insert(table).values(values).on_conflict_do_nothing(index_elements=same))


def update(conn: Connection, table: sa.Table, of: int, if_state: str | None = None, **values: Any) -> bool:
    """Set columns of the row with an id, and return whether a row matched.

    :param if_state: only if the row is in this state
    """
    where = [table.c.id == of] if if_state is None else [table.c.id == of, table.c.state == if_state]
    return conn.execute(table.update().where(*where).values(values)).rowcount == 1


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a writing transaction, committed at the end.

    Transactions of SQLite wait their turn among all processes.
    """
    if engine.dialect.name == "sqlite":
        with write_turn(str(engine.url.database)), engine.begin() as conn, limited_write(conn):
            yield conn
        return
    with engine.begin() as conn:
        if is_pooled(conn):
            conn.exec_driver_sql(local_settings())
        with limited_write(conn):
            yield conn
