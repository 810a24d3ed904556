"""Schema of the store: its revisions, their check and their migration."""

from __future__ import annotations

import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.errors import NotNowError, StoreError, StoreNotMigratedError
from airflow_provider_dtrain.store.database.connections import (
    create_sqlite_file,
    file_system_of,
    gate,
    make_engine,
    parse_url,
)
from airflow_provider_dtrain.store.database.tables import allocations, counters, meta, metadata

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

#: The newest revision in ``migrations/versions``. Reading it there would import Alembic in every process.
HEAD = "0002"
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "dtrain_alembic_version"
MIGRATION_WAIT_S = 60.0
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "ceph", "fuse.glusterfs", "glusterfs"}
)
#: Number of the provider's lock among PostgreSQL's advisory locks.
ADVISORY_LOCK = 0x6474_7261_696E


def revision(engine: Engine) -> str | None:
    """Return the schema revision of a database, None when it has no schema of the provider.

    :raises StoreError: the database cannot be reached
    """
    with gate.transaction():
        try:
            with engine.execution_options(dtrain_reads=True).connect() as connection:
                found = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
                return None if found is None else str(found)
        except sa.exc.DBAPIError as error:
            if _is_missing_table(error):
                return None
            raise StoreError(f"The store cannot be read: {error.orig}") from error


def require_current(engine: Engine) -> None:
    """Check that the database has the schema of this code.

    :raises StoreNotMigratedError: the schema is missing or another one
    """
    found = revision(engine)
    if found == HEAD:
        return
    _refuse_unknown(found)
    raise StoreNotMigratedError(
        f"The store has {f'schema {found}' if found else 'no schema yet'}, but this version needs {HEAD}. "
        "Run once: airflow dtrain db migrate"
    )


def migrate(url: str) -> str:
    """Migrate the store at ``url`` to the schema of this code and return its revision. Repeatable.

    Several processes may call it at once: one of them migrates, the rest wait for it.

    :raises StoreNotMigratedError: the store has a schema that this code does not know
    :raises StoreError: the database cannot be reached or changed
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        create_sqlite_file(Path(str(parsed.database)))
    engine = make_engine(parsed)
    try:
        upgrade(engine)
        return HEAD
    finally:
        engine.dispose()


def upgrade(engine: Engine) -> None:
    """Migrate an open database to the schema of this code, under its migration lock.

    :raises StoreNotMigratedError: the store has a schema that this code does not know
    :raises StoreError: the database cannot be reached or changed
    """
    with gate.transaction():
        try:
            if engine.dialect.name == "sqlite":
                path = Path(str(engine.url.database))
                with _file_lock(path.with_name(path.name + ".migrate")):
                    _refuse_network(path)
                    _upgrade_if_needed(engine)
            else:
                with engine.connect() as connection, connection.begin():
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
                    _upgrade_if_needed(engine)
        except sa.exc.DBAPIError as error:
            raise StoreError(f"The store could not be migrated: {error.orig}") from error


def drop(url: str, *, force: bool = False) -> list[str]:
    """Remove the tables of the provider and the files of a SQLite store, and return what was removed.

    Tables of other applications in the same database stay, and so does a database that is no store.

    :param force: also while gangs hold slots, and with a schema of another version
    :raises NotNowError: gangs hold or want slots
    :raises StoreNotMigratedError: another version made the store, so that this one cannot see whether gangs hold slots
    :raises StoreError: the database cannot be reached or changed
    """
    parsed = parse_url(url)
    path = Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None
    if path is not None and not path.exists():
        return []
    engine = make_engine(parsed)
    try:
        found = revision(engine)
        if found is None:
            # It is no store, whatever tables it has.
            return []
        if found != HEAD and not force:
            raise StoreNotMigratedError(
                f"The store has schema {found} and this version knows {HEAD}, so whether trials run is unknown. "
                "If none does, add --force."
            )
        with gate.transaction(), engine.connect() as connection, connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
            if found == HEAD and not force:
                _refuse_held(connection)
            names = [table.name for table in metadata.sorted_tables]
            there = set(sa.inspect(connection).get_table_names())
            metadata.drop_all(connection)
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {VERSION_TABLE}"))
            removed = [name for name in [*names, VERSION_TABLE] if name in there]
    except sa.exc.DBAPIError as error:
        raise StoreError(f"The store could not be removed: {error.orig}") from error
    finally:
        engine.dispose()
    if path is None:
        return removed
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-queue", ".migrate")]
    left = [file for file in files if file.exists()]
    for file in left:
        file.unlink(missing_ok=True)
    return [str(file) for file in left]


def _refuse_held(connection: Connection) -> None:
    count = connection.scalar(
        sa.select(sa.func.count()).select_from(allocations).where(allocations.c.state != AllocationState.RELEASED)
    )
    if count:
        raise NotNowError(
            f"{count} gang(s) hold or want slots. Wait for them, or kill their trials (airflow dtrain queue list). "
            "With --force, their processes on hosts end themselves after orphan_timeout."
        )


def _upgrade_if_needed(engine: Engine) -> None:
    found = revision(engine)
    if found == HEAD:
        return
    _refuse_unknown(found)
    from alembic import command

    config = alembic_config()
    with engine.connect() as connection, _without_foreign_keys(connection), connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, HEAD)
        _seed(connection)
        _check_foreign_keys(connection)
    log.info("Store migrated from %s to %s", found or "nothing", HEAD)


def alembic_config() -> Config:
    """Return Alembic's configuration, without a connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _refuse_unknown(found: str | None) -> None:
    if found is None:
        return
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(alembic_config())
    if found not in {script.revision for script in scripts.walk_revisions()}:
        raise StoreNotMigratedError(
            f"The store has schema {found}, but this version of airflow-provider-dtrain knows {HEAD}. If a newer "
            "version migrated the store, upgrade the provider here, or restore the backup of the store from before. "
            "A store from before the first release cannot be migrated: move it away, or name an empty database in "
            "[dtrain] sql_alchemy_conn, and then create it anew: airflow dtrain db migrate"
        )


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Switch SQLite's foreign keys off, which works only outside of transactions.

    A table that is rebuilt is dropped first. With foreign keys on, that would delete the rows that refer to it.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    raw = connection.connection.cursor()
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")
        raw.close()


def _check_foreign_keys(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if broken:
        tables = ", ".join(sorted({str(row[0]) for row in broken}))
        raise StoreError(
            f"The migration would leave {len(broken)} rows without the row they refer to (tables {tables}). It "
            "changed nothing. Keep a copy of the file and report this."
        )


def _seed(connection: Connection) -> None:
    if connection.scalar(sa.select(meta.c.value).where(meta.c.key == "store_id")) is None:
        connection.execute(meta.insert().values(key="store_id", value=str(uuid.uuid4())))
        connection.execute(counters.insert().values(name="token", value=0))


def _refuse_network(path: Path) -> None:
    kind = file_system_of(path.resolve())
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"The store {path} is on {kind}, but SQLite needs a local file system. "
            "Move it to a local disk, or use PostgreSQL in [dtrain] sql_alchemy_conn."
        )


def _is_missing_table(error: sa.exc.DBAPIError) -> bool:
    return "no such table" in str(error.orig) or getattr(error.orig, "sqlstate", None) == "42P01"


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + MIGRATION_WAIT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"Another process has been migrating the store for {MIGRATION_WAIT_S:.0f} s ({path}). "
                        "Find the process: fuser -v " + str(path)
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
