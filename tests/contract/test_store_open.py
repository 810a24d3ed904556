"""Opening, migration and checks of a store, and its behaviour after a fork."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_dtrain.errors import StoreError, StoreNotMigratedError
from airflow_provider_dtrain.store.database import schema
from airflow_provider_dtrain.store.store import Store, migrate

pytestmark = pytest.mark.each_change


def test_migrating_twice_keeps_the_identity(empty_url):
    assert migrate(empty_url) == schema.HEAD
    first = Store.open(empty_url)
    assert migrate(empty_url) == schema.HEAD
    second = Store.open(empty_url)
    assert first.store_id == second.store_id
    first.close()
    second.close()


def test_postgresql_names_the_command_that_migrates(postgresql):
    with pytest.raises(StoreNotMigratedError, match="airflow dtrain db migrate"):
        Store.open(postgresql.new_database())


def test_everything_about_a_new_store_checks_out(store):
    checks = store.check()
    assert {check.name for check in checks} >= {"schema"}
    assert [check for check in checks if not check.ok] == []


def _open_and_put(url, number, results):
    store = Store.open(url)
    store.payloads.put(f"{number:064d}", b"x")
    results.put(store.store_id)


def test_processes_that_open_a_new_store_at_once_all_succeed(empty_url):
    target = _migrate_and_put if empty_url.startswith("postgresql") else _open_and_put
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=target, args=(empty_url, n, results)) for n in range(4)]
    for process in processes:
        process.start()
    ids = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(ids) == 1


def _migrate_and_put(url, number, results):
    migrate(url)
    _open_and_put(url, number, results)


def test_the_sqlite_file_is_for_its_owner_only(tmp_path):
    path = tmp_path / "new" / "deeper" / "dtrain.db"
    old = os.umask(0)
    try:
        store = Store.open(f"sqlite:///{path}")
        store.payloads.put("a" * 64, b"x")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        store.close()
    finally:
        os.umask(old)
    assert set(modes) >= {"dtrain.db", "dtrain.db-wal"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///relative.db", "must be absolute"),
        ("sqlite://", "must be absolute"),
        ("sqlite:///:memory:", "must be absolute"),
        ("mysql://u:secret@h/d", "got a 'mysql' database"),
        ("nonsense", "must be a database URL"),
        ("sqlite+aiosqlite:////tmp/x.db", "driver"),
        ("postgresql+pg8000://u@h/d", "postgresql\\+psycopg"),
        ("sqlite:////proc/nowhere/x.db", "cannot be opened"),
    ],
)
def test_a_wrong_url_is_an_error_with_a_way_out(url, words):
    with pytest.raises(StoreError, match=words) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


def test_opening_a_migrated_store_imports_no_alembic(tmp_path):
    url = f"sqlite:///{tmp_path}/dtrain.db"
    migrate(url)
    code = (
        "import sys; from airflow_provider_dtrain.store.store import Store; Store.open(sys.argv[1]);"
        "print([m for m in sys.modules if m.split('.')[0] in ('alembic', 'airflow', 'paramiko', 'torch')])"
    )
    root = str(Path(schema.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, url], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_commits_of_a_child_survive_the_parents_close(tmp_path):
    """With a connection open across the fork, SQLite would delete the log that the child writes to."""
    url = f"sqlite:///{tmp_path}/dtrain.db"
    parent = Store.open(url)
    parent.payloads.put("a" * 64, b"before")
    opened, closed = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            parent.payloads.put("b" * 64, b"in the child")
            os.write(opened[1], b"x")
            os.read(closed[0], 1)
            parent.payloads.put("c" * 64, b"after the parent closed")
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.read(opened[0], 1)
    parent.close()
    other = Store.open(url)
    other.payloads.put("d" * 64, b"by another")
    other.close()
    os.write(closed[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    reopened = Store.open(url)
    assert [reopened.payloads.has(name * 64) for name in "abcd"] == [True] * 4
    reopened.close()


def test_a_fork_waits_for_the_transactions_of_other_threads(url):
    store = Store.open(url)
    stop = threading.Event()
    errors = []

    def write():
        number = 0
        while not stop.is_set():
            try:
                store.payloads.put(f"{number:064x}", b"x")
            except Exception as error:
                errors.append(error)
            number += 1

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    codes = []
    for number in range(5):
        pid = os.fork()
        if pid == 0:
            try:
                store.payloads.put(f"child{number}".rjust(64, "0"), b"x")
                os._exit(0)
            except BaseException:
                os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    stop.set()
    for writer in writers:
        writer.join(60)
    assert (codes, errors) == ([0] * 5, [])
    assert all(store.payloads.has(f"child{number}".rjust(64, "0")) for number in range(5))
    store.close()


def test_times_come_back_aware_and_exact(store, clock):
    store.templates.set("t", "a: 1", by="me")
    assert store.templates.get("t").set_at == clock.now
    assert store.templates.get("t").set_at.tzinfo is not None
