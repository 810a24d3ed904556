"""One cache of compiled SQL statements for all stores of a test process.

SQLAlchemy compiles each statement once per engine, and each test has an engine of its own: compiling took 40 % of the
store's tests. Its caches are keyed by dialect, so the dialects here are equal if their stores compile alike.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from airflow_provider_dtrain.store.database.connections import dump_json

_COMPILED: dict[Any, Any] = {}


class _Shared:
    """A dialect that equals all others of its class with the store's settings."""

    @property
    def _is_of_a_store(self) -> bool:
        return getattr(self, "_json_serializer", None) is dump_json

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._is_of_a_store and other._is_of_a_store)

    def __hash__(self) -> int:
        return hash(type(self)) if self._is_of_a_store else id(self)

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Let an engine of a store use the cache. SQLAlchemy calls this for each new engine."""
        if engine.dialect._is_of_a_store:
            engine.update_execution_options(compiled_cache=_COMPILED)


class SharedSqlite(_Shared, SQLiteDialect_pysqlite):
    """SQLite, with statements that are compiled once per process."""

    supports_statement_cache = True


class SharedPsycopg(_Shared, PGDialect_psycopg):
    """PostgreSQL, with statements that are compiled once per process."""

    supports_statement_cache = True


def share_compiled_statements() -> None:
    """Make the dialects above those of ``sqlite`` and ``postgresql+psycopg`` in this process."""
    for name in ("sqlite", "sqlite.pysqlite"):
        registry.register(name, __name__, "SharedSqlite")
    registry.register("postgresql.psycopg", __name__, "SharedPsycopg")
