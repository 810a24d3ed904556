"""Trials that are requeued after a host failure, and the hosts that they exclude, on each database."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.errors import ConflictError
from testbed.stores import host

HOST_FAILED = {"error": "HostUnreachableError", "kind": "infra", "message": "no answer", "host": "h1", "rank": None}


@pytest.mark.each_change
def test_putting_back_keeps_the_place_and_needs_every_host_clear(store, submit, clock):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    first, second = submit(slots=2), submit(slots=4)
    store.queue.schedule("gpus")
    watch = store.attempts.watch(first.attempt_id, watcher="me")
    run = store.queue.take_up(first.attempt_id, watch)
    where = store.attempts.get(first.attempt_id).held_hosts[0]
    with pytest.raises(ConflictError, match=where):
        store.queue.put_back(first.attempt_id, watch, "no python")
    store.queue.release(first.attempt_id, watch, where, proof="clear")
    store.queue.put_back(first.attempt_id, watch, "no python", exclude_host=where)
    view = store.attempts.get(first.attempt_id)
    assert (view.state, view.allocation_state, view.position, view.run) == ("waiting", "waiting", 1, None)
    assert view.allocation_id != first.allocation_id

    def task():
        return next(one for one in store.queue_view.tasks() if one.trial_id == first.trial_id)

    assert (task().state, task().reason) == ("waiting", "no python")
    assert view.allocation_id in store.queue.schedule("gpus").granted
    again = store.attempts.get(first.attempt_id)
    assert where not in again.placement
    assert (task().state, task().reason) == ("granted", "")
    assert store.queue.take_up(first.attempt_id, watch) != run
    assert (task().state, task().reason) == ("starting", "")
    assert second.trial_id


@pytest.mark.each_change
@pytest.mark.parametrize("state", ["starting", "running", "stopping"])
def test_no_slot_becomes_free_by_putting_back_what_one_host_has_not_confirmed(store, submit, start, state):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    ticket = submit(slots=4)
    if state == "starting":
        store.queue.schedule("gpus")
        watch = store.attempts.watch(ticket.attempt_id, watcher="me")
        store.queue.take_up(ticket.attempt_id, watch)
    else:
        watch = start(ticket)
    if state == "stopping":
        store.attempts.set_stopping(ticket.attempt_id, watch, "preempted")
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    before = store.attempts.get(ticket.attempt_id)
    other = submit(slots=2)
    with pytest.raises(ConflictError, match="h2 have not confirmed"):
        store.queue.put_back(ticket.attempt_id, watch, "no python")
    view = store.attempts.get(ticket.attempt_id)
    assert (view.state, view.allocation_id, view.held_hosts) == (before.state, before.allocation_id, ("h2",))
    assert store.queue.schedule("gpus").granted == (other.allocation_id,)
    assert store.attempts.get(other.attempt_id).held_hosts == ("h1",)


def test_an_exclusion_that_leaves_no_host_lapses(store, submit, clock):
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    store.queue.schedule("gpus")
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    store.queue.take_up(ticket.attempt_id, watch)
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    store.queue.put_back(ticket.attempt_id, watch, "no python", exclude_host="h1")
    assert store.queue.schedule("gpus").granted == ()
    clock.advance(10 * 60 + 1)
    store.queue.renew(ticket.attempt_id, watch)
    assert len(store.queue.schedule("gpus").granted) == 1


def test_moving_on_leaves_the_silent_host_held(store, submit, start):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    ticket = submit(slots=2)
    watch = start(ticket)
    where = store.attempts.get(ticket.attempt_id).held_hosts[0]
    after = store.attempts.move_on(ticket.attempt_id, watch, failure=HOST_FAILED, exclude_host=where)
    assert after.attempt_number == 2
    old, new = store.attempts.get(ticket.attempt_id), store.attempts.get(after.attempt_id)
    assert (old.state, old.allocation_state, old.held_hosts) == ("lost", "expired", (where,))
    assert (new.state, new.trial_state, new.restarts) == ("waiting", "queued", 0)
    assert [view.attempt_id for view in store.attempts.unreleased()] == [ticket.attempt_id]
    store.queue.schedule("gpus")
    assert where not in store.attempts.get(after.attempt_id).placement
    store.queue.release(ticket.attempt_id, watch, where, proof="reboot")
    assert store.attempts.get(ticket.attempt_id).allocation_state == "released"
    assert store.attempts.unreleased() == []


def test_an_attempt_that_never_ran_moves_on_itself(store, submit):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 2))
    ticket = submit(slots=2)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    where = store.attempts.get(ticket.attempt_id).held_hosts[0]
    store.queue.release(ticket.attempt_id, watch, where, proof="clear")
    after = store.attempts.move_on(ticket.attempt_id, watch, failure=HOST_FAILED, exclude_host=where)
    assert (after.attempt_id, after.attempt_number) == (ticket.attempt_id, 1)
    assert store.attempts.get(ticket.attempt_id).state == "waiting"


def test_there_is_no_moving_on_without_another_host(store, submit, start):
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    watch = start(ticket)
    before = store.attempts.get(ticket.attempt_id)
    assert store.attempts.move_on(ticket.attempt_id, watch, failure=HOST_FAILED, exclude_host="h1") is None
    assert store.attempts.get(ticket.attempt_id) == before


def test_a_trial_waits_for_a_host_that_is_away_and_that_it_cannot_do_without(store, submit, start, clock):
    store.hosts.add(host("h1", 2))
    store.hosts.add(host("h2", 1))
    ticket = submit(slots=2)
    watch = start(ticket)
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    after = store.attempts.move_on(ticket.attempt_id, watch, failure=HOST_FAILED, exclude_host="h1", away=True)
    watch = store.attempts.watch(after.attempt_id, watcher="me")
    assert store.queue.schedule("gpus").granted == (), "it is not tried again at once"
    assert store.attempts.get(after.attempt_id).unplaceable is False
    clock.advance(31)
    store.queue.renew(after.attempt_id, watch)
    assert store.queue.schedule("gpus").granted == (after.allocation_id,)
    assert store.trials.get(ticket.trial_id).restarts == 0


def test_a_host_that_is_away_stays_left_out_while_others_can_serve_the_trial(store, submit, start, clock):
    for name in ("h1", "h2"):
        store.hosts.add(host(name, 2))
    ticket = submit(slots=2)
    watch = start(ticket)
    where = store.attempts.get(ticket.attempt_id).held_hosts[0]
    store.queue.release(ticket.attempt_id, watch, where, proof="clear")
    after = store.attempts.move_on(ticket.attempt_id, watch, failure=HOST_FAILED, exclude_host=where, away=True)
    clock.advance(3600)
    store.queue.renew(after.attempt_id, store.attempts.watch(after.attempt_id, watcher="me"))
    store.queue.schedule("gpus")
    assert where not in store.attempts.get(after.attempt_id).placement


def test_an_attempt_that_was_refused_and_may_use_the_host_again_keeps_its_failure(store, submit):
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"h1": {"ranks": [{"rank": 0, "slot": 0}]}}})
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    after = store.attempts.move_on(ticket.attempt_id, watch, failure=HOST_FAILED, exclude_host=None)
    old, new = store.attempts.get(ticket.attempt_id), store.attempts.get(after.attempt_id)
    assert (old.state, old.failure) == ("lost", HOST_FAILED)
    assert old.plan is None
    assert store.events.open_logs(ticket.trial_id) == [], "a run of its name may be of another launch"
    assert (new.number, new.state, new.trial_state, new.restarts) == (2, "waiting", "queued", 0)
    assert store.queue.schedule("gpus").granted == (new.allocation_id,)
