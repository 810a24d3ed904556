"""A reported commit is on disk: settings of every connection, and the error when they cannot be set."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import StoreError
from airflow_provider_dtrain.store.database import durability
from airflow_provider_dtrain.store.store import Store, migrate

pytestmark = pytest.mark.each_change

PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def values(connection):
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}


@pytest.fixture
def careless(tmp_path):
    """A connection that would lose commits."""
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    for pragma in ("journal_mode=DELETE", "synchronous=OFF", "foreign_keys=OFF"):
        connection.execute(f"PRAGMA {pragma}")
    yield connection
    connection.close()


def test_every_connection_of_a_sqlite_store_is_durable(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/dtrain.db")
    with store.db.engine.connect() as one, store.db.engine.connect() as another:
        for connection in (one, another):
            assert values(connection.connection.driver_connection) == PRAGMAS
    store.close()


def test_a_careless_connection_is_made_durable(careless):
    durability.configure_sqlite(careless, "x.db")
    assert values(careless) == PRAGMAS


def test_a_store_that_came_back_without_its_log_gets_one_again(tmp_path):
    """A copy made by other tools may be in another journal mode."""
    url = f"sqlite:///{tmp_path}/dtrain.db"
    migrate(url)
    with sqlite3.connect(tmp_path / "dtrain.db") as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    store = Store.open(url)
    assert {check.name: check.message for check in store.check()}["journal"] == "wal"
    store.close()


@pytest.mark.parametrize("name", PRAGMAS)
def test_a_pragma_that_sqlite_does_not_obey_is_an_error_that_names_it(careless, name):
    def ignore(action, argument, value, *_):
        is_set = action == sqlite3.SQLITE_PRAGMA and argument == name and value is not None
        return sqlite3.SQLITE_IGNORE if is_set else sqlite3.SQLITE_OK

    careless.set_authorizer(ignore)
    with pytest.raises(StoreError, match=rf"x\.db needs PRAGMA {name}=\w+, but SQLite keeps "):
        durability.configure_sqlite(careless, "x.db")


def test_a_file_system_without_shared_memory_is_refused_by_name(tmp_path):
    """SQLite's dot-file locks stand for it: with them it has no shared memory, and keeps the old journal."""
    connection = sqlite3.connect(f"file:{tmp_path}/x.db?vfs=unix-dotfile", uri=True, isolation_level=None)
    with pytest.raises(StoreError, match=r"journal_mode=WAL, but SQLite keeps 'delete'\. A file system .* local disk"):
        durability.configure_sqlite(connection, f"{tmp_path}/x.db")
    connection.close()


@pytest.mark.parametrize(("default", "kept"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_a_session_of_postgresql_commits_durably_whatever_the_default_is(postgresql, default, kept):
    with postgresql.new_store() as url:
        store = Store.open(f"{url}?options=-csynchronous_commit%3D{default}")
        with store.db.engine.connect() as connection:
            assert connection.scalar(sa.text("SHOW synchronous_commit")) == kept
        store.close()


def test_a_server_that_does_not_obey_is_an_error_that_names_the_setting():
    answer = SimpleNamespace(ntuples=1, get_value=lambda *_: b"off")
    connection = SimpleNamespace(pgconn=SimpleNamespace(exec_=lambda _: answer))
    with pytest.raises(StoreError, match=r"needs synchronous_commit 'on'.*keeps 'off'"):
        durability.configure_psycopg(connection)
