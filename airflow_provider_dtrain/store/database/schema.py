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

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_provider_dtrain.errors import StoreError, StoreNotMigratedError
from airflow_provider_dtrain.store.database.connections import (
    create_sqlite_file,
    file_system_of,
    gate,
    make_engine,
    parse_url,
)
from airflow_provider_dtrain.store.database.tables import counters, meta

log = logging.getLogger(__name__)

#: Every revision that this code knows, oldest first. A test compares them with the migrations folder.
REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
    "0015",
    "0016",
    "0017",
    "0018",
)
HEAD = REVISIONS[-1]
VERSION_TABLE = "dtrain_alembic_version"
MIGRATION_WAIT_S = 60.0
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "ceph", "fuse.glusterfs", "glusterfs"}
)
#: Key in ``meta``. Its value is a revision, a blank, and the oldest revision whose code works with that schema.
USABLE_FROM = "usable_from"
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
    """Check that this code works with the schema of the database.

    It works with its own schema, and with a newer one that only adds to it.

    :raises StoreNotMigratedError: the schema is older, missing, or newer and incompatible
    """
    found = revision(engine)
    if found == HEAD or is_usable(engine, found):
        return
    _refuse_newer(found)
    raise StoreNotMigratedError(
        f"The store has {f'schema {found}' if found else 'no schema yet'}, but this version needs {HEAD}. "
        "Run once: airflow dtrain db migrate"
    )


def is_usable(engine: Engine, found: str | None) -> bool:
    """Return whether a newer schema is recorded as only adding to the schema of this code."""
    if found is None or found in REVISIONS:
        return False
    query = sa.select(meta.c.value).where(meta.c.key == USABLE_FROM)
    with gate.transaction(), engine.execution_options(dtrain_reads=True).connect() as connection:
        told_of, _, oldest = str(connection.scalar(query) or "").partition(" ")
    # A record that an older revision wrote does not apply to a newer schema.
    return told_of == found and oldest in REVISIONS


def migrate(url: str) -> str:
    """Migrate the store at ``url`` to the schema of this code and return its revision. Repeatable.

    Several processes may call it at once: one of them migrates, the rest wait for it.

    :raises StoreNotMigratedError: a newer version created the store
    :raises StoreError: the database cannot be reached or changed
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        create_sqlite_file(Path(str(parsed.database)))
    engine = make_engine(parsed)
    try:
        upgrade(engine)
        return revision(engine) or HEAD
    finally:
        engine.dispose()


def upgrade(engine: Engine) -> None:
    """Migrate an open database to the schema of this code, under its migration lock.

    A newer schema with which this code works is left as it is.

    :raises StoreNotMigratedError: a newer version created the store, and this one does not work with it
    :raises StoreError: the database cannot be reached or changed
    """
    move(engine, HEAD)


def move(engine: Engine, target: str) -> None:
    """Migrate an open database up or down to a revision, under its migration lock.

    :param target: one of ``REVISIONS``; a downgrade loses the data that only the newer schema holds
    :raises StoreNotMigratedError: a newer version created the store, and this one does not work with it
    :raises StoreError: the database cannot be reached or changed
    """
    with gate.transaction():
        try:
            if engine.dialect.name == "sqlite":
                path = Path(str(engine.url.database))
                with _file_lock(path.with_name(path.name + ".migrate")):
                    _refuse_network(path)
                    _move_if_needed(engine, target)
            else:
                with engine.connect() as connection, connection.begin():
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
                    _move_if_needed(engine, target)
        except sa.exc.DBAPIError as error:
            raise StoreError(f"The store could not be migrated: {error.orig}") from error


def _move_if_needed(engine: Engine, target: str) -> None:
    found = revision(engine)
    if found == target or is_usable(engine, found):
        return
    _refuse_newer(found)
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    is_up = found is None or REVISIONS.index(found) < REVISIONS.index(target)
    with engine.connect() as connection, _without_foreign_keys(connection), connection.begin():
        config.attributes["connection"] = connection
        (command.upgrade if is_up else command.downgrade)(config, target)
        _seed(connection)
        _check_foreign_keys(connection)
    log.info("Store migrated from %s to %s", found or "nothing", target)


def note_usable(connection: Connection, found: str, oldest: str) -> None:
    """Record in the store with which code its schema works. Each step of a migration calls it.

    :param found: the revision after the step
    :param oldest: the oldest revision whose code works with that schema
    """
    connection.execute(meta.delete().where(meta.c.key == USABLE_FROM))
    connection.execute(meta.insert().values(key=USABLE_FROM, value=f"{found} {oldest}"))


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


def _refuse_newer(found: str | None) -> None:
    if found is not None and found not in REVISIONS:
        raise StoreNotMigratedError(
            f"The store has schema {found} of a newer version, but this version of airflow-provider-dtrain knows "
            f"{HEAD}: upgrade the provider here."
        )


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
