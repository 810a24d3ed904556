"""Concurrent scheduling passes on each database: one runs, and serves the callers that find it running."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.tables import pools
from airflow_provider_dtrain.store.database.transactions import bump, lock_pool
from airflow_provider_dtrain.store.queue import requests, shared_passes
from airflow_provider_dtrain.store.queue.pass_writes import LOCK_FOR_PASS
from airflow_provider_dtrain.store.records.queue import PassResult
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.store_world import until

pytestmark = pytest.mark.each_change

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


@pytest.fixture
def hold_passes(store, monkeypatch):
    """Let the store's passes wait, after they have read the pool, until the returned event is set."""
    held, go, decide = threading.Event(), threading.Event(), requests.decide

    def slow(found):
        held.set()
        assert go.wait(DEADLINE_S)
        return decide(found)

    monkeypatch.setattr(requests, "decide", slow)
    return held, go


def test_a_caller_that_meets_the_pass_of_another_thread_is_served_by_it(store, submit, hold_passes):
    held, go = hold_passes
    tickets = [submit(), submit()]
    passes = []
    sa.event.listen(store.db.engine, "before_cursor_execute", lambda *args: passes.append(args[2]))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.queue.schedule, "gpus")
        assert held.wait(DEADLINE_S)
        second = threads.submit(store.queue.schedule, "gpus")
        until(lambda: any(turn.has_joined for turn in shared_passes._open.values()))
        assert not second.done()
        go.set()
        assert set(first.result(DEADLINE_S).granted) == {one.allocation_id for one in tickets}
        assert second.result(DEADLINE_S) == PassResult(granted=(), waiting=0)
    assert len([text for text in passes if "passed_version=pools.version" in text]) == 1


def test_callers_are_served_by_one_of_them_when_the_pass_that_they_joined_fails(store, submit, monkeypatch):
    ticket, joined, passed = submit(), threading.Event(), store.queue._passed

    def failing(conn, pool):
        monkeypatch.setattr(store.queue, "_passed", passed)
        assert joined.wait(DEADLINE_S)
        raise ConflictError("a pass that fails")

    monkeypatch.setattr(store.queue, "_passed", failing)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.queue.schedule, "gpus")
        until(lambda: shared_passes._open)
        second = threads.submit(store.queue.schedule, "gpus")
        until(lambda: any(turn.has_joined for turn in shared_passes._open.values()))
        joined.set()
        with pytest.raises(ConflictError):
            first.result(DEADLINE_S)
        assert second.result(DEADLINE_S).granted == (ticket.allocation_id,)


def test_a_request_that_comes_while_a_pass_commits_gets_a_pass_of_its_own(store, submit, monkeypatch):
    """A turn is closed before the commit: a caller that came later would not know whether it was seen."""
    first, late = submit(), []
    close = shared_passes.Turn.close

    def closing(turn):
        close(turn)
        if not late:
            late.append(shared_passes.join_turn(str(store.db.engine.url), "gpus"))

    monkeypatch.setattr(shared_passes.Turn, "close", closing)
    assert store.queue.schedule("gpus").granted == (first.allocation_id,)
    [(turn, is_mine)] = late
    assert is_mine
    with turn:
        pass


def test_a_child_process_does_not_inherit_a_turn(store, submit):
    turn, is_mine = shared_passes.join_turn(str(store.db.engine.url), "gpus")
    assert is_mine
    child = os.fork()
    if child == 0:
        os._exit(0 if shared_passes.join_turn(str(store.db.engine.url), "gpus")[1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    with turn:
        pass


def test_a_caller_waits_for_the_pass_of_another_process_and_has_its_answer(store, submit, url, clock, hold_passes):
    held, go = hold_passes
    ticket, another = submit(), Store.open(url, clock=clock)
    with ThreadPoolExecutor(2) as threads, another.db.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            pytest.skip("on SQLite a pass waits for the one writer that there can be")
        # Another process that passes, as far as the database knows.
        assert statements.first(connection, LOCK_FOR_PASS, {"pool_name": "gpus", "now": clock.now})
        with store.db.engine.begin() as third:
            assert statements.first(third, LOCK_FOR_PASS, {"pool_name": "gpus", "now": clock.now}) is None
        mine = threads.submit(store.queue.schedule, "gpus")
        until(lambda: _waits_for_a_pass(another))
        assert not mine.done()
        connection.execute(sa.update(pools).values(passed_version=pools.c.version))
        connection.commit()
        # The other pass has served this caller, which runs no pass of its own.
        assert mine.result(DEADLINE_S).granted == ()
        assert not held.is_set()
    go.set()
    another.close()
    assert store.attempts.get(ticket.attempt_id).allocation_state == "waiting"


def test_a_caller_passes_itself_when_the_other_process_did_not_commit(store, submit, url, clock):
    ticket, another = submit(), Store.open(url, clock=clock)
    with ThreadPoolExecutor(1) as threads:
        connection = another.db.engine.connect()
        if connection.dialect.name == "sqlite":
            connection.close()
            pytest.skip("on SQLite a pass waits for the one writer that there can be")
        assert statements.first(connection, LOCK_FOR_PASS, {"pool_name": "gpus", "now": clock.now})
        mine = threads.submit(store.queue.schedule, "gpus")
        until(lambda: _waits_for_a_pass(another))
        connection.rollback()
        connection.close()
        assert mine.result(DEADLINE_S).granted == (ticket.allocation_id,)
    another.close()


def _waits_for_a_pass(store):
    with store.db.engine.connect() as connection:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND NOT granted"
        return connection.scalar(sa.text(query)) > 0


def test_a_pass_waits_for_whoever_changes_the_pool_and_sees_the_change(store, submit, url, clock):
    first = submit()
    another = Store.open(url, clock=clock)
    locked, go = threading.Event(), threading.Event()

    def change():
        with another.db.engine.begin() as connection:
            lock_pool(connection, "gpus")
            locked.set()
            go.wait(30)
            connection.execute(sa.text("UPDATE hosts SET state = 'draining'"))
            bump(connection, "gpus")

    with ThreadPoolExecutor(2) as threads:
        changing = threads.submit(change)
        assert locked.wait(30)
        passing = threads.submit(store.queue.schedule, "gpus")
        go.set()
        changing.result(30)
        assert passing.result(30).granted == ()
    another.close()
    assert store.attempts.get(first.attempt_id).allocation_state == "waiting"


def test_whatever_is_committed_before_a_pass_ends_is_looked_at_by_a_pass(store, submit, url, clock):
    """Each task runs a pass after its submission, so no request waits that could have started."""
    for number in range(2, 9):
        store.hosts.add(host(f"h{number}", 2))
    stores = [Store.open(url, clock=clock) for _ in range(4)]

    def work(number):
        one = stores[number % 4]
        ticket = submit(f"t{number}", to=one, slots=1)
        one.queue.schedule("gpus")
        return ticket

    with ThreadPoolExecutor(8) as threads:
        tickets = list(threads.map(work, range(16)))
    for one in stores:
        one.close()
    assert {store.attempts.get(one.attempt_id).allocation_state for one in tickets} == {"granted"}


def test_the_pass_of_an_unknown_pool_is_an_error(store):
    with pytest.raises(NotFoundError, match="'nope'.*Pools: gpus"):
        store.queue.schedule("nope")
