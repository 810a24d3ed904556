"""Connections that PostgreSQL ends, as at a restart: a new one takes over, and nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import StoreUnavailableError
from airflow_provider_dtrain.store.database.transactions import TRIES
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from testbed.stores import Server, host

DEADLINE_S = 20.0
#: psycopg reports either message, depending on which arrives first.
LOST = "terminating connection|server closed"
OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"


@pytest.fixture
def store(postgresql: Server) -> Iterator[Store]:
    with postgresql.new_store() as url:
        opened = Store.open(url)
        opened.hosts.add(host("h1", 4))
        yield opened
        opened.close()


@pytest.fixture
def end_all(store: Store) -> Iterator[Callable[[], None]]:
    """End all connections of the store as an administrator does, and return when they are gone."""
    engine = sa.create_engine(store.db.engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def end() -> None:
        deadline = time.monotonic() + DEADLINE_S
        with engine.connect() as connection:
            while connection.scalars(sa.text(f"SELECT pg_terminate_backend(pid) {OTHERS}")).all():
                assert time.monotonic() < deadline, "PostgreSQL does not end the connections"
                time.sleep(0.01)

    yield end
    engine.dispose()


@pytest.fixture
def ended(store: Store, end_all: Callable[[], None]) -> Callable[[str], list[str]]:
    """End all connections when a statement with some text is about to be sent, so many times."""

    def watch(text: str, times: int = 1) -> list[str]:
        seen: list[str] = []

        @sa.event.listens_for(store.db.engine, "before_cursor_execute")
        def end(_conn, _cursor, statement, *_rest):  # type: ignore[no-untyped-def]
            if text in statement and len(seen) < times:
                seen.append(statement)
                end_all()

        return seen

    return watch


def submit(store: Store, task: str = "a") -> Ticket:
    key = TrialKey(dag_id="d", run_id="r", task_id=task)
    config = store.configs.put({"entrypoint": "python train.py"}, origins={})
    return store.trials.submit(
        TrialSubmission(key=key, config_id=config.config_id, experiment_name="e", pool="gpus", slots=1, number=0)
    )


def test_an_idle_connection_that_the_server_closed_is_replaced(store, end_all):
    ticket = submit(store)
    end_all()
    assert store.queue.schedule("gpus").granted == (ticket.allocation_id,)


def test_a_read_that_loses_its_connection_reads_again(store, ended):
    seen = ended("FROM hosts")
    assert [one.name for one in store.hosts.list()] == ["h1"]
    assert len(seen) == 1


def test_the_look_of_a_pass_is_repeated(store, ended):
    ticket, seen = submit(store), ended("passed_version")
    assert store.queue.schedule("gpus").granted == (ticket.allocation_id,)
    assert len(seen) == 1


def test_a_write_that_loses_its_connection_before_commit_is_done_once(store, ended):
    seen = ended("INSERT INTO allocations")
    ticket = submit(store)
    assert len(seen) == 1
    assert [one.attempt_id for one in store.queue_view.tasks("gpus")] == [ticket.attempt_id]


def test_a_write_that_loses_its_connection_at_commit_is_an_error(store, end_all, monkeypatch):
    """The outcome of the commit is unknown, so the caller decides."""
    commit, calls = store.db.engine.dialect.do_commit, []

    def lost(connection):
        calls.append(connection)
        end_all()
        commit(connection)

    monkeypatch.setattr(store.db.engine.dialect, "do_commit", lost)
    with pytest.raises(StoreUnavailableError, match=LOST):
        store.hosts.add(host("h2", 4))
    monkeypatch.undo()
    assert len(calls) == 1
    assert [one.name for one in store.hosts.list()] == ["h1"]


def test_connections_that_always_end_are_an_error(store, ended):
    seen = ended("FROM hosts", times=100)
    with pytest.raises(StoreUnavailableError, match=LOST):
        store.hosts.list()
    assert len(seen) == TRIES
