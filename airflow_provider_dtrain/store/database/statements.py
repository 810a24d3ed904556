"""Statements of the hot path: compiled once per database, run on the driver's own connection.

A transaction of the store has a few small statements. SQLAlchemy's work per execution costs more than SQLite's, and on
PostgreSQL each statement is a round trip. So statements without an answer are deferred on PostgreSQL, and sent together
with the next statement that has one, or with COMMIT.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Dialect, Engine

from airflow_provider_dtrain.store.database.durability import SET_DURABLE_LOCAL
from airflow_provider_dtrain.store.database.write_queue import write_turn

Processor = Callable[[Any], Any]
#: Key in a connection's ``info``: the deferred statements of its transaction.
_UNSENT = "dtrain_unsent"
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
#: Key in a connection's ``info``, set when it goes through a pooler: each transaction may get another session.
POOLED = "dtrain_pooled"
#: Most rows that are inserted one by one. More rows go into one statement.
FEW = 3


#: All statements of the store's modules.
_known: list[Statement] = []


def compile_all(dialect: Dialect) -> None:
    """Compile all statements defined so far, which spares forked processes the work."""
    for statement in tuple(_known):
        statement.form(dialect)


class Statement:
    """One statement with named parameters.

    :param clause: the statement
    :param postgresql: the statement for PostgreSQL, when it differs
    :param keeps: True: row objects are reused for rows that have not changed since the last read; the first column
        identifies a row
    """

    def __init__(
        self, clause: sa.ClauseElement, postgresql: sa.ClauseElement | None = None, *, keeps: bool = False
    ) -> None:
        self._clause = clause
        self._postgresql = postgresql
        self._keeps = keeps
        self._forms: dict[str, _Form] = {}
        _known.append(self)

    def form(self, dialect: Dialect) -> _Form:
        """Return the statement compiled for a database."""
        found = self._forms.get(dialect.name)
        if found is None:
            own = self._postgresql if dialect.name == "postgresql" else None
            found = _Form(self._clause if own is None else own, dialect, keeps=self._keeps)
            self._forms[dialect.name] = found
        return found


class _Form:
    def __init__(self, clause: sa.ClauseElement, dialect: Dialect, *, keeps: bool) -> None:
        compiled: Any = clause.compile(dialect=dialect)
        self.text: str = compiled.string
        order = compiled.positiontup if compiled.positional else compiled.binds
        self.is_positional: bool = compiled.positional
        self._binds: list[tuple[str, Processor | None]] = []
        self._constants: dict[str, Any] = {}
        for name in order:
            bind = compiled.binds[name]
            self._binds.append((name, bind.type.dialect_impl(dialect).bind_processor(dialect)))
            if not bind.required:
                self._constants[name] = bind.effective_value
        self._columns = list(getattr(clause, "exported_columns", ()))
        names = [str(column.key) for column in self._columns]
        self._row: Any = namedtuple("Row", names, rename=True) if names else None
        self._dialect = dialect
        self._processors: list[tuple[int, Processor]] | None = None
        self._has_rows = False
        #: By the first column: a row of the last read as the driver returned it, and the row object made from it.
        self._kept: dict[Any, tuple[Any, Any]] | None = {} if keeps else None

    def bound(self, values: Mapping[str, Any]) -> Any:
        """Return the arguments for the driver.

        :raises KeyError: a value is missing
        """
        given = {**self._constants, **values} if self._constants else values
        if self.is_positional:
            return [given[name] if process is None else process(given[name]) for name, process in self._binds]
        return {name: given[name] if process is None else process(given[name]) for name, process in self._binds}

    def rows(self, cursor: Any) -> list[Any]:
        """Return the rows of a driver's cursor, with values of the columns' types."""
        if self._processors is None:
            # Read once, because psycopg creates an object per column each time.
            description = cursor.description if self._row is not None else None
            self._has_rows = description is not None
            # Assigned last: for other threads it is the mark that both values are known.
            self._processors = self._find_processors(description) if description is not None else []
        if not self._has_rows:
            return []
        if self._kept is not None:
            return self._changed_rows(cursor)
        make = self._row._make if not self._processors else self._made
        return list(map(make, cursor.fetchall()))

    def _changed_rows(self, cursor: Any) -> list[Any]:
        before = self._kept or {}
        kept = {}
        found = cursor.fetchall()
        if not found:
            return []
        for raw in found:
            old = before.get(raw[0])
            kept[raw[0]] = old if old is not None and old[0] == raw else (raw, self._made(raw))
        # Replaced as a whole, because other threads read it.
        self._kept = kept
        return [made for _, made in kept.values()]

    def _made(self, raw: Sequence[Any]) -> Any:
        values = list(raw)
        for place, processor in self._processors or ():
            if values[place] is not None:
                values[place] = processor(values[place])
        return self._row._make(values)

    def _find_processors(self, description: Sequence[Any]) -> list[tuple[int, Processor]]:
        found = []
        for place, (column, described) in enumerate(zip(self._columns, description, strict=True)):
            processor = column.type.dialect_impl(self._dialect).result_processor(self._dialect, described[1])
            if processor is not None:
                found.append((place, processor))
        return found


#: Statements, each with the sets of values for its executions.
Orders = list[tuple[Statement, Sequence[Mapping[str, Any]]]]


def look(engine: Engine, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    """Return the rows of one query, outside any transaction."""
    with engine.connect() as conn:
        return read(conn, (statement,), values)[0]


def read(conn: Connection, statements: Sequence[Statement], values: Mapping[str, Any]) -> list[list[Any]]:
    """Return the rows of several statements, sent together where the driver supports that."""
    forms = [statement.form(conn.dialect) for statement in statements]
    cursors = _ask(conn, [(form, values) for form in forms])
    with raw(conn):
        return [form.rows(cursor) for form, cursor in zip(forms, cursors, strict=True)]


def rows(conn: Connection, statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a statement."""
    return read(conn, (statement,), values)[0]


def first(conn: Connection, statement: Statement, values: Mapping[str, Any]) -> Any:
    """Return the first row of a statement, None without rows."""
    found = read(conn, (statement,), values)[0]
    return found[0] if found else None


def count(conn: Connection, statement: Statement, values: Mapping[str, Any]) -> int:
    """Return the number of rows that a statement changed."""
    return int(_ask(conn, [(statement.form(conn.dialect), values)])[0].rowcount)


def send(conn: Connection, statement: Statement, values: Mapping[str, Any]) -> None:
    """Execute a statement whose answer is not needed."""
    write(conn, [(statement, (values,))])


def write(conn: Connection, orders: Orders) -> None:
    """Execute statements whose answers are not needed, each once per set of values."""
    unsent = conn.info.get(_UNSENT)
    for statement, sets in orders:
        form = statement.form(conn.dialect)
        bound = [form.bound(values) for values in sets]
        if unsent is not None:
            for one in bound:
                _announce(conn, None, form.text, one)
                unsent.append((form.text, one))
        elif len(bound) > 1:
            with raw(conn) as driver:
                cursor = driver.cursor()
                _announce(conn, cursor, form.text, bound, many=True)
                cursor.executemany(form.text, bound)
        elif bound:
            _ask(conn, [(form, sets[0])])


def insert(conn: Connection, table: sa.Table, **values: Any) -> int:
    """Insert a row and return its id."""
    return int(first(conn, _inserting(table, tuple(values)), _named(values))[0])


def add_unless(conn: Connection, table: sa.Table, same: Sequence[str], **values: Any) -> None:
    """Insert a row unless one has the same values in the columns of a unique index."""
    send(conn, _inserting(table, tuple(values), tuple(same)), _named(values))


def add(conn: Connection, table: sa.Table, *rows: Mapping[str, Any]) -> None:
    """Insert rows with the same columns, whose ids are not needed."""
    if len(rows) > FEW and conn.info.get(_UNSENT) is not None:
        # SQLAlchemy turns them into one statement.
        conn.execute(table.insert(), rows)
    elif rows:
        write(conn, [(_inserting(table, tuple(rows[0]), has_answer=False), [_named(row) for row in rows])])


def update(conn: Connection, table: sa.Table, of: int, if_state: str | None = None, **values: Any) -> None:
    """Set columns of the row with an id.

    :param if_state: only if the row is in this state
    """
    send(conn, *_update(table, of, if_state, values))


def updated(conn: Connection, table: sa.Table, of: int, if_state: str | None = None, **values: Any) -> bool:
    """Set columns of the row with an id, and return whether a row matched."""
    return count(conn, *_update(table, of, if_state, values)) == 1


def _update(table: sa.Table, of: int, state: str | None, values: Mapping[str, Any]) -> tuple[Statement, dict[str, Any]]:
    asked = {"if_id": of} if state is None else {"if_id": of, "if_state": state}
    return _updating(table, tuple(asked), tuple(values)), {**asked, **_named(values)}


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    # SQLAlchemy reserves the plain names of columns.
    return {f"new_{name}": value for name, value in values.items()}


@cache
def _inserting(
    table: sa.Table, names: tuple[str, ...], same: tuple[str, ...] = (), *, has_answer: bool = True
) -> Statement:
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in names}
    for column in table.c:
        # Only SQLAlchemy's own execution fills in defaults.
        if column.name not in values and column.default is not None:
            default: Any = column.default
            values[column.name] = sa.literal(default.arg(None) if default.is_callable else default.arg, column.type)
    if same:
        # Both databases spell ON CONFLICT alike.
        return Statement(postgresql.insert(table).values(values).on_conflict_do_nothing(index_elements=same))
    # From Python 3.12 on, sqlite3 refuses RETURNING when it executes a statement for several rows.
    plain = table.insert().values(values)
    return Statement(plain.returning(*table.primary_key) if has_answer else plain)


@cache
def _updating(table: sa.Table, where: tuple[str, ...], names: tuple[str, ...]) -> Statement:
    asked = [table.c[name.removeprefix("if_")] == sa.bindparam(name) for name in where]
    return Statement(table.update().where(*asked).values({name: sa.bindparam(f"new_{name}") for name in names}))


# -- transactions -------------------------------------------------------------------------------
def can_send_together(dialect: Dialect) -> bool:
    """Return whether the driver can send statements without waiting for each answer."""
    return dialect.driver == "psycopg" and bool(dialect.loaded_dbapi.Pipeline.is_supported())


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a writing transaction, committed at the end.

    :param engine: of :func:`writer`
    """
    if engine.dialect.name == "sqlite":
        with write_turn(str(engine.url.database)), engine.begin() as conn:
            yield conn
        return
    with engine.begin() as conn:
        if not conn.get_execution_options().get("dtrain_begins"):
            yield conn
            return
        # Kept in a variable, because a lost connection no longer returns its ``info``.
        books = conn.info
        books[_UNSENT] = [(_BEGIN, None)]
        if books.get(POOLED):
            books[_UNSENT].append((SET_DURABLE_LOCAL, None))
        try:
            yield conn
        except BaseException:
            books.pop(_UNSENT, None)
            raise


def writer(engine: Engine) -> Engine:
    """Return the engine for :func:`transaction`. On PostgreSQL, BEGIN and COMMIT are sent with other statements."""
    if not can_send_together(engine.dialect):
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT", dtrain_begins=True)


def commit(connection: Any) -> None:
    """Commit together with all deferred statements. This replaces the dialect's ``do_commit``.

    :param connection: of the pool
    """
    unsent = connection.info.pop(_UNSENT, None)
    if not unsent:
        connection.commit()
    elif any(text not in (_BEGIN, SET_DURABLE_LOCAL) for text, _ in unsent):
        # If a statement fails, the server skips the rest of the statements that are sent together, including COMMIT.
        _together(connection.dbapi_connection, [*unsent, ("COMMIT", None)])


def send_first(*arguments: Any) -> None:
    """Send deferred statements before SQLAlchemy sends one. This is a listener of its executions."""
    conn = arguments[-1].root_connection
    unsent = conn.info.get(_UNSENT) if conn.get_execution_options().get("dtrain_begins") else None
    if unsent:
        _together(conn.connection.dbapi_connection, unsent)
        unsent.clear()


def _ask(conn: Connection, asked: Sequence[tuple[_Form, Mapping[str, Any]]]) -> list[Any]:
    """Execute statements after all deferred ones, and return their cursors."""
    wanted = [(form.text, form.bound(values)) for form, values in asked]
    for text, values in wanted:
        _announce(conn, None, text, values)
    unsent = conn.info.get(_UNSENT)
    with raw(conn) as driver:
        if can_send_together(conn.dialect) and (unsent or len(wanted) > 1):
            cursors = _together(driver, [*(unsent or ()), *wanted])
            if unsent:
                unsent.clear()
            return cursors[-len(wanted) :]
        cursors = [driver.cursor() for _ in wanted]
        for cursor, (text, values) in zip(cursors, wanted, strict=True):
            cursor.execute(text, values)
        return cursors


def _together(driver: Any, statements: Sequence[tuple[str, Any]]) -> list[Any]:
    """Send statements without waiting for each answer, and return their cursors."""
    with driver.pipeline():
        return [driver.execute(text, values) for text, values in statements]


def _announce(conn: Connection, cursor: Any, text: str, values: Any, *, many: bool = False) -> None:
    """Notify the listeners for the engine's statements."""
    for listener in conn.dispatch.before_cursor_execute:
        listener(conn, cursor, text, values, None, many)


@contextmanager
def raw(conn: Connection) -> Iterator[Any]:
    """Yield the driver's connection, and raise its errors as SQLAlchemy's, as everywhere in the store."""
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
