"""The first migration, refusal of stores with other tables, and migrations to come."""

from __future__ import annotations

import multiprocessing
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.errors import NotNowError, StoreError, StoreNotMigratedError
from airflow_provider_dtrain.store.database import schema
from airflow_provider_dtrain.store.database.connections import make_engine, parse_url
from airflow_provider_dtrain.store.database.tables import metadata
from airflow_provider_dtrain.store.store import Store, migrate
from testbed.stores import host
from tests.support.next_schema import NEXT_HEAD, add_migration

pytestmark = pytest.mark.each_change


@pytest.fixture
def engine(url):
    engine = make_engine(parse_url(url))
    yield engine
    engine.dispose()


@pytest.fixture
def next_version(url, tmp_path, monkeypatch):
    """The code of a version to come, and a store of this version with a host."""
    store = Store.open(url)
    store.hosts.add(host("a", 2, address="10.0.0.1"))
    store.close()
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    add_migration(folder)
    monkeypatch.setattr(schema, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "HEAD", NEXT_HEAD)


def test_a_store_is_removed_and_other_tables_stay(url, engine):
    store = Store.open(url)
    store.hosts.add(host("a", 2))
    store.close()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE of_another_application (x INTEGER)"))
    engine.dispose()
    removed = schema.drop(url)
    assert removed
    if engine.dialect.name == "postgresql":
        assert sa.inspect(engine).get_table_names() == ["of_another_application"]
        assert "hosts" in removed
    else:
        assert not Path(engine.url.database).exists()
        assert schema.drop(url) == []
    assert [one.name for one in Store.open(migrated(url)).hosts.list()] == [], "it is made anew"


def test_a_database_that_is_no_store_is_left_as_it_is(url, engine):
    assert schema.drop(url), "the database of another application had no store before"
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE hosts (name TEXT)"))
        connection.execute(sa.text("INSERT INTO hosts VALUES ('of another application')"))
    engine.dispose()
    for force in (False, True):
        assert schema.drop(url, force=force) == []
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT name FROM hosts")) == "of another application"


def migrated(url):
    migrate(url)
    return url


def test_a_store_with_gangs_is_removed_by_force_alone(store, url, submit, start):
    store.hosts.add(host("a", 1))
    start(submit())
    with pytest.raises(NotNowError, match=r"1 gang\(s\) hold or want slots"):
        schema.drop(url)
    assert store.hosts.list()
    store.close()
    assert schema.drop(url, force=True)


def test_a_store_of_another_version_is_removed_by_force_alone(url, engine):
    migrate(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0000_old'"))
    engine.dispose()
    with pytest.raises(StoreNotMigratedError, match="add --force"):
        schema.drop(url)
    assert schema.drop(url, force=True)


def rows(engine, table="hosts"):
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}")).mappings()]


def definitions(connection):
    """Return the definitions of all constraints and indexes of the store in the words of the database."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        # A table that a migration has rebuilt may have its parts in another order, and has its name in quotes.
        return {name: sorted(re.split(r",?\s*\n\s*", sql.replace(f'"{name}"', name))) for name, sql in found}
    constraints = """SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = current_schema()::regnamespace"""
    indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
    return {name: text for query in (constraints, indexes) for name, text in connection.execute(sa.text(query))}


def test_the_migrations_make_exactly_the_tables_of_the_code(engine):
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        differences = compare_metadata(context, metadata)
    assert differences == []


def test_the_code_names_the_newest_migration():
    assert ScriptDirectory.from_config(schema.alembic_config()).get_current_head() == schema.HEAD


def test_a_migrated_store_has_every_constraint_and_index_of_the_code(engine):
    """Checks, conditions of indexes and deletions along references, which Alembic does not compare."""
    with engine.connect() as connection:
        migrated = definitions(connection)
        metadata.drop_all(connection)
        metadata.create_all(connection)
        assert definitions(connection) == migrated


def test_the_way_down_removes_every_table(engine):
    config = schema.alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert sa.inspect(engine).get_table_names() == [schema.VERSION_TABLE]
    assert schema.revision(engine) is None


def test_new_defaults_of_the_queue_reach_the_pools_that_have_all_of_the_former_ones(url, engine):
    with closing(Store.open(url)) as store:
        store.hosts.add(host("a", 2, pool="plain"))
        store.hosts.add(host("b", 2, pool="tuned"))
    config = schema.alembic_config()
    with engine.connect() as connection, schema._without_foreign_keys(connection), connection.begin():
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
        connection.execute(sa.text("UPDATE pools SET max_wait_s = 7200 WHERE name = 'tuned'"))
    before = {row["name"]: row for row in rows(engine, "pools")}
    migrate(url)
    after = {row["name"]: row for row in rows(engine, "pools")}
    assert after["tuned"] == before["tuned"]
    changed = {name: value for name, value in after["plain"].items() if value != before["plain"][name]}
    assert changed == {name: getattr(PoolOptions(), name) for name in changed}
    assert set(changed) == {"max_wait_s", "protected_share", "fresh_s", "young_s", "min_run_s"}


@pytest.mark.parametrize("revision", ["0001_38c4c47e", "0007", "9999"])
def test_a_store_with_a_schema_that_the_code_does_not_know_is_refused_and_stays(url, engine, revision):
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{revision}'"))
    before = rows(engine, "meta")
    for refuse in (Store.open, migrate):
        with pytest.raises(StoreNotMigratedError, match=f"schema {revision}, but.*anew: airflow dtrain db migrate$"):
            refuse(url)
    assert schema.revision(engine) == revision
    assert rows(engine, "meta") == before


def test_a_store_of_the_former_version_is_migrated_and_keeps_its_rows(url, engine, next_version):
    [before], slots = rows(engine), rows(engine, "slots")
    if engine.dialect.name == "postgresql":
        with pytest.raises(
            StoreNotMigratedError, match=f"but this version needs {NEXT_HEAD}. Run once: airflow dtrain db"
        ):
            Store.open(url)
        migrate(url)
    Store.open(url).close()
    assert rows(engine) == [{**before, "colour": "red"}]
    assert rows(engine, "slots") == slots
    assert len(slots) == 2


def test_a_migration_that_fails_leaves_the_store_as_it_was(url, engine, next_version, monkeypatch):
    before, former = rows(engine), schema.revision(engine)

    def broken(_connection):
        raise StoreError("the power went")

    monkeypatch.setattr(schema, "_check_foreign_keys", broken)
    with pytest.raises(StoreError, match="the power went"):
        migrate(url)
    assert schema.revision(engine) == former
    assert rows(engine) == before


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_row_that_refers_to_nothing_stops_the_migration_of_a_file(url, engine, next_version):
    former = schema.revision(engine)
    with engine.connect() as connection:
        connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        connection.execute(sa.text("UPDATE slots SET host = 'b' WHERE slot = 1"))
        connection.commit()
    with pytest.raises(StoreError, match="without the row they refer to.*slots"):
        migrate(url)
    assert schema.revision(engine) == former


def _open(url, barrier, results):
    barrier.wait(60)
    store = Store.open(url)
    results.put((store.store_id, [host.name for host in store.hosts.list()]))
    store.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_two_processes_that_open_an_old_file_at_once_migrate_it_once(url, engine, next_version):
    store_id = next(row["value"] for row in rows(engine, "meta") if row["key"] == "store_id")
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_open, args=(url, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found == [(store_id, ["a"])] * 2
