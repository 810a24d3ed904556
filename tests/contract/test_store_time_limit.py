"""Time limits of transactions: the database ends a statement whose caller no longer waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.errors import StoreUnavailableError
from airflow_provider_dtrain.store.database.time_limit import TimeLimit
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.store import Store
from testbed.standalone import wait_until

pytestmark = pytest.mark.each_change
#: Never ends, whatever the database.
ENDLESS = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(3600)",
}
_SET = "statement_timeout"


class Slow:
    """A component with transactions of any length."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def _run(self, conn: Connection, times: int) -> None:
        for _ in range(times):
            conn.exec_driver_sql(ENDLESS[conn.dialect.name])

    @reads
    def read(self, conn: Connection, times: int = 1) -> None:
        self._run(conn, times)

    @writes
    def write(self, conn: Connection) -> None:
        self._run(conn, 1)

    @reads
    def setting(self, conn: Connection) -> str:
        return str(conn.exec_driver_sql(f"SHOW {_SET}").scalar())

    @writes
    def setting_of_write(self, conn: Connection) -> str:
        return str(conn.exec_driver_sql(f"SHOW {_SET}").scalar())


@pytest.fixture
def slow(store: Store) -> Slow:
    return Slow(store.db)


@pytest.fixture
def sent(store: Store) -> Iterator[list[str]]:
    """The statements that reach the database."""
    found: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(store.db.engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(store.db.engine, "before_cursor_execute", note)


def ended(work: Any, limit: TimeLimit) -> float:
    """Return the seconds until limited work is refused. A thread interrupts it as the API does."""
    done = threading.Event()

    def interrupt() -> None:
        while not done.wait(0.05):
            if time.monotonic() > limit.ends_at:
                limit.interrupt()

    thread = threading.Thread(target=interrupt)
    began = time.monotonic()
    thread.start()
    try:
        with limit.applied(), pytest.raises(StoreUnavailableError):
            work()
    finally:
        done.set()
        thread.join()
    return time.monotonic() - began


@pytest.mark.parametrize("work", ["read", "write"])
def test_a_statement_ends_with_the_time_of_its_caller(slow, work):
    assert ended(getattr(slow, work), TimeLimit(0.3)) < 20
    assert slow.db.engine.pool.checkedout() == 0


def test_a_read_of_several_statements_begins_no_further_one_after_its_time(slow, sent):
    assert ended(lambda: slow.read(1000), TimeLimit(0.3)) < 20
    assert sum(one in ENDLESS.values() for one in sent) == 1


def test_a_caller_whose_time_is_over_begins_no_transaction(slow, sent):
    with TimeLimit(-1.0).applied(), pytest.raises(StoreUnavailableError, match="more than"):
        slow.read()
    assert not any(one in ENDLESS.values() for one in sent)


def test_a_connection_is_interrupted_only_while_it_runs_for_the_limit():
    limit, calls = TimeLimit(60.0), []
    with limit.running(SimpleNamespace(interrupt=lambda: calls.append(1))):
        limit.interrupt()
    limit.interrupt()
    assert calls == [1]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_session_of_postgresql_is_told_its_limit_once_and_forgets_it_without_one(slow, sent):
    limit = TimeLimit(30.0)
    with limit.applied():
        assert [slow.setting() for _ in range(3)] == ["30s"] * 3
        assert slow.setting_of_write() == "30s"
    assert len([one for one in sent if one.startswith("SET")]) == 1
    assert slow.setting_of_write() == "0"
    assert [slow.setting() for _ in range(2)] == ["0"] * 2
    assert [one for one in sent if one.startswith("SET")] == [
        "SET statement_timeout TO 30000", "SET LOCAL statement_timeout TO DEFAULT", "SET statement_timeout TO DEFAULT",
    ]  # fmt: skip
    with TimeLimit(2.0).applied():
        assert slow.setting_of_write() == "2s"
    assert slow.setting() == "0"


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_no_backend_works_for_a_caller_that_has_gone(slow, store):
    query = f"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = '{ENDLESS['postgresql']}'"  # noqa: S608
    ended(slow.read, TimeLimit(0.3))
    with store.db.engine.connect() as conn:
        wait_until(lambda: conn.exec_driver_sql(query).scalar() == 0, timeout_s=20, what="the end of the statement")
