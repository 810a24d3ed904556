"""Silent followers in the reports for users, on each database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.store.queries.gangs import gang_page
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.pages import QueueQuery
from testbed.stores import host
from tests.contract.gang_world import ask


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


def silent(store, ticket):
    """Return the time since which a trial has no follower, on which attempt and list of gangs must agree."""
    (task,) = (task for task in store.queue_view.tasks() if task.trial_id == ticket.trial_id)
    view = store.attempts.get(ticket.attempt_id)
    assert task.seen_at == view.seen_at
    assert store.queue_view.silence(task) == store.queue_view.silence(view)
    return store.queue_view.silence(task).lost_since


def test_whoever_was_heard_within_a_minute_follows(store, submit, start, clock):
    runs, waits = submit(slots=2), submit(slots=2)
    watch = start(runs)
    begun = clock.now
    clock.advance(59)
    assert (silent(store, runs), silent(store, waits)) == (None, None)
    clock.advance(1)
    assert (silent(store, runs), silent(store, waits)) == (begun, begun)
    assert store.attempts.renew({runs.attempt_id: watch}) == {runs.attempt_id}
    store.queue.renew(waits.attempt_id, store.attempts.get(waits.attempt_id).watch)
    assert (silent(store, runs), silent(store, waits)) == (None, None)


def test_a_task_has_minutes_to_pass_from_a_worker_to_the_triggerer(store, submit, start, clock):
    runs, waits = submit(slots=2), submit(slots=2)
    store.attempts.hand_over(runs.attempt_id, start(runs))
    store.attempts.hand_over(waits.attempt_id, store.attempts.watch(waits.attempt_id, watcher="worker"))
    begun = clock.now
    for seconds, is_silent, is_lost in ((59, False, False), (1, True, False), (239, True, False), (1, True, True)):
        clock.advance(seconds)
        for ticket in (runs, waits):
            found = store.queue_view.silence(store.attempts.get(ticket.attempt_id))
            assert (found.since is not None, found.is_loss) == (is_silent, is_lost)
            assert silent(store, ticket) == (begun if is_lost else None)
    (gang,) = (one for one in gang_page(store, AllRights(), QueueQuery()).rows if one.state == "running")
    assert (gang.placement, gang.state_text) == ({"h1": [0, 1]}, "running, not followed")
    assert "no triggerer runs its task" in gang.reason
    store.attempts.watch(runs.attempt_id, watcher="triggerer on a")
    assert silent(store, runs) is None
    clock.advance(60)
    assert silent(store, runs) == begun + timedelta(seconds=300)


def test_the_queue_shows_place_and_hosts_of_a_task_that_passes_to_the_triggerer(store, submit, start, clock):
    runs, waits = submit(slots=2), submit(slots=2)
    store.attempts.hand_over(runs.attempt_id, start(runs))
    store.attempts.hand_over(waits.attempt_id, store.attempts.watch(waits.attempt_id, watcher="worker"))
    clock.advance(120)
    rows = gang_page(store, AllRights(), QueueQuery()).rows
    facts = [(one.state_text, one.position, one.placement, one.unfollowed_since) for one in rows]
    assert facts == [("running", None, {"h1": [0, 1]}, None), ("waiting (1.)", 1, {}, None)]
    assert all("its task passes from a worker to the triggerer" in one.reason for one in rows)


def test_a_gang_that_a_sensor_hands_over_has_the_same_time(store, clock):
    gang = ask(store)
    store.gangs.hand_over(gang.allocation_id, store.gangs.watch(gang.allocation_id, watcher="worker"))
    clock.advance(299)
    (task,) = store.queue_view.tasks()
    assert store.queue_view.silence(task).lost_since is None
    clock.advance(1)
    assert store.queue_view.silence(task).is_loss
    with pytest.raises(StaleWatchError):
        store.gangs.hand_over(gang.allocation_id, 1)


def test_nobody_has_to_follow_what_has_ended(store, submit, start, clock):
    ticket = submit()
    watch = start(ticket)
    store.attempts.end(ticket.attempt_id, watch, state="killed")
    clock.advance(3600)
    assert silent(store, ticket) is None


@pytest.mark.each_change
def test_a_waiter_is_told_of_those_for_it_that_nobody_follows(store, submit, start, clock):
    store.pools.set("gpus", min_run_s=0.0)
    victim = submit(slots=2, priority=90, preemptible=True)
    watch = start(victim)
    begun = clock.now
    claimant = submit(slots=2, priority=1)
    assert store.queue.schedule("gpus").preempted == (victim.allocation_id,)
    told = f"Stopping: d.task0 (trial {victim.trial_id} of e)."
    reason = store.attempts.get(claimant.attempt_id).reason
    assert told in reason
    assert "no follower" not in reason
    clock.advance(61)
    store.queue.renew(claimant.attempt_id, store.attempts.get(claimant.attempt_id).watch)
    said = f"Trial {victim.trial_id} has had no follower since {begun:%H:%M:%SZ}"
    reasons = {task.trial_id: task.reason for task in store.queue_view.tasks()}
    for reason in (store.attempts.get(claimant.attempt_id).reason, reasons[claimant.trial_id]):
        assert told in reason
        assert said in reason
    store.attempts.renew({victim.attempt_id: watch})
    assert said not in store.attempts.get(claimant.attempt_id).reason
