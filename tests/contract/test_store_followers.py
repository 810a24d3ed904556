"""Silent followers in the reports for users, on each database."""

from __future__ import annotations

import pytest

from testbed.stores import host


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


def silent(store, ticket):
    """Return the time since which a trial has no follower, on which attempt and list of gangs must agree."""
    (task,) = (task for task in store.queue_view.tasks() if task.trial_id == ticket.trial_id)
    view = store.attempts.get(ticket.attempt_id)
    assert task.heard_at == view.heard_at
    return store.queue_view.silent_since(view.heard_at)


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
    told = f"Stopping: d.task0 (trial {victim.trial_id})."
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
