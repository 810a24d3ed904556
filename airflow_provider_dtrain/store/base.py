"""What the store's methods share: transactions, guards, audit."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, Row

from airflow_provider_dtrain.errors import NotFoundError, StaleWatchError, StoreError, StoreUnavailableError, UserError
from airflow_provider_dtrain.store.engine import dump_json, gate, utcnow
from airflow_provider_dtrain.store.notify import pool_changed
from airflow_provider_dtrain.store.tables import attempts, audit, pools

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Base")

#: PostgreSQL: serialization failure, deadlock, and the unique violation of two who insert the same row.
RETRIED = frozenset({"40001", "40P01", "23505"})
TRIES = 5
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
UNFINISHED = ("waiting", "starting", "running", "stopping")
LIVE_ALLOCATION = ("waiting", "granted", "starting", "running", "stopping")


class Base:
    """An open store.

    :param clock: gives the present as aware UTC; tests bring their own
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utcnow) -> None:
        self._engine, self._clock = engine, clock
        # READ COMMITTED gives each statement its own view: BEGIN and ROLLBACK around reads would be two round trips.
        alone = {"isolation_level": "AUTOCOMMIT"} if engine.dialect.name == "postgresql" else {}
        self._reader = engine.execution_options(dtrain_reads=True, **alone)

    def _now(self) -> datetime:
        return self._clock()

    def _insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that knows ON CONFLICT, which both databases spell alike."""
        return sqlite.insert(table) if self._engine.dialect.name == "sqlite" else postgresql.insert(table)

    def _note(self, conn: Connection, by: str, action: str, subject: str, details: str = "") -> None:
        """Record who did what."""
        conn.execute(audit.insert().values(at=self._now(), by=by, action=action, subject=subject, details=details))


def writes(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method one writing transaction; it gets the connection as its first argument.

    The method may run several times, so it changes nothing but the database.
    """

    @functools.wraps(method)
    def transaction(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in range(TRIES):
            try:
                with gate.transaction(), self._engine.begin() as conn:
                    return method(self, conn, *args, **kwargs)
            except sa.exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in RETRIED or attempt == TRIES - 1:
                    raise _store_error(error) from error
            except (sa.exc.StatementError, sa.exc.TimeoutError) as error:
                raise _store_error(error) from error
        raise AssertionError("unreachable")

    return cast("Callable[Concatenate[S, P], T]", transaction)


def store_errors(work: Callable[[], T]) -> T:
    """Return what a piece of work returns, with the database's errors as the store's; forks are held off."""
    try:
        with gate.transaction():
            return work()
    except (sa.exc.StatementError, sa.exc.TimeoutError) as error:
        raise _store_error(error) from error


def reads(method: Callable[Concatenate[S, Connection, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method one reading transaction; it gets the connection as its first argument."""

    @functools.wraps(method)
    def transaction(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with gate.transaction(), self._reader.begin() as conn:
                return method(self, conn, *args, **kwargs)
        except (sa.exc.StatementError, sa.exc.TimeoutError) as error:
            raise _store_error(error) from error

    return cast("Callable[Concatenate[S, P], T]", transaction)


def _store_error(error: sa.exc.SQLAlchemyError) -> StoreError:
    # Only the cause: the statement's parameters may be secret.
    cause = str(getattr(error, "orig", None) or error).strip()
    if not isinstance(error, sa.exc.DBAPIError | sa.exc.TimeoutError):
        return StoreError(f"The store cannot hold this value: {cause}")
    if "database is locked" in cause:
        cause += ": another process has been writing for 30 s"
    passing = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError)
    return (StoreUnavailableError if passing else StoreError)(f"The store refused a transaction: {cause}")


def digest_of(*parts: Any) -> str:
    """Return a sha256 over JSON values and bytes."""
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
    """Return the name.

    :raises UserError: it breaks the rule for names of hosts, pools and templates
    """
    if not NAME.fullmatch(name) or ".." in name:
        raise UserError(
            f"{name!r} cannot be the name of a {kind}: 1 to 63 letters, digits, '_', '.' and '-', "
            "beginning with a letter or digit, without '..'."
        )
    return name


def lock_pool(conn: Connection, name: str) -> Row[Any]:
    """Return the pool's row, locked: the first statement of whatever changes a scheduling decision.

    :raises NotFoundError: no such pool; lists those that exist
    """
    row = conn.execute(sa.select(pools).where(pools.c.name == name).with_for_update()).one_or_none()
    if row is None:
        known = sorted(conn.scalars(sa.select(pools.c.name)))
        raise NotFoundError(
            f"There is no pool '{name}'. "
            + (f"Pools: {', '.join(known)}." if known else "A pool is made by its first host: airflow dtrain hosts add")
        )
    return row


def bump(conn: Connection, pool: str) -> None:
    """Note that the next pass of the pool may decide differently."""
    raised = pools.update().where(pools.c.name == pool).values(version=pools.c.version + 1)
    told = pool_changed(conn.dialect.name, pool)
    conn.execute(raised.returning(*told) if told else raised)


def guard(conn: Connection, attempt_id: int, watch: int) -> Row[Any]:
    """Return the attempt's row, locked until the end of the transaction.

    :raises StaleWatchError: somebody else has taken the watch
    """
    row = conn.execute(
        sa.select(attempts).where(attempts.c.id == attempt_id, attempts.c.watch == watch).with_for_update()
    ).one_or_none()
    if row is None:
        found = conn.execute(
            sa.select(attempts.c.watch, attempts.c.watcher).where(attempts.c.id == attempt_id)
        ).one_or_none()
        if found is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        raise StaleWatchError(
            f"Attempt {attempt_id} is followed under watch {found.watch} ({found.watcher}), not {watch}: stop here."
        )
    return row
