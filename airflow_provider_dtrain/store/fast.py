"""Statements of the hot path: compiled once per database, run on the driver's own connection.

A pass is a few small statements. What SQLAlchemy does for each execution costs more than SQLite does, and on
PostgreSQL each statement is a round trip; here they are sent together. Transactions stay with SQLAlchemy.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect, Engine

Processor = Callable[[Any], Any]


class Statement:
    """One statement with named parameters."""

    def __init__(self, clause: sa.ClauseElement) -> None:
        self._clause = clause
        self._forms: dict[str, _Form] = {}

    def form(self, dialect: Dialect) -> _Form:
        """Return the statement as a database takes it."""
        if dialect.name not in self._forms:
            self._forms[dialect.name] = _Form(self._clause, dialect)
        return self._forms[dialect.name]


class _Form:
    def __init__(self, clause: sa.ClauseElement, dialect: Dialect) -> None:
        compiled: Any = clause.compile(dialect=dialect)
        self.text: str = compiled.string
        order = compiled.positiontup if compiled.positional else compiled.binds
        self.is_positional: bool = compiled.positional
        self._binds: list[tuple[str, Any, Processor | None]] = [
            (
                name,
                compiled.binds[name].effective_value,
                compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect),
            )
            for name in order
        ]
        self._columns = list(getattr(clause, "exported_columns", ()))
        names = [str(column.key) for column in self._columns]
        self._row: Any = namedtuple("Row", names, rename=True) if names else None
        self._dialect = dialect
        self._processors: list[tuple[int, Processor]] | None = None

    def bound(self, values: Mapping[str, Any]) -> Any:
        """Return the arguments for the driver."""
        found = []
        for name, constant, processor in self._binds:
            value = values.get(name, constant)
            found.append((name, value if processor is None else processor(value)))
        return [value for _, value in found] if self.is_positional else dict(found)

    def rows(self, cursor: Any) -> list[Any]:
        """Return what a cursor of the driver has found, with values of the columns' types."""
        if self._processors is None:
            self._processors = self._find_processors(cursor.description)
        make, processors = self._row._make, self._processors
        found = []
        for row in cursor.fetchall():
            values = list(row)
            for place, processor in processors:
                if values[place] is not None:
                    values[place] = processor(values[place])
            found.append(make(values))
        return found

    def _find_processors(self, description: Sequence[Any]) -> list[tuple[int, Processor]]:
        found = []
        for place, (column, described) in enumerate(zip(self._columns, description, strict=True)):
            processor = column.type.dialect_impl(self._dialect).result_processor(self._dialect, described[1])
            if processor is not None:
                found.append((place, processor))
        return found


#: Statements, each with the sets of values that it is executed with.
Orders = list[tuple[Statement, Sequence[Mapping[str, Any]]]]


def look(engine: Engine, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    """Return the rows of one query, outside any transaction."""
    with engine.connect() as conn:
        return read(conn, (statement,), values)[0]


def read(conn: Connection, statements: Sequence[Statement], values: Mapping[str, Any]) -> list[list[Any]]:
    """Return the rows of several queries, which are sent together where the driver can."""
    forms = [statement.form(conn.dialect) for statement in statements]
    with _driver(conn) as driver:
        cursors = [driver.cursor() for _ in forms]
        with _together(driver, conn.dialect) if len(forms) > 1 else nullcontext():
            for form, cursor in zip(forms, cursors, strict=True):
                _execute(conn, cursor, form.text, form.bound(values))
        return [form.rows(cursor) for form, cursor in zip(forms, cursors, strict=True)]


def write(conn: Connection, orders: Orders) -> None:
    """Execute statements, each once per set of values; sent together where the driver can."""
    with _driver(conn) as driver, _together(driver, conn.dialect):
        for statement, sets in orders:
            form = statement.form(conn.dialect)
            if len(sets) == 1:
                _execute(conn, driver.cursor(), form.text, form.bound(sets[0]))
            elif sets:
                _execute(conn, driver.cursor(), form.text, [form.bound(values) for values in sets], many=True)


def _execute(conn: Connection, cursor: Any, text: str, values: Any, *, many: bool = False) -> None:
    """Execute a statement; whoever listens to the engine's statements hears of it."""
    for listener in conn.dispatch.before_cursor_execute:
        listener(conn, cursor, text, values, None, many)
    (cursor.executemany if many else cursor.execute)(text, values)


def _together(driver: Any, dialect: Dialect) -> AbstractContextManager[Any]:
    """Return what makes statements wait for no answer until all are sent."""
    can = dialect.driver == "psycopg" and dialect.loaded_dbapi.Pipeline.is_supported()
    return driver.pipeline() if can else nullcontext()


@contextmanager
def _driver(conn: Connection) -> Iterator[Any]:
    """Yield the driver's connection; its errors become SQLAlchemy's, as everywhere in the store."""
    dialect = conn.dialect
    dbapi: Any = dialect.loaded_dbapi
    driver = conn.connection.dbapi_connection
    try:
        yield driver
    except dbapi.Error as error:
        is_lost = dialect.is_disconnect(error, driver, None)
        if is_lost:
            conn.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            None, None, error, dbapi.Error, hide_parameters=True, connection_invalidated=is_lost, dialect=dialect
        ) from error
