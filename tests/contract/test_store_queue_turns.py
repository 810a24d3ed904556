"""Passes that meet: one works, the others leave at once, and nothing is forgotten; on each database."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store import fast
from airflow_provider_dtrain.store.base import bump, lock_pool
from airflow_provider_dtrain.store.orders import OPENING
from airflow_provider_dtrain.store.repository import Store
from airflow_provider_dtrain.store.turns import take_turn
from tests.contract.store_world import host


@pytest.fixture(autouse=True)
def _host(store):
    store.add_host(host("h1", 2))


def test_a_pass_leaves_at_once_while_another_thread_passes(store, submit):
    ticket = submit()
    turn = take_turn(str(store._engine.url), "gpus")
    assert not turn.has_refused
    assert store.schedule("gpus").granted == ()
    assert turn.has_refused
    turn.leave()
    turn.leave()
    assert store.schedule("gpus").granted == (ticket.allocation_id,)


def test_whoever_had_the_turn_for_nothing_looks_again_for_those_it_sent_away(store, submit, monkeypatch):
    """It met another process that passed; meanwhile its own thread-mate came with a change and was sent away."""
    ticket = submit()
    passed = store._passed

    def met_another(conn, pool, turn):
        monkeypatch.setattr(store, "_passed", passed)
        assert take_turn(str(store._engine.url), "gpus") is None

    monkeypatch.setattr(store, "_passed", met_another)
    assert store.schedule("gpus").granted == (ticket.allocation_id,)


def test_a_child_process_does_not_inherit_a_turn(store, submit):
    turn = take_turn(str(store._engine.url), "gpus")
    child = os.fork()
    if child == 0:
        os._exit(0 if take_turn(str(store._engine.url), "gpus") else 1)
    assert os.waitpid(child, 0)[1] == 0
    turn.leave()


def test_a_pass_leaves_at_once_while_another_process_passes(store, submit, url, clock):
    if store._engine.dialect.name == "sqlite":
        pytest.skip("on SQLite a pass waits for the one writer that there can be")
    ticket = submit()
    another = Store.open(url, clock=clock)
    with another._engine.begin() as connection:
        values = {"pool_name": "gpus", "now": clock.now}
        assert all(fast.read(connection, OPENING, values))
        assert store.schedule("gpus").granted == ()
        with store._engine.begin() as connection_of_second:
            # It does not even read what it may not decide about.
            assert fast.read(connection_of_second, OPENING, values) == [[], [], []]
    another.close()
    assert store.schedule("gpus").granted == (ticket.allocation_id,)


def test_a_pass_waits_for_whoever_changes_the_pool_and_sees_the_change(store, submit, url, clock):
    first = submit()
    another = Store.open(url, clock=clock)
    locked, go = threading.Event(), threading.Event()

    def change():
        with another._engine.begin() as connection:
            lock_pool(connection, "gpus")
            locked.set()
            go.wait(30)
            connection.execute(sa.text("UPDATE hosts SET state = 'draining'"))
            bump(connection, "gpus")

    with ThreadPoolExecutor(2) as threads:
        changing = threads.submit(change)
        assert locked.wait(30)
        passing = threads.submit(store.schedule, "gpus")
        go.set()
        changing.result(30)
        assert passing.result(30).granted == ()
    another.close()
    assert store.attempt(first.attempt_id).allocation_state == "waiting"


def test_whatever_is_committed_before_a_pass_ends_is_looked_at_by_a_pass(store, submit, url, clock):
    """Each task passes after its submission; then no request waits although it could have started."""
    for number in range(2, 9):
        store.add_host(host(f"h{number}", 2))
    stores = [Store.open(url, clock=clock) for _ in range(4)]

    def work(number):
        one = stores[number % 4]
        ticket = submit(f"t{number}", to=one, slots=1)
        one.schedule("gpus")
        return ticket

    with ThreadPoolExecutor(8) as threads:
        tickets = list(threads.map(work, range(16)))
    for one in stores:
        one.close()
    assert {store.attempt(one.attempt_id).allocation_state for one in tickets} == {"granted"}


def test_the_pass_of_an_unknown_pool_is_an_error(store):
    with pytest.raises(NotFoundError, match="'nope'.*Pools: gpus"):
        store.schedule("nope")
