"""Whether a store has the schema of this code, and how it gets it."""

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
from airflow_provider_dtrain.store.engine import create_sqlite_file, file_system_of, gate, make_engine, parse_url
from airflow_provider_dtrain.store.tables import counters, meta

log = logging.getLogger(__name__)

#: Every revision that this code knows, oldest first. A test compares them with the migrations folder.
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
HEAD = REVISIONS[-1]
VERSION_TABLE = "dtrain_alembic_version"
MIGRATION_WAIT_S = 60.0
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "ceph", "fuse.glusterfs", "glusterfs"}
)
#: Key in ``meta``: a revision and, behind a blank, the oldest revision whose code works with its schema.
USABLE_FROM = "usable_from"
#: A number of our own among PostgreSQL's advisory locks.
ADVISORY_LOCK = 0x6474_7261_696E


def revision(engine: Engine) -> str | None:
    """Return the schema revision of a database, None when it has no schema of ours.

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
    """Return when this code works with the schema of the database: its own, or a newer one that only adds to it.

    :raises StoreNotMigratedError: it has an older one, none, or a newer one that this code does not work with
    """
    found = revision(engine)
    if found == HEAD or is_usable(engine, found):
        return
    _refuse_newer(found)
    raise StoreNotMigratedError(
        f"The store has {f'schema {found}' if found else 'no schema yet'}, this version needs {HEAD}. "
        "Run once: airflow dtrain db migrate"
    )


def is_usable(engine: Engine, found: str | None) -> bool:
    """Return whether a newer version made the schema, and says that it only added to what this code knows."""
    if found is None or found in REVISIONS:
        return False
    query = sa.select(meta.c.value).where(meta.c.key == USABLE_FROM)
    with gate.transaction(), engine.execution_options(dtrain_reads=True).connect() as connection:
        told_of, _, oldest = str(connection.scalar(query) or "").partition(" ")
    # What an older revision wrote says nothing of a newer one.
    return told_of == found and oldest in REVISIONS


def migrate(url: str) -> str:
    """Bring the store at ``url`` to the schema of this code; return its revision. Repeatable.

    Any number of processes may call it at once: one works, the others wait for it.

    :raises StoreNotMigratedError: the store was made by a newer version
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
    """Bring an open database to the schema of this code, under its migration lock.

    A newer schema with which this code works is left as it is.

    :raises StoreNotMigratedError: the store was made by a newer version, and this one does not work with it
    :raises StoreError: the database cannot be reached or changed
    """
    move(engine, HEAD)


def move(engine: Engine, target: str) -> None:
    """Bring an open database up or down to a revision, under its migration lock.

    :param target: one of ``REVISIONS``; one below the present loses what only the newer schema holds
    :raises StoreNotMigratedError: the store was made by a newer version, and this one does not work with it
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
    """Write into the store with which code its schema works; called by each step of a migration.

    :param found: the revision that the step has made
    :param oldest: the oldest revision whose code works with it
    """
    connection.execute(meta.delete().where(meta.c.key == USABLE_FROM))
    connection.execute(meta.insert().values(key=USABLE_FROM, value=f"{found} {oldest}"))


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Switch SQLite's foreign keys off, which works outside of transactions only.

    A table that is rebuilt is dropped first: with them on, its rows' dependants would go with it.
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
            f"The migration would leave {len(broken)} rows without the row they refer to (tables {tables}). Nothing "
            "was changed. Keep a copy of the file and report this."
        )


def _seed(connection: Connection) -> None:
    if connection.scalar(sa.select(meta.c.value).where(meta.c.key == "store_id")) is None:
        connection.execute(meta.insert().values(key="store_id", value=str(uuid.uuid4())))
        connection.execute(counters.insert().values(name="token", value=0))


def _refuse_newer(found: str | None) -> None:
    if found is not None and found not in REVISIONS:
        raise StoreNotMigratedError(
            f"The store has schema {found}, this version of airflow-provider-dtrain knows {HEAD}. "
            "A newer version made it: upgrade the provider here."
        )


def _refuse_network(path: Path) -> None:
    kind = file_system_of(path.resolve())
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"The store {path} lies on {kind}; SQLite needs a file system of this machine. "
            "Move it, or use PostgreSQL in [dtrain] sql_alchemy_conn."
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
                        "See which one: fuser -v " + str(path)
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
