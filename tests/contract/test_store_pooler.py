"""Plans that PostgreSQL keeps: on connections of our own, never through a pooler that shares them (pgbouncer)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import StoreUnavailableError
from airflow_provider_dtrain.store.database import durability, statements
from airflow_provider_dtrain.store.database.time_limit import TimeLimit
from airflow_provider_dtrain.store.database.transactions import bump, lock_pool, reads, writes
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from testbed.stores import Server, host

DEADLINE_S = 20.0
ROUNDS = 12


@pytest.fixture
def direct(postgresql: Server) -> Iterator[Store]:
    with postgresql.new_store() as url:
        store = Store.open(url)
        yield store
        store.close()


@pytest.fixture
def pooled(postgresql: Server, tmp_path: Path) -> Iterator[Store]:
    """A store behind pgbouncer, which gives each transaction any of two connections to the server."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    port = _free_port()
    name = f"pooled{port}"
    with sa.create_engine(_url(postgresql.port), isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    folder = postgresql.folder / f"bouncer{port}"
    folder.mkdir()
    (folder / "users.txt").write_text('"dtrain" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n{name} = host=127.0.0.1 port={postgresql.port} dbname={name} pool_size=2 "
        "connect_query='SET synchronous_commit TO off'\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
        f"auth_file = {folder}/users.txt\npool_mode = transaction\nlogfile = {folder}/log\n"
    )
    for path in (folder, *folder.iterdir()):
        if os.getuid() == 0:
            shutil.chown(path, "postgres", "postgres")
    process = subprocess.Popen(
        [*postgresql.as_user, program, "-q", str(folder / "pgbouncer.ini")], stdin=subprocess.DEVNULL, cwd="/"
    )
    try:
        _until_answered(port)
        url = _url(port, name)
        migrate(url)
        store = Store.open(url)
        yield store
        store.close()
    finally:
        process.kill()
        process.wait()


def _url(port: int, database: str = "postgres") -> str:
    return f"postgresql+psycopg://dtrain@127.0.0.1:{port}/{database}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_answered(port: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def use(store: Store, number: int) -> None:
    """Acquire and release a gang several times.

    Its own pass grants it, or a pass that was already running.
    """
    config = store.configs.put({}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id="t", map_index=number)
    submission = TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=2, number=number)
    ticket = store.trials.submit(submission)
    watch = store.attempts.watch(ticket.attempt_id, watcher=f"thread {number}")
    for _ in range(ROUNDS):
        store.queue.schedule("gpus")
        deadline = time.monotonic() + DEADLINE_S
        while store.attempts.get(ticket.attempt_id).allocation_state != "granted":
            assert time.monotonic() < deadline
            time.sleep(0.005)
        store.queue.put_back(ticket.attempt_id, watch, "again")


def prepared(store: Store) -> list[str]:
    """Return what the server keeps for the connection that the pool gives next."""
    with store.db.engine.connect() as connection:
        return list(connection.scalars(sa.text("SELECT statement FROM pg_prepared_statements")))


def connection(store: Store) -> str:
    """Return the connection to the server as reported by ``db check``."""
    return {check.name: check.message for check in store.check()}["connection"]


def test_the_server_keeps_the_plans_of_what_is_asked_again_and_again(direct):
    direct.hosts.add(host("a", 2))
    use(direct, 0)
    assert any("FROM pools" in text for text in prepared(direct))
    assert connection(direct) == "direct"


def test_a_store_behind_a_pooler_works_and_prepares_nothing(pooled):
    pooled.hosts.add(host("a", 8))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: use(pooled, number), range(4)))
    assert prepared(pooled) == []
    assert connection(pooled).startswith("through a pooler")


def test_each_transaction_through_a_pooler_commits_durably(pooled):
    """A session's own setting would be that of the next client of the server process."""
    with statements.transaction(pooled.db.engine) as connection:
        assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"
    with pooled.db.engine.connect() as connection:
        assert connection.scalar(sa.text("SHOW synchronous_commit")) == "off"


class Pausing:
    """A writer that stands still in its first transaction until another one has changed the pool."""

    def __init__(self, store: Store) -> None:
        self.store, self.db = store, store.db
        self.waits: list[float] = []

    @writes
    def work(self, conn: sa.Connection) -> None:
        lock_pool(conn, "gpus")
        if not self.waits:
            begin = time.monotonic()
            ThreadPoolExecutor(1).submit(self.store.pools.set, "gpus", reservations=1).result(DEADLINE_S)
            self.waits.append(time.monotonic() - begin)
        bump(conn, "gpus")


@pytest.mark.parametrize("way", ["direct", "pooled"])
def test_a_client_that_stands_still_in_a_transaction_does_not_keep_the_pool_locked(
    way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = request.getfixturevalue(way)
    # Not before, because the transaction of a migration is idle for longer on a busy machine.
    monkeypatch.setattr(durability, "IDLE_MOST_S", 1)
    store.db.engine.dispose()
    store.hosts.add(host("a", 2))
    writer = Pausing(store)
    writer.work()
    assert 0.5 < writer.waits[0] < DEADLINE_S
    assert len(writer.waits) == 1, "the transaction was ended, and repeated as a whole"


def test_a_limit_of_a_read_through_a_pooler_ends_with_its_transaction(pooled):
    class Reader:
        db = pooled.db

        @reads
        def sleep(self, conn):
            conn.exec_driver_sql("SELECT pg_sleep(3600)")

        @reads
        def setting(self, conn):
            return conn.exec_driver_sql("SHOW statement_timeout").scalar()

    with TimeLimit(0.5).applied():
        assert Reader().setting() == "500ms"
        with pytest.raises(StoreUnavailableError, match="statement timeout"):
            Reader().sleep()
    assert {Reader().setting() for _ in range(8)} == {"0"}
