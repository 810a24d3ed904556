"""Control requests to followers on each database: pause, preemption, priority, recovery."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.lifecycle.shard_blame import shard_failures
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, UserError
from airflow_provider_dtrain.store.database.tables import allocations
from airflow_provider_dtrain.store.queue.transitions import ungrant
from airflow_provider_dtrain.store.records.queue import PendingControlRequests
from testbed.stores import host

FAILED = {"error": "RankFailedError", "kind": "user", "message": "it failed", "host": None, "rank": 0}
CHECKPOINT = {"seq": 1, "at": 1.0, "kind": "checkpoint", "step": 1, "path": "checkpoints/1"}


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


def row_of(store, allocation_id):
    with store.db.engine.connect() as connection:
        return connection.execute(sa.select(allocations).where(allocations.c.id == allocation_id)).one()


def renewed(store, *tickets):
    for ticket in tickets:
        store.queue.renew(ticket.attempt_id, store.attempts.get(ticket.attempt_id).watch)


def test_nobody_wants_anything_from_a_new_attempt(store, submit):
    assert store.control.pending(submit().attempt_id) == PendingControlRequests()
    with pytest.raises(NotFoundError):
        store.control.pending(10**6)


def test_a_kill_and_a_pause_are_control_requests_with_names(store, submit, start):
    ticket = submit()
    start(ticket)
    store.control.kill(ticket.trial_id, "ann")
    store.control.pause(ticket.trial_id, "bob")
    assert store.control.pending(ticket.attempt_id) == PendingControlRequests(kill_by="ann", pause_by="bob")
    assert store.control.activate(ticket.trial_id, "eve")
    assert store.control.pending(ticket.attempt_id) == PendingControlRequests(kill_by="ann")
    assert not store.control.activate(ticket.trial_id, "eve")


def test_a_paused_request_waits_without_slots_and_keeps_its_place(store, submit, clock):
    first, second = submit(slots=2), submit(slots=2)
    store.control.pause(first.trial_id, "ann")
    view = store.attempts.get(first.attempt_id)
    assert (view.paused, view.trial_state, view.allocation_state) == (True, "paused", "waiting")
    assert "paused by ann" in view.reason
    assert store.queue.schedule("gpus").granted == (second.allocation_id,)
    store.attempts.end(second.attempt_id, store.attempts.watch(second.attempt_id, watcher="me"), state="killed")
    third = submit(slots=2)
    assert store.control.activate(first.trial_id, "ann")
    assert store.attempts.get(first.attempt_id).trial_state == "queued"
    assert store.queue.schedule("gpus").granted == (first.allocation_id,)
    assert store.attempts.get(third.attempt_id).allocation_state == "waiting"


def test_the_time_of_a_pause_does_not_count_as_waiting(store, submit, start, clock):
    start(submit(slots=2))
    ticket = submit(slots=2)
    store.attempts.watch(ticket.attempt_id, watcher="me")
    for _ in range(2):
        clock.advance(50)
        renewed(store, ticket)
        store.queue.schedule("gpus")
    store.control.pause(ticket.trial_id, "ann")
    clock.advance(1000)
    renewed(store, ticket)
    store.queue.schedule("gpus")
    store.control.activate(ticket.trial_id, "ann")
    clock.advance(10)
    store.control.pause(ticket.trial_id, "ann")
    assert row_of(store, ticket.allocation_id).waited_s == pytest.approx(110, abs=1)


def test_a_grant_that_was_not_taken_up_is_taken_back_by_a_pause(store, submit):
    ticket = submit(slots=2)
    other = submit(slots=2)
    assert store.queue.schedule("gpus").granted == (ticket.allocation_id,)
    store.control.pause(ticket.trial_id, "ann")
    assert store.queue.take_up(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="me")) is None
    assert store.queue.schedule("gpus").granted == (other.allocation_id,)


def test_a_grant_that_was_taken_up_meanwhile_is_not_taken_back(store, submit):
    ticket = submit(slots=2)
    store.queue.schedule("gpus")
    stale = row_of(store, ticket.allocation_id)
    assert store.queue.take_up(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="me"))
    with store.db.engine.begin() as connection:
        assert ungrant(connection, store.db.now(), stale, "late").state == "starting"
    assert store.attempts.get(ticket.attempt_id).held_hosts == ("h1",)


def test_what_has_ended_cannot_be_paused(store, submit):
    ticket = submit()
    store.attempts.end(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="me"), state="killed")
    with pytest.raises(ConflictError, match="is killed"):
        store.control.pause(ticket.trial_id, "ann")
    with pytest.raises(NotFoundError):
        store.control.pause(10**6, "ann")
    with pytest.raises(NotFoundError):
        store.control.activate(10**6, "ann")


@pytest.mark.parametrize("activated", [False, True])
def test_a_gang_that_is_given_back_for_a_pause_waits_as_people_want_it_by_now(store, submit, start, activated):
    ticket = submit(slots=2)
    watch = start(ticket)
    store.control.pause(ticket.trial_id, "ann")
    store.attempts.set_stopping(ticket.attempt_id, watch, "paused")
    if activated:
        store.control.activate(ticket.trial_id, "ann")
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    after = store.attempts.yield_gang(ticket.attempt_id, watch, reason="paused by ann", paused=True)
    view = store.attempts.get(after.attempt_id)
    assert (view.paused, view.trial_state) == ((False, "queued") if activated else (True, "paused"))
    assert store.queue.schedule("gpus").granted == ((after.allocation_id,) if activated else ())
    assert (view.restarts, view.number) == (0, 2)
    assert store.attempts.get(ticket.attempt_id).state == "preempted"


@pytest.mark.parametrize("state", ["starting", "running", "stopping"])
def test_a_gang_is_given_back_with_place_and_counters_and_no_failure(store, submit, clock, state):
    ticket = submit(slots=2, max_runtime_s=500.0, preemptible=True)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    clock.advance(20)
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    if state != "starting":
        store.attempts.set_running(ticket.attempt_id, watch)
        store.attempts.set_cost(ticket.attempt_id, watch, 7.5)
        store.events.commit(ticket.attempt_id, watch, "h1", "rank0.events", 0, 9, [CHECKPOINT])
    if state == "stopping":
        store.attempts.set_stopping(ticket.attempt_id, watch, "told to go")
    clock.advance(300)
    after = store.attempts.yield_gang(ticket.attempt_id, watch, reason="for trial 9", paused=False)
    assert store.attempts.yield_gang(ticket.attempt_id, watch, reason="for trial 9", paused=False) == after
    old, new = row_of(store, ticket.allocation_id), row_of(store, after.allocation_id)
    assert (old.state, new.state, new.sequence, new.submitted_at) == (
        "expired",
        "waiting",
        old.sequence,
        old.submitted_at,
    )
    assert (new.held_s, new.waited_s, new.eligible_since) == (300, 20, clock.now)
    assert (new.max_runtime_s, new.preemptible) == (500.0, True)
    assert (new.cost_s, new.has_checkpoint) == ((None, False) if state == "starting" else (7.5, True))
    view = store.attempts.get(ticket.attempt_id)
    assert (view.state, view.failure, view.restarts) == ("preempted", None, 0)


def test_a_death_in_a_shard_on_the_way_out_is_stored_and_costs_no_restart(store, submit):
    ticket = submit(slots=2)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_running(ticket.attempt_id, watch)
    died = {"error": "ShardFailedError", "kind": "user", "message": "killed", "shard": {"index": 9, "finished": 1}}
    store.attempts.yield_gang(ticket.attempt_id, watch, reason="paused by ann", paused=True, failure=died)
    views = store.attempts.of_trial(ticket.trial_id)
    assert shard_failures([view.failure for view in views]) == {9: 1}
    assert [view.restarts for view in views] == [0, 0]
    assert store.trials.get(ticket.trial_id).state == "queued"


def test_counters_survive_restarts_and_putting_back(store, submit, clock):
    ticket = submit(slots=2)
    watch = store.attempts.watch(ticket.attempt_id, watcher="me")
    clock.advance(20)
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    clock.advance(5)
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    store.queue.put_back(ticket.attempt_id, watch, "no python")
    put_back = store.attempts.get(ticket.attempt_id).allocation_id
    assert (row_of(store, put_back).held_s, row_of(store, put_back).waited_s) == (5, 20)
    clock.advance(3)
    store.queue.schedule("gpus")
    store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_running(ticket.attempt_id, watch)
    clock.advance(100)
    store.queue.release(ticket.attempt_id, watch, "h1", proof="clear")
    after = store.attempts.next(ticket.attempt_id, watch, failure=FAILED, counted=True)
    new = row_of(store, after.allocation_id)
    assert (new.held_s, new.waited_s, new.state) == (105, 23, "waiting")


def test_an_attempt_that_ended_otherwise_gives_nothing_back(store, submit, start):
    ticket = submit()
    watch = start(ticket)
    store.attempts.end(ticket.attempt_id, watch, state="completed")
    with pytest.raises(ConflictError, match="is completed"):
        store.attempts.yield_gang(ticket.attempt_id, watch, reason="", paused=False)


def test_a_stale_follower_gives_nothing_back(store, submit, start):
    ticket = submit()
    old = start(ticket)
    store.attempts.watch(ticket.attempt_id, watcher="another")
    before = store.attempts.get(ticket.attempt_id)
    for call in (
        lambda: store.attempts.yield_gang(ticket.attempt_id, old, reason="", paused=False),
        lambda: store.attempts.set_cost(ticket.attempt_id, old, 3.0),
    ):
        with pytest.raises(StaleWatchError):
            call()
    assert store.attempts.get(ticket.attempt_id) == before


def test_a_priority_that_changes_while_waiting_changes_the_order(store, submit, start):
    running = submit(slots=2, preemptible=False)
    watch = start(running)
    first, second = submit(slots=2), submit(slots=2)
    assert store.queue.schedule("gpus").granted == ()
    store.control.set("trial", second.trial_id, priority=10, by="ann")
    store.queue.release(running.attempt_id, watch, "h1", proof="clear")
    assert store.queue.schedule("gpus").granted == (second.allocation_id,)
    assert (store.attempts.get(first.attempt_id).priority, store.attempts.get(second.attempt_id).priority) == (42, 10)


@pytest.mark.each_change
def test_an_experiment_is_changed_as_a_whole_and_within_limits(store, submit):
    one, two = submit(), submit()
    other = submit(experiment_name="other")
    store.control.set("experiment", one.experiment_id, weight=2.0, max_slots=4, priority=7, by="ann")
    views = [store.attempts.get(ticket.attempt_id).priority for ticket in (one, two, other)]
    assert views == [7, 7, 42]
    store.control.set("experiment", one.experiment_id, priority=8, by="ann")
    assert store.attempts.get(two.attempt_id).priority == 8
    for values in ({"weight": 0}, {"weight": float("inf")}, {"max_slots": -1}, {"priority": 100}):
        with pytest.raises(UserError):
            store.control.set("experiment", one.experiment_id, **values, by="ann")
    with pytest.raises(NotFoundError):
        store.control.set("experiment", 10**6, weight=1, by="ann")
    with pytest.raises(NotFoundError):
        store.control.set("trial", 10**6, priority=5, by="ann")


@pytest.mark.each_change
def test_what_nobody_cares_for_is_found_and_looked_at_by_one(store, submit, start, clock):
    ended, silent = submit(), submit()
    watch = start(ended)
    start(silent)
    store.attempts.end(ended.attempt_id, watch, state="killed")
    assert [view.attempt_id for view in store.recovery.recoverable()] == [ended.attempt_id]
    clock.advance(61)
    assert [view.attempt_id for view in store.recovery.recoverable()] == [ended.attempt_id, silent.attempt_id]
    with ThreadPoolExecutor(6) as threads:
        got = list(threads.map(lambda n: store.recovery.claim(ended.allocation_id, f"p{n}", 30), range(6)))
    assert sorted(got) == [False] * 5 + [True]
    owner = f"p{got.index(True)}"
    assert store.recovery.claim(ended.allocation_id, owner, 30)
    assert [view.attempt_id for view in store.recovery.recoverable()] == [silent.attempt_id]
    store.recovery.end(ended.allocation_id, "another")
    assert [view.attempt_id for view in store.recovery.recoverable()] == [silent.attempt_id]
    store.recovery.end(ended.allocation_id, owner)
    # The attempt whose last check is longest ago, here never, comes first.
    assert [view.attempt_id for view in store.recovery.recoverable()] == [silent.attempt_id, ended.attempt_id]
    assert [view.attempt_id for view in store.recovery.recoverable(limit=1)] == [silent.attempt_id]


def test_a_recoverer_that_dies_is_followed_by_another_one(store, submit, start, clock):
    ticket = submit()
    store.attempts.end(ticket.attempt_id, start(ticket), state="killed")
    assert store.recovery.claim(ticket.allocation_id, "one", 30)
    clock.advance(30)
    assert [view.attempt_id for view in store.recovery.recoverable()] == [ticket.attempt_id]
    assert store.recovery.claim(ticket.allocation_id, "two", 30)
    assert not store.recovery.claim(ticket.allocation_id, "one", 30)


def test_a_silent_host_is_probed_once_per_30_s_over_all_processes(store, clock):
    assert store.recovery.hosts_to_probe() == []
    store.hosts.set_state("h1", "unreachable", "no answer")
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: store.recovery.hosts_to_probe(), range(6)))
    assert sorted(found) == [[]] * 5 + [["h1"]]
    clock.advance(29)
    assert store.recovery.hosts_to_probe() == []
    clock.advance(1)
    assert store.recovery.hosts_to_probe() == ["h1"]
    clock.now += timedelta(seconds=31)
    store.hosts.set_state("h1", "ready")
    assert store.recovery.hosts_to_probe() == []


def test_a_clock_that_was_an_hour_ahead_keeps_nobody_from_looking(store, submit, start, clock):
    clock.advance(3600)
    ended, silent = submit(), submit()
    watch = start(ended)
    start(silent)
    store.attempts.end(ended.attempt_id, watch, state="killed")
    store.hosts.set_state("h1", "unreachable", "no answer")
    assert store.recovery.hosts_to_probe() == ["h1"]
    assert store.recovery.claim(ended.allocation_id, "one", 60)
    clock.advance(-3600)
    assert {view.attempt_id for view in store.recovery.recoverable()} == {ended.attempt_id, silent.attempt_id}
    assert store.recovery.claim(ended.allocation_id, "two", 60)
    assert not store.recovery.claim(ended.allocation_id, "one", 60)
    assert store.recovery.hosts_to_probe() == ["h1"]
    assert store.recovery.hosts_to_probe() == []
