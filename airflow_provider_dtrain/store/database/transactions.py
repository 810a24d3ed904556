"""Shared parts of the store's components: the database, transactions, guards, audit."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from airflow_provider_dtrain.errors import (
    NotFoundError,
    StaleWatchError,
    StoreError,
    StoreSetBackError,
    StoreUnavailableError,
    UserError,
)
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import dump_json, gate, utcnow
from airflow_provider_dtrain.store.database.notifications import POOL_CHANGED
from airflow_provider_dtrain.store.database.rows import AllocationRow, AttemptRow, PoolRow
from airflow_provider_dtrain.store.database.statements import ByDialect, Statement
from airflow_provider_dtrain.store.database.tables import allocations, attempts, audit, pools
from airflow_provider_dtrain.store.database.time_limit import check_each_statement, limited_read
from airflow_provider_dtrain.store.meter import Fact, Meter, Metric, NoMeter

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Component")

#: PostgreSQL: serialization failure, deadlock, and the unique violation of two transactions that insert the same row.
RETRIED = frozenset({"40001", "40P01", "23505"})
TRIES = 5
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: Key of a connection's facts.
_FACTS = "dtrain_facts"


class Database:
    """The database of an open store, which all its components share.

    :param clock: returns the current time as aware UTC; tests pass their own
    :param meter: receives metrics of committed changes
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utcnow, meter: Meter | None = None) -> None:
        self.engine = engine
        check_each_statement(engine)
        self.clock = clock
        self.meter: Meter = meter or NoMeter()
        # READ COMMITTED gives each statement its own snapshot: BEGIN and ROLLBACK around reads would only add two
        # round trips.
        alone = {"isolation_level": "AUTOCOMMIT"} if engine.dialect.name == "postgresql" else {}
        self.reader = engine.execution_options(dtrain_reads=True, **alone)

    def now(self) -> datetime:
        """Return the current time as aware UTC."""
        return self.clock()

    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that supports ON CONFLICT, which both databases spell alike."""
        return sqlite.insert(table) if self.engine.dialect.name == "sqlite" else postgresql.insert(table)

    def audit(self, conn: Connection, by: str, action: str, subject: str, details: str = "") -> None:
        """Write an audit row: the user, the action and its subject."""
        conn.execute(audit.insert().values(at=self.now(), by=by, action=action, subject=subject, details=details))


def count(conn: Connection, metric: Metric, by: int = 1, **tags: str) -> None:
    """Raise a counter once the transaction is committed."""
    conn.info.setdefault(_FACTS, []).append(Fact(metric=metric, by=by, tags=tags))


class Component(Protocol):
    """A part of the store whose methods are transactions."""

    @property
    def db(self) -> Database:
        """The database that the methods read and write."""


def writes(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method as one writing transaction, with the connection as its first argument.

    The method may run several times, so it must change nothing but the database. A connection that is lost before
    COMMIT is replaced. A connection that is lost at COMMIT is an error, because the changes may be committed.
    """

    @functools.wraps(method)
    def transaction(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in range(TRIES):
            is_done = False
            try:
                with gate.transaction(), statements.transaction(self.db.engine) as conn:
                    # A transaction that was undone leaves its facts on the connection.
                    conn.info.pop(_FACTS, None)
                    result = method(self, conn, *args, **kwargs)
                    facts: list[Fact] = conn.info.pop(_FACTS, [])
                    is_done = True
                for fact in facts:
                    self.db.meter.count(fact.metric, fact.by, fact.tags)
                return result
            except sa.exc.DBAPIError as error:
                is_undone = _is_lost(error) and not is_done
                may_repeat = is_undone or getattr(error.orig, "sqlstate", None) in RETRIED
                if not may_repeat or attempt == TRIES - 1:
                    raise _store_error(error) from error
            except (sa.exc.StatementError, sa.exc.TimeoutError) as error:
                raise _store_error(error) from error
            except OverflowError as error:
                # SQLite's driver raises it for integers of more than 64 bits.
                raise StoreError(f"The store cannot hold this value: {error}") from error
        raise AssertionError("unreachable")

    return cast("Callable[Concatenate[S, P], T]", transaction)


def reading(work: Callable[[], T]) -> T:
    """Return the result of a read, and raise the database's errors as errors of the store.

    Forks wait until the read is over.

    :param work: the read; runs again with a new connection when its connection was lost
    """
    for attempt in range(TRIES):
        try:
            with gate.transaction():
                return work()
        except (sa.exc.StatementError, sa.exc.TimeoutError) as error:
            if not _is_lost(error) or attempt == TRIES - 1:
                raise _store_error(error) from error
        except OverflowError as error:
            raise StoreError(f"The store cannot hold this value: {error}") from error
    raise AssertionError("unreachable")


def reads(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Run a method as one reading transaction, with the connection as its first argument."""

    @functools.wraps(method)
    def transaction(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            with self.db.reader.begin() as conn, limited_read(conn):
                return method(self, conn, *args, **kwargs)

        return reading(work)

    return cast("Callable[Concatenate[S, P], T]", transaction)


def _is_lost(error: sa.exc.SQLAlchemyError) -> bool:
    """Return whether the connection was lost, so that a retry on a new one may succeed."""
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def _store_error(error: sa.exc.SQLAlchemyError) -> StoreError:
    # Only the cause, because the parameters of the statement may be secret.
    cause = str(getattr(error, "orig", None) or error).strip()
    if not isinstance(error, sa.exc.DBAPIError | sa.exc.TimeoutError):
        return StoreError(f"The store cannot hold this value: {cause}")
    if "database is locked" in cause:
        cause += " (another process has been writing for 30 s)"
    passing = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)
    return (StoreUnavailableError if passing else StoreError)(f"The store refused a transaction: {cause}")


def digest_of(*parts: Any) -> str:
    """Return the sha256 of JSON values and bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else dump_json(_sorted(part)).encode()
        digest.update(f"{type(part) is bytes}:{len(data)}:".encode() + data)
    return digest.hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def check_name(kind: str, name: str) -> str:
    """Return a valid name unchanged.

    :raises UserError: the name breaks the rule for names of hosts, pools and templates
    """
    if not NAME.fullmatch(name) or ".." in name:
        raise UserError(
            f"The name of a {kind} must be 1 to 63 letters, digits, '_', '.' and '-', begin with a letter or digit, "
            f"and not contain '..', got {name!r}."
        )
    return name


_POOL: sa.BindParameter[str] = sa.bindparam("pool_name")
_ATTEMPT: sa.BindParameter[int] = sa.bindparam("attempt_id")
_LOCK_POOL = sa.select(pools).where(pools.c.name == _POOL).with_for_update()
_POOL_OF = (
    sa.select(allocations.c.pool)
    .join(attempts, attempts.c.allocation_id == allocations.c.id)
    .where(attempts.c.id == _ATTEMPT)
)
#: All requests of a trial are in the same pool, so the pool that was read before the lock is still valid after it.
_LOCK_POOL_OF = sa.select(pools).where(pools.c.name == _POOL_OF.scalar_subquery()).with_for_update()
_RAISED = pools.update().where(pools.c.name == _POOL).values(version=pools.c.version + 1)
#: On PostgreSQL the same statement sends the notification.
_BUMP = ByDialect(_RAISED, _RAISED.returning(POOL_CHANGED))
#: Without the plan, which is large, and which no caller of the guard reads.
_GUARD = (
    sa.select(*(column for column in attempts.c if column.name not in {"plan", "master"}))
    .where(attempts.c.id == _ATTEMPT, attempts.c.watch == sa.bindparam("watch"))
    .with_for_update()
)
_WATCH = sa.select(attempts.c.watch).where(attempts.c.id == _ATTEMPT)
_GANG_OF = (
    sa.select(allocations).join(attempts, attempts.c.allocation_id == allocations.c.id).where(attempts.c.id == _ATTEMPT)
)


def lock_pool(conn: Connection, name: str) -> PoolRow:
    """Return the pool's row, locked.

    This is the first statement of each transaction that changes a scheduling decision.

    :raises NotFoundError: the pool does not exist; the message lists the existing ones
    """
    row: PoolRow | None = statements.first(conn, _LOCK_POOL, {"pool_name": name})
    if row is None:
        known = sorted(conn.scalars(sa.select(pools.c.name)))
        raise NotFoundError(
            f"There is no pool '{name}'. "
            + (
                f"Pools: {', '.join(known)}."
                if known
                else "Add a host to create it: airflow dtrain hosts add, or name a scheduler: pools set"
            )
        )
    return row


def lock_pool_of(conn: Connection, attempt_id: int) -> PoolRow:
    """Return the row of the pool of an attempt's request, locked.

    A pool is locked before any row that belongs to it.

    :raises NotFoundError: the attempt does not exist
    """
    row: PoolRow | None = statements.first(conn, _LOCK_POOL_OF, {"attempt_id": attempt_id})
    if row is None:
        raise NotFoundError(f"There is no attempt {attempt_id}.")
    return row


def bump(conn: Connection, pool: str) -> None:
    """Raise the version of a pool, because its next pass may decide differently."""
    statements.execute(conn, _BUMP, {"pool_name": pool})


def guard(conn: Connection, attempt_id: int, watch: int) -> AttemptRow:
    """Return the attempt's row without its plan, locked until the end of the transaction.

    :raises StaleWatchError: another process has taken the attempt over
    """
    row: AttemptRow | None = statements.first(conn, _GUARD, {"attempt_id": attempt_id, "watch": watch})
    return row if row is not None else _refuse(conn, attempt_id, watch)


def check_watch(conn: Connection, attempt_id: int, watch: int) -> None:
    """Check that a watch is current, without a lock: the caller's own rows show a second writer.

    :raises NotFoundError: the attempt does not exist
    :raises StaleWatchError: another process has taken the attempt over
    """
    row = statements.first(conn, _WATCH, {"attempt_id": attempt_id})
    if row is None or row.watch != watch:
        _refuse(conn, attempt_id, watch)


def guard_gang(conn: Connection, attempt_id: int, watch: int) -> tuple[AttemptRow, AllocationRow]:
    """Return the rows of an attempt and of its allocation, the attempt's row locked.

    :raises StaleWatchError: another process has taken the attempt over
    """
    values = {"attempt_id": attempt_id, "watch": watch}
    mine, gangs = statements.read(conn, (_GUARD, _GANG_OF), values)
    return (mine[0] if mine else _refuse(conn, attempt_id, watch)), gangs[0]


def lock_gang(
    conn: Connection, attempt_id: int, watch: int, *more: Statement
) -> tuple[AttemptRow, AllocationRow, list[Sequence[Any]]]:
    """Return the rows of an attempt and of its allocation, with their pool and the attempt locked.

    :param more: queries by ``attempt_id`` that run with the same lock; their rows come third
    :raises NotFoundError: the attempt does not exist
    :raises StaleWatchError: another process has taken the attempt over
    """
    values = {"attempt_id": attempt_id, "watch": watch}
    found, mine, gangs, *rest = statements.read(conn, (_LOCK_POOL_OF, _GUARD, _GANG_OF, *more), values)
    if not found:
        raise NotFoundError(f"There is no attempt {attempt_id}.")
    return (mine[0] if mine else _refuse(conn, attempt_id, watch)), gangs[0], rest


def _refuse(conn: Connection, attempt_id: int, watch: int) -> AttemptRow:
    found = conn.execute(
        sa.select(attempts.c.watch, attempts.c.watcher).where(attempts.c.id == attempt_id)
    ).one_or_none()
    if found is None:
        raise NotFoundError(f"There is no attempt {attempt_id}.")
    if found.watch < watch:
        raise set_back(attempt_id, f"its watch is {found.watch} in the store, but was {watch}")
    raise StaleWatchError(
        f"Attempt {attempt_id} is followed under watch {found.watch} ({found.watcher}): this process still holds "
        f"watch {watch} and must stop."
    )


def set_back(attempt_id: int, message: str) -> StoreSetBackError:
    """Return the error for a follower whose commits the store has lost.

    :param message: the evidence, for the message
    """
    return StoreSetBackError(f"The store has lost the last commits of attempt {attempt_id}: {message}.")
