"""Waiters sleep until a relevant change, notified by PostgreSQL or by one poll for all of them."""

from __future__ import annotations

import os
import threading
import time

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.store.database import notifications
from airflow_provider_dtrain.store.database.notifications import PoolChange, parsed
from airflow_provider_dtrain.store.database.transactions import bump
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store, migrate
from airflow_provider_dtrain.store.wakeup import pg_notify
from airflow_provider_dtrain.store.wakeup import watcher as changes_module
from airflow_provider_dtrain.store.wakeup.pg_notify import Listener
from airflow_provider_dtrain.store.wakeup.sqlite_wal import Written
from airflow_provider_dtrain.store.wakeup.watcher import Changes, Waiter
from testbed.stores import host

pytestmark = pytest.mark.each_change

#: Much longer than any expected delay, so that a lost wake-up fails and a slow machine does not.
PATIENCE_S = 60.0


class Sleeper:
    """A waiter that counts how often it was woken."""

    def __init__(self, changes: Changes, pool: str = "gpus", allocation_id: int | None = None, every_s: float = 1.0):
        self.changes, self.count, self.woken = changes, 0, threading.Event()
        self.waiter = Waiter(pool, allocation_id, self._wake, every_s)
        changes.add(self.waiter)

    def _wake(self) -> None:
        self.count += 1
        self.woken.set()

    def sleeps_again(self) -> None:
        self.count = 0
        self.woken.clear()

    def wakes(self) -> bool:
        return self.woken.wait(PATIENCE_S)


def submitted(store: Store, number: int, slots: int):
    config = store.configs.put({}, origins={}).config_id
    key = TrialKey(dag_id="d", run_id="r", task_id="t", map_index=number)
    return store.trials.submit(
        TrialSubmission(key=key, experiment_name="e", config_id=config, pool="gpus", slots=slots, number=number)
    )


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def real(url):
    """A store on the real clock, and another one as a second process would open it."""
    stores = [Store.open(url), Store.open(url)]
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def told(postgresql):
    """Two stores on PostgreSQL. The first one is notified of changes."""
    with postgresql.new_store() as url:
        stores = [Store.open(url), Store.open(url)]
        yield stores
        for store in stores:
            store.close()


def quiet(store, sleepers):
    """Wait until every waiter has had its first wake-up and no pass is due."""
    store.queue.schedule("gpus")
    for sleeper in sleepers:
        if sleeper.waiter.allocation_id is not None:
            assert sleeper.wakes()
        sleeper.sleeps_again()


def test_who_waits_for_a_pool_hears_of_a_change_by_another_process(real):
    mine, other = real
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    sleeper = Sleeper(mine.wakeup.changes(), every_s=0.05)
    other.pools.set("gpus", reservations=5)
    assert sleeper.wakes()


def test_who_waits_for_a_request_is_woken_by_its_grant_and_by_a_kill(real):
    mine, other = real
    other.hosts.add(host("a", 2))
    ticket = submitted(other, 0, 2)
    sleeper = Sleeper(mine.wakeup.changes(), allocation_id=ticket.allocation_id, every_s=0.05)
    assert sleeper.wakes()
    sleeper.sleeps_again()
    assert other.queue.schedule("gpus").granted == (ticket.allocation_id,)
    assert sleeper.wakes()
    until(lambda: mine.wakeup.changes()._known[ticket.allocation_id].sign[0] == "granted")
    sleeper.sleeps_again()
    other.control.kill(ticket.trial_id, "ann")
    assert sleeper.wakes()


def test_a_blocking_wait_returns_with_the_change_or_without_it(real):
    mine, other = real
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    assert mine.wakeup.changes().wait("gpus", 0.01) is False
    threading.Timer(0.2, lambda: other.pools.set("gpus", reservations=4)).start()
    assert mine.wakeup.changes().wait("gpus", PATIENCE_S, every_s=0.05) is True


@pytest.fixture
def written(tmp_path):
    """Two stores in one SQLite file, without notifications."""
    url = f"sqlite:///{tmp_path}/dtrain.db"
    stores = [Store.open(url), Store.open(url)]
    yield stores
    for store in stores:
        store.close()


def test_a_change_in_a_file_is_seen_long_before_the_next_look(written):
    mine, other = written
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    ticket = submitted(other, 0, 2)
    sleeper = Sleeper(mine.wakeup.changes(), allocation_id=ticket.allocation_id, every_s=PATIENCE_S * 2)
    # The first poll of the new thread is over: from here on only a change of the file wakes the waiter.
    assert sleeper.wakes()
    sleeper.sleeps_again()
    assert other.queue.schedule("gpus").granted == (ticket.allocation_id,)
    assert sleeper.wakes()


def test_a_write_that_readers_see_later_than_its_file_wakes_the_waiter(written, monkeypatch):
    mine, other = written
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    ticket = submitted(other, 0, 2)
    changes = mine.wakeup.changes()
    sleeper = Sleeper(changes, allocation_id=ticket.allocation_id, every_s=PATIENCE_S * 2)
    assert sleeper.wakes()
    # A second notice of the submission may be late.
    until(lambda: sleeper.sleeps_again() or not sleeper.woken.wait(0.5))
    passes = changes._polling.passes
    former = [passes()]
    changes._passes = former[0]
    # The first query after the write is between the write to the log and the commit.
    monkeypatch.setattr(changes._polling, "passes", lambda: former.pop() if former else passes())
    assert other.queue.schedule("gpus").granted == (ticket.allocation_id,)
    assert sleeper.wakes()
    assert former == []


def test_a_write_that_concerns_no_pool_makes_nobody_look(written, monkeypatch):
    mine, other = written
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    sleeper = Sleeper(mine.wakeup.changes(), every_s=PATIENCE_S * 2)
    other.pools.set("gpus", reservations=5)
    assert sleeper.wakes()
    mine.queue.schedule("gpus")
    until(lambda: mine.wakeup.changes()._passes == mine.wakeup.changes()._polling.passes())
    looks, news = [], []
    monkeypatch.setattr(mine.wakeup.changes(), "_check_grants", lambda: looks.append(1))
    has_news = mine.wakeup.changes()._has_news
    monkeypatch.setattr(mine.wakeup.changes(), "_has_news", lambda: news.append(has_news()) or news[-1])
    other.configs.put({"entrypoint": "true"}, origins={})
    until(lambda: news)
    assert not any(news)
    assert looks == []


def test_of_many_waiters_one_is_woken_for_a_pass_and_those_that_were_granted(told):
    mine, other = told
    other.hosts.add(host("a", 8))
    blocker = submitted(other, 0, 8)
    other.queue.schedule("gpus")
    tickets = [submitted(other, number, 4) for number in range(1, 21)]
    other.queue.schedule("gpus")
    # The polls of a listener are far apart here: only notifications wake.
    sleepers = [Sleeper(mine.wakeup.changes(), allocation_id=one.allocation_id, every_s=0.05) for one in tickets]
    quiet(mine, sleepers)
    until(lambda: mine.wakeup.changes().is_notified)
    for sleeper in sleepers:
        sleeper.waiter.every_s = PATIENCE_S
    until(lambda: mine.wakeup.changes()._poll_s() == PATIENCE_S)
    watch = other.attempts.watch(blocker.attempt_id, watcher="test")
    other.attempts.end(blocker.attempt_id, watch, state="killed")
    until(lambda: sum(sleeper.count for sleeper in sleepers) >= 1)
    assert sum(sleeper.count for sleeper in sleepers) <= 3
    granted = set(other.queue.schedule("gpus").granted)
    assert len(granted) == 2
    until(lambda: all(s.woken.is_set() for s in sleepers if s.waiter.allocation_id in granted))
    assert sum(sleeper.woken.is_set() for sleeper in sleepers) <= 5


def test_a_change_that_is_rolled_back_is_told_to_nobody(told):
    mine, other = told
    other.hosts.add(host("a", 2))
    listener = Listener(mine.db.engine)
    bell_in, bell_out = pg_notify.socket.socketpair()
    with other.db.engine.connect() as connection:
        transaction = connection.begin()
        bump(connection, "gpus")
        transaction.rollback()
    assert listener.messages(bell_out, 0.2) == []
    other.pools.set("gpus", reservations=3)
    until(lambda: PoolChange(pool="gpus") in listener.messages(bell_out, 1.0))
    listener.close()
    bell_in.close()
    bell_out.close()


def test_a_store_beside_it_in_the_same_database_tells_other_people(postgresql):
    url, beside = postgresql.new_database(), postgresql.new_database()
    for one in (url, beside):
        migrate(one)
    mine, other, stranger = Store.open(url), Store.open(url), Store.open(beside)
    listener = Listener(mine.db.engine)
    bell_in, bell_out = pg_notify.socket.socketpair()
    stranger.hosts.add(host("a", 2))
    stranger.pools.set("gpus", reservations=3)
    other.hosts.add(host("a", 2))
    heard = []
    deadline = time.monotonic() + PATIENCE_S
    while not heard and time.monotonic() < deadline:
        heard = listener.messages(bell_out, 1.0)
    assert heard == [PoolChange(pool="gpus")]
    assert listener.messages(bell_out, 0.2) == []
    for one in (listener, mine, other, stranger, bell_in, bell_out):
        one.close()


def test_a_lost_connection_is_looked_over_and_opened_again(told, monkeypatch):
    mine, other = told
    monkeypatch.setattr(changes_module, "RETRY_S", 0.1)
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    sleeper = Sleeper(mine.wakeup.changes(), every_s=0.05)
    until(lambda: mine.wakeup.changes().is_notified)
    first = mine.wakeup.changes()._listener
    with other.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND query IN ('LISTEN dtrain', 'SELECT current_schema()')"
            )
        )
    until(lambda: mine.wakeup.changes()._listener is not first)
    sleeper.sleeps_again()
    other.pools.set("gpus", reservations=5)
    assert sleeper.wakes()
    until(lambda: mine.wakeup.changes().is_notified and mine.wakeup.changes()._listener is not first)


def test_what_was_told_just_before_somebody_waits_wakes_it_at_once(told):
    """A notification between the check of the store and the start of the wait must not be lost."""
    mine, other = told
    other.hosts.add(host("a", 2))
    other.hosts.add(host("b", 2, pool="elsewhere"))
    mine.queue.schedule("gpus")
    mine.queue.schedule("elsewhere")
    Sleeper(mine.wakeup.changes(), pool="elsewhere")
    until(lambda: mine.wakeup.changes().is_notified)
    ticket = submitted(other, 0, 2)
    until(lambda: "gpus" in mine.wakeup.changes()._missed_pools)
    first, second = Sleeper(mine.wakeup.changes()), Sleeper(mine.wakeup.changes())
    assert (first.count, second.count) == (1, 0)
    assert other.queue.schedule("gpus").granted == (ticket.allocation_id,)
    until(lambda: ticket.allocation_id in mine.wakeup.changes()._missed_grants)
    assert [Sleeper(mine.wakeup.changes(), allocation_id=ticket.allocation_id).count for _ in range(2)] == [1, 0]


def test_where_messages_do_not_come_through_waiters_are_woken_by_looking(told, monkeypatch):
    """As behind pgbouncer in transaction mode: LISTEN succeeds and nothing ever arrives."""
    mine, other = told
    monkeypatch.setattr(pg_notify, "ECHO_S", 0.2)
    monkeypatch.setattr(pg_notify.Listener, "_arrived", lambda _self: [])
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    sleeper = Sleeper(mine.wakeup.changes(), every_s=0.05)
    until(lambda: mine.wakeup.changes()._retry_at > 0)
    sleeper.sleeps_again()
    other.pools.set("gpus", reservations=5)
    assert sleeper.wakes()
    assert not mine.wakeup.changes().is_notified


def test_hundreds_of_grants_are_told_in_messages_that_postgresql_takes(told):
    mine, _ = told
    listener = Listener(mine.db.engine)
    bell_in, bell_out = pg_notify.socket.socketpair()
    ids = [10**17 + number for number in range(1000)]
    with mine.db.engine.begin() as connection:
        connection.execute(notifications.NOTIFY, notifications.granted_messages("gpus", ids))
    found: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(ids) and time.monotonic() < deadline:
        found |= {one for message in listener.messages(bell_out, 1.0) for one in message.granted}
    assert found == set(ids)
    for one in (listener, bell_in, bell_out):
        one.close()


@pytest.mark.parametrize(
    "payload", ["", "s", "s changed", "s granted gpus", "s granted gpus x", "t changed gpus", "s new gpus"]
)
def test_a_message_that_is_not_understood_is_no_message(payload):
    assert parsed(payload, "s") is None


def test_a_waiter_that_does_not_come_to_its_pass_is_followed_by_another(real):
    mine, other = real
    other.hosts.add(host("a", 2))
    sleepers = [Sleeper(mine.wakeup.changes(), every_s=0.02) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.waiter.allocation_id = -1
    # The pass is due, and no waiter runs it.
    assert all(sleeper.wakes() for sleeper in sleepers)


def test_a_forked_child_has_a_thread_of_its_own(real):
    mine, other = real
    other.hosts.add(host("a", 2))
    mine.queue.schedule("gpus")
    keeper = Sleeper(mine.wakeup.changes(), every_s=0.05)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if mine.wakeup.changes().wait("gpus", PATIENCE_S, every_s=0.05) else 3)
        except BaseException:
            os._exit(4)
    done = threading.Event()

    def change() -> None:
        number = 0
        while not done.wait(0.05):
            number += 1
            other.pools.set("gpus", reservations=number)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.set()
        thread.join(60)
    assert keeper.wakes()


def test_the_thread_ends_when_nobody_waits_and_begins_anew(real, monkeypatch):
    mine, other = real
    monkeypatch.setattr(changes_module, "IDLE_S", 0.01)
    other.hosts.add(host("a", 2))
    sleeper = Sleeper(mine.wakeup.changes(), every_s=0.02)
    assert sleeper.wakes()
    mine.wakeup.changes().remove(sleeper.waiter)
    until(lambda: mine.wakeup.changes()._thread is None)
    assert Sleeper(mine.wakeup.changes(), every_s=0.02).wakes()


def test_a_change_is_reported_again_while_a_slow_disk_may_keep_it_from_readers(tmp_path):
    log = tmp_path / "store.db-wal"
    log.write_text("")
    written = Written(sa.make_url(f"sqlite:///{tmp_path / 'store.db'}"))
    assert not written.has_changed()
    log.write_text("x")
    assert [call for call in range(40) if written.has_changed()] == [0, 1, 2, 4, 8, 16]
    assert not Written(sa.make_url("postgresql://h/d")).has_changed()
