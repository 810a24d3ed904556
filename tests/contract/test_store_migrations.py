"""Up- and downgrades of stores with data. Code and schema of neighbouring versions work together."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import StoreError, StoreNotMigratedError
from airflow_provider_dtrain.store.database import schema
from airflow_provider_dtrain.store.database.connections import create_sqlite_file, make_engine, parse_url
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from testbed.stores import host
from tests.contract.rows_0001 import ROWS, STORE_ID, at, contents, fill, reflected
from tests.support.search_world import Search

pytestmark = pytest.mark.each_change


@pytest.fixture
def old_url(empty_url):
    """The URL of a store of revision 0001 with a team's data."""
    if empty_url.startswith("sqlite"):
        create_sqlite_file(Path(empty_url.removeprefix("sqlite:///")))
    engine = make_engine(parse_url(empty_url))
    schema.move(engine, "0001")
    fill(engine)
    engine.dispose()
    return empty_url


@pytest.fixture
def old_engine(old_url):
    engine = make_engine(parse_url(old_url))
    yield engine
    engine.dispose()


def moved(engine, target):
    schema.move(engine, target)
    assert schema.revision(engine) == target


def test_a_store_with_data_goes_up_step_by_step_and_keeps_every_value(old_engine):
    tables = reflected(old_engine)
    before = contents(old_engine)
    assert {name: len(rows) for name, rows in before.items()} == {name: len(rows) for name, rows in ROWS.items()}
    for revision in schema.REVISIONS[1:]:
        moved(old_engine, revision)
        assert contents(old_engine, like=tables) == before
    row = contents(old_engine)["allocations"][1]
    new = {name: row[name] for name in set(row) - set(before["allocations"][1])}
    assert new["held_s"] == new["waited_s"] == 0
    assert (new["paused"], new["has_checkpoint"], new["expected"]) == (False, False, "")
    pool = contents(old_engine)["pools"][0]
    assert (pool["max_wait_s"], pool["protected_share"], pool["min_run_s"]) == (129_600, 0.6, 1800)


def test_a_store_that_went_up_and_down_is_the_store_it_was(old_engine):
    tables, before = reflected(old_engine), contents(old_engine)
    columns = {name: sorted(table.columns.keys()) for name, table in tables.tables.items()}
    moved(old_engine, schema.HEAD)
    for revision in reversed(schema.REVISIONS[:-1]):
        moved(old_engine, revision)
    assert contents(old_engine) == before
    assert {name: sorted(table.columns.keys()) for name, table in reflected(old_engine).tables.items()} == columns
    moved(old_engine, schema.HEAD)
    assert contents(old_engine, like=tables) == before


def test_indexes_and_foreign_keys_are_the_same_after_a_way_down(old_engine):
    def shape():
        look = sa.inspect(old_engine)
        names = [name for name in sorted(look.get_table_names()) if not name.startswith("dtrain_")]
        keys = {name: {(*key["constrained_columns"], key["referred_table"]) for key in look.get_foreign_keys(name)}
                for name in names}  # fmt: skip
        unique = {name: {tuple(one["column_names"]) for one in look.get_unique_constraints(name)} for name in names}
        return keys, unique, {name: {index["name"] for index in look.get_indexes(name)} for name in names}

    before = shape()
    moved(old_engine, schema.HEAD)
    moved(old_engine, "0001")
    assert shape() == before


def test_the_new_code_goes_on_with_what_an_old_store_holds(old_url):
    migrate(old_url)
    store = Store.open(old_url)
    assert store.store_id == STORE_ID
    running = store.attempts.get(2)
    assert (running.run, running.placement, running.started_at) == (f"{STORE_ID[:8]}-t2.1.2", {"a": (0, 1)}, at(3))
    assert store.events.offsets(2)[("a", "rank0.events")] == 2**40
    watch = store.attempts.watch(2, watcher="new code")
    store.queue.release(2, watch, "a", proof="clear")
    store.attempts.end(2, watch, state="completed", result={"value": 2})
    waiting = store.attempts.watch(3, watcher="new code")
    store.queue.renew(3, waiting)
    assert store.queue.schedule("gpus").granted == (3,)
    assert store.queue.take_up(3, waiting) == f"{STORE_ID[:8]}-t3.1.5"
    store.close()


def test_going_down_brings_what_is_new_into_states_that_the_old_code_knows(old_engine):
    moved(old_engine, "0003")
    tables = reflected(old_engine).tables
    with old_engine.begin() as connection:
        connection.execute(tables["attempts"].update().where(tables["attempts"].c.id == 1).values(state="preempted"))
        connection.execute(tables["trials"].update().where(tables["trials"].c.id == 3).values(state="paused"))
        connection.execute(tables["allocations"].update().where(tables["allocations"].c.id == 2).values(trial_id=None))
        row = dict(ROWS["allocations"][2], id=9, trial_id=None, preempted_for=3)
        connection.execute(tables["allocations"].insert(), row)
        slot = {"id": 99, "allocation_id": 9, "token": 9, "host": "a", "slot": 7, "released_at": None, "proof": None}
        connection.execute(tables["allocation_slots"].insert(), slot)
        gang = {"allocation_id": 9, "dag_id": "d", "run_id": "r", "task_id": "g", "map_index": -1, "max_tries": 0}
        connection.execute(tables["gangs"].insert(), {**gang, "watch": 0, "unclear": []})
        victim = tables["allocations"].c.id == 1
        connection.execute(tables["allocations"].update().where(victim).values(preempted_for=9))
    moved(old_engine, "0002")
    found = contents(old_engine)
    assert [row["state"] for row in found["attempts"]] == ["lost", "running", "waiting", "lost"]
    assert [row["state"] for row in found["trials"]] == ["completed", "running", "queued", "errored"]
    # The gang that trial 2 used is its own again. The unused gang is deleted with its slots.
    assert [(row["id"], row["trial_id"]) for row in found["allocations"]] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert [row["id"] for row in found["allocation_slots"]] == [4, 5, 8, 9, 20, 21]


@pytest.mark.nightly
def test_a_search_goes_with_its_rungs_on_the_way_down_and_its_trials_stay(url):
    store = Store.open(url)
    store.hosts.add(host("a", 2))
    search = Search(store)
    search.plan(max_trials=2)
    ticket = search.start(0)
    search.ask(ticket, 1, 0.5)
    store.experiments.stop(search.view.experiment_id, "ann")
    store.close()
    engine = make_engine(parse_url(url))
    moved(engine, "0003")
    tables = reflected(engine).tables
    assert not {"searches", "rung_entries"} & set(tables)
    assert not {"search_id", "is_drawn", "best_metric", "stop_requested_at"} & set(tables["trials"].columns.keys())
    assert not {"wish", "wished_by"} & set(tables["experiments"].columns.keys())
    assert [(row["id"], row["hparams"], row["state"]) for row in contents(engine)["trials"]] == [
        (ticket.trial_id, {"lr": 0}, "running")
    ]
    moved(engine, schema.HEAD)
    engine.dispose()
    store = Store.open(url)
    trial = store.trials.get(ticket.trial_id)
    assert (trial.search_id, trial.rung, trial.is_drawn, trial.is_cleared) == (None, None, True, False)
    store.close()


def test_a_trial_of_a_task_that_was_cleared_counts_no_longer_after_the_way_up(old_engine):
    moved(old_engine, "0003")
    newer = {**ROWS["trials"][0], "id": 9, "max_tries": 2, "created_at": at(30)}
    tables = reflected(old_engine).tables
    with old_engine.begin() as connection:
        connection.execute(tables["trials"].insert(), newer)
    moved(old_engine, schema.HEAD)
    found = {row["id"]: row["cleared_at"] for row in contents(old_engine)["trials"]}
    assert found == {1: at(30), 2: None, 3: None, 4: None, 9: None}


def test_a_migration_that_fails_leaves_the_store_as_it_was(old_engine, monkeypatch):
    before = contents(old_engine)

    def broken(_connection):
        raise StoreError("the power went")

    monkeypatch.setattr(schema, "_check_foreign_keys", broken)
    with pytest.raises(StoreError, match="the power went"):
        schema.move(old_engine, schema.HEAD)
    assert schema.revision(old_engine) == "0001"
    assert contents(old_engine) == before


def test_a_row_that_refers_to_nothing_stops_the_migration_of_a_file(tmp_path):
    engine = make_engine(parse_url(f"sqlite:///{tmp_path}/s.db"))
    create_sqlite_file(tmp_path / "s.db")
    schema.move(engine, "0001")
    fill(engine)
    with engine.connect() as connection:
        connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        connection.execute(sa.text("UPDATE attempts SET trial_id = 77 WHERE id = 1"))
        connection.commit()
    with pytest.raises(StoreError, match="without the row they refer to.*attempts"):
        schema.move(engine, schema.HEAD)
    assert schema.revision(engine) == "0001"
    engine.dispose()


def _open(url, barrier, results):
    barrier.wait(60)
    store = Store.open(url)
    results.put((store.store_id, store.attempts.get(2).placement, len(store.trials.list())))
    store.close()


def test_two_processes_that_open_an_old_file_at_once_migrate_it_once(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    create_sqlite_file(tmp_path / "s.db")
    engine = make_engine(parse_url(url))
    schema.move(engine, "0001")
    fill(engine)
    engine.dispose()
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_open, args=(url, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found == [(STORE_ID, {"a": (0, 1)}, 4)] * 2


# -- neighbouring versions ------------------------------------------------------------------------------


def test_the_former_versions_statements_work_on_the_new_schema(empty_url):
    """Every row that the former code writes, with all columns that it knows and no other."""
    if empty_url.startswith("sqlite"):
        create_sqlite_file(Path(empty_url.removeprefix("sqlite:///")))
    engine = make_engine(parse_url(empty_url))
    moved(engine, schema.REVISIONS[-2])
    former = reflected(engine)
    moved(engine, schema.HEAD)
    with engine.begin() as connection:
        connection.execute(former.tables["meta"].delete())
        connection.execute(former.tables["counters"].delete())
        for name, rows in ROWS.items():
            connection.execute(former.tables[name].insert(), rows)
    found = contents(engine, like=former)
    assert {name: [{key: row[key] for key in old} for row, old in zip(found[name], ROWS[name], strict=True)]
            for name in ("trials", "allocations", "attempts", "hosts", "experiments")} == {
        name: ROWS[name] for name in ("trials", "allocations", "attempts", "hosts", "experiments")}  # fmt: skip
    with engine.begin() as connection:
        for name in reversed(ROWS):
            table = former.tables[name]
            key = next(iter(table.primary_key.columns))
            connection.execute(table.update().values({key: key}))
            connection.execute(table.delete())
    engine.dispose()


def newer(url, *, usable_from):
    """Make the store one of a version to come, which added a column and a table."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE trials ADD COLUMN colour TEXT DEFAULT 'red' NOT NULL"))
        connection.execute(sa.text("CREATE TABLE colours (name TEXT PRIMARY KEY)"))
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9000'"))
        schema.note_usable(connection, "9000", usable_from)
    engine.dispose()


def test_this_code_works_with_a_newer_schema_that_only_adds(url):
    newer(url, usable_from=schema.HEAD)
    assert migrate(url) == "9000"
    store = Store.open(url)
    store.hosts.add(host("a", 2))
    config = store.configs.put({}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id="t")
    ticket = store.trials.submit(TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=2))
    watch = store.attempts.watch(ticket.attempt_id, watcher="old code")
    assert store.queue.schedule("gpus").granted == (ticket.allocation_id,)
    assert store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_running(ticket.attempt_id, watch)
    store.queue.release(ticket.attempt_id, watch, "a", proof="clear")
    store.attempts.end(ticket.attempt_id, watch, state="completed")
    check = next(check for check in store.check() if check.name == "schema")
    assert (check.ok, "a newer version added to it" in check.message) == (True, True)
    store.close()


def test_code_that_is_too_old_for_a_newer_schema_is_refused(url):
    newer(url, usable_from="8999")
    with pytest.raises(StoreNotMigratedError, match="9000.*upgrade the provider"):
        Store.open(url)
    with pytest.raises(StoreNotMigratedError, match="9000"):
        migrate(url)


FORMER = """
import sys
from airflow_provider_dtrain.store.database import schema
schema.REVISIONS = schema.REVISIONS[:-1]
schema.HEAD = schema.REVISIONS[-1]
from airflow_provider_dtrain.store.store import Store
store = Store.open(sys.argv[1])
print(store.store_id, schema.revision(store.db.engine))
"""


def test_a_process_of_the_former_version_opens_a_store_that_was_migrated_meanwhile(url):
    root = str(Path(schema.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", FORMER, url],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    store = Store.open(url)
    assert (done.stdout.split(), done.stderr) == ([store.store_id, schema.HEAD], "")
    store.close()


@pytest.mark.nightly
@pytest.mark.parametrize("revision", schema.REVISIONS)
def test_every_step_says_with_which_code_its_schema_works(old_engine, revision):
    moved(old_engine, schema.HEAD)
    moved(old_engine, revision)
    with old_engine.connect() as connection:
        value = connection.scalar(sa.text("SELECT value FROM meta WHERE key = 'usable_from'"))
    told_of, oldest = value.split()
    assert told_of == revision
    assert oldest in schema.REVISIONS[: schema.REVISIONS.index(revision) + 1]
