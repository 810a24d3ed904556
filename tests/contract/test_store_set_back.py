"""A follower detects that its store has lost the last commits, as after a failover, on each database."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_dtrain.errors import StaleWatchError, StoreSetBackError
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host
from tests.support.store_world import copy_of, set_back


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


@pytest.mark.each_change
def test_a_follower_whose_watch_was_lost_may_write_nothing_and_hears_why(store, submit, start):
    ticket = submit()
    before = copy_of(store)
    watch = start(ticket)
    set_back(store, before)
    words = rf"attempt {ticket.attempt_id}: its watch is 0 in the store, but was {watch}"
    with pytest.raises(StoreSetBackError, match=words):
        store.attempts.check_watch(ticket.attempt_id, watch)
    with pytest.raises(StoreSetBackError):
        store.events.commit(ticket.attempt_id, watch, "h1", "rank0.events", 0, 9, [])
    with pytest.raises(StoreSetBackError):
        store.queue.renew(ticket.attempt_id, watch)
    assert store.attempts.renew({ticket.attempt_id: watch}) == set()


def test_a_follower_whose_grant_was_lost_hears_of_it_although_its_watch_is_current(store, submit):
    ticket = submit()
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    before = copy_of(store)
    store.queue.schedule("gpus")
    assert store.queue.take_up(ticket.attempt_id, watch)
    followed = store.attempts.get(ticket.attempt_id)
    store.attempts.check_watch(ticket.attempt_id, watch, followed=followed)
    assert store.attempts.renew({ticket.attempt_id: watch}) == {ticket.attempt_id}
    set_back(store, before)
    with pytest.raises(StoreSetBackError, match=f"the grant of its run {followed.run} is missing"):
        store.attempts.check_watch(ticket.attempt_id, watch, followed=followed)
    assert store.attempts.renew({ticket.attempt_id: watch}) == set(), "its host would keep the run alive"


def test_a_follower_of_an_attempt_that_was_lost_hears_of_it(store, submit):
    before = copy_of(store)
    ticket = submit()
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    set_back(store, before)
    with pytest.raises(StoreSetBackError, match="the attempt is missing"):
        store.attempts.check_watch(ticket.attempt_id, watch)


def test_an_attempt_whose_number_was_given_out_again_is_not_followed(store, submit, clock):
    ticket = submit()
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    mine = store.attempts.get(ticket.attempt_id)
    earlier = dataclasses.replace(mine, created_at=clock.now.replace(year=2025))
    with pytest.raises(StoreSetBackError, match="its number was assigned again"):
        store.attempts.check_watch(ticket.attempt_id, watch, followed=earlier)


def test_a_follower_that_was_replaced_is_told_so_and_not_that_the_store_was_set_back(store, submit, start):
    ticket = submit()
    watch = start(ticket)
    store.attempts.watch(ticket.attempt_id, watcher="another")
    with pytest.raises(StaleWatchError) as caught:
        store.attempts.check_watch(ticket.attempt_id, watch, followed=store.attempts.get(ticket.attempt_id))
    assert type(caught.value) is StaleWatchError
    with pytest.raises(StaleWatchError) as caught:
        store.queue.renew(ticket.attempt_id, watch)
    assert type(caught.value) is StaleWatchError


def test_a_waiter_for_a_gang_whose_watch_was_lost_hears_of_it(store):
    key = TrialKey(dag_id="d", run_id="r", task_id="hold")
    gang = store.gangs.submit(GangSubmission(key=key, pool="gpus", slots=1))
    before = copy_of(store)
    watch = store.gangs.watch(gang.allocation_id, watcher="sensor")
    set_back(store, before)
    words = f"gang {gang.allocation_id}: its watch is 0 in the store, but was {watch}"
    with pytest.raises(StoreSetBackError, match=words):
        store.gangs.renew(gang.allocation_id, watch)
