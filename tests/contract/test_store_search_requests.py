"""Control requests for whole experiments: stop, pause, activate, kill, and the limit of concurrent trials."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from testbed.stores import host
from tests.support.search_world import Search


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", 8))
    found = Search(store)
    found.plan(max_trials=6)
    return found


def states(search: Search) -> list[str]:
    return [row.state for row in search.store.searches.history(search.view.search_id)]


# -- stop -----------------------------------------------------------------------------------------------


def test_a_stop_of_an_experiment_reaches_trials_that_run_wait_and_come_later(search):
    store, experiment = search.store, search.view.experiment_id
    runs, waits, over = search.start(0), search.submit(1), search.start(2)
    search.end(over)
    assert store.experiments.stop(experiment, "ann") == 2
    late = search.submit(3)
    for ticket in (runs, waits, late):
        assert store.control.pending(ticket.attempt_id).stop_by == "ann"
        assert store.trials.get(ticket.trial_id).stop_requested_by == "ann"
        search.watches.setdefault(ticket.attempt_id, store.attempts.watch(ticket.attempt_id, watcher="test"))
        search.watches[ticket.attempt_id] = store.attempts.watch(ticket.attempt_id, watcher="test")
        search.end(ticket, "stopped")
    assert store.control.pending(over.attempt_id).stop_by is None
    assert states(search) == ["stopped", "stopped", "completed", "stopped"]
    assert store.searches.end(search.view.search_id).state == "completed"
    view = store.experiments.get(experiment)
    assert (view.state, view.control_request, view.requested_by) == ("completed", "stop", "ann")


def test_a_stop_of_one_trial_leaves_the_others_alone(search):
    first, second = search.start(0), search.start(1)
    assert search.store.control.stop(first.trial_id, "ann") == 1
    assert search.store.control.pending(first.attempt_id).stop_by == "ann"
    assert search.store.control.pending(second.attempt_id).stop_by is None
    assert search.store.experiments.get(search.view.experiment_id).control_request is None


def test_who_asked_first_stays_the_one_who_asked(search):
    ticket = search.start(0)
    search.store.control.stop(ticket.trial_id, "ann")
    assert search.store.control.stop(ticket.trial_id, "bob") == 1
    assert search.store.control.pending(ticket.attempt_id).stop_by == "ann"


def test_a_retry_of_a_trial_that_failed_before_the_stop_is_stopped_too(search):
    ticket = search.start(0)
    search.end(ticket, "errored", failure={"kind": "user", "message": "no"})
    assert search.store.experiments.stop(search.view.experiment_id, "ann") == 0
    watch = search.store.attempts.watch(ticket.attempt_id, watcher="the retry")
    again = search.store.attempts.next(ticket.attempt_id, watch, failure={"kind": "user"}, counted=False)
    assert search.store.control.pending(again.attempt_id).stop_by == "ann"


def test_a_clear_after_the_end_of_a_stopped_experiment_runs(search):
    store, experiment = search.store, search.view.experiment_id
    ticket = search.start(0)
    store.experiments.stop(experiment, "ann")
    search.end(ticket, "stopped")
    store.searches.end(search.view.search_id)
    again = search.submit(0, max_tries=1)
    assert store.control.pending(again.attempt_id).stop_by is None
    assert (store.experiments.get(experiment).state, store.experiments.get(experiment).control_request) == (
        "queued",
        None,
    )


def test_a_new_plan_forgets_what_was_wanted_of_the_old_one(search):
    search.store.experiments.stop(search.view.experiment_id, "ann")
    search.plan(max_tries=1)
    assert search.store.control.pending(search.submit(0, max_tries=1).attempt_id).stop_by is None


def test_a_stop_names_a_trial_or_an_experiment_that_exists(search):
    with pytest.raises(NotFoundError, match="no trial 77"):
        search.store.control.stop(77, "ann")
    for ask in ("stop", "kill", "pause", "activate"):
        with pytest.raises(NotFoundError, match="no experiment 77"):
            getattr(search.store.experiments, ask)(77, "ann")


# -- kill, pause, activate ------------------------------------------------------------------------------


def test_a_kill_of_an_experiment_reaches_every_trial_and_outweighs_a_stop(search):
    store, experiment = search.store, search.view.experiment_id
    runs = search.start(0)
    store.experiments.stop(experiment, "ann")
    assert store.experiments.kill(experiment, "bob") == 1
    assert store.experiments.stop(experiment, "ann") == 1
    late = search.submit(1)
    assert [store.control.pending(ticket.attempt_id).kill_by for ticket in (runs, late)] == ["bob", "bob"]
    with pytest.raises(ConflictError, match="being ended by bob"):
        store.experiments.pause(experiment, "ann")


def test_a_paused_experiment_starts_nothing_until_it_is_activated(search):
    store, experiment = search.store, search.view.experiment_id
    runs, waits = search.start(0), search.submit(1)
    assert store.experiments.pause(experiment, "ann") == 2
    late = search.submit(2)
    assert store.control.pending(runs.attempt_id).pause_by == "ann"
    assert states(search) == ["running", "paused", "paused"]
    assert store.queue.schedule("gpus").granted == ()
    for ticket in (waits, late):
        reason = f"it is paused by ann; resume with: airflow dtrain experiments activate {experiment}"
        assert store.attempts.get(ticket.attempt_id).reason == reason
    assert store.experiments.pause(experiment, "bob") == 0
    assert store.experiments.activate(experiment, "ann") == 3
    assert store.queue.schedule("gpus").granted == (waits.allocation_id, late.allocation_id)
    assert store.control.pending(runs.attempt_id).pause_by is None
    assert states(search) == ["running", "queued", "queued"]
    assert store.experiments.activate(experiment, "ann") == 0
    assert search.submit(3)
    assert states(search)[3] == "queued"


def test_an_experiment_that_has_ended_is_neither_paused_nor_activated(search):
    search.store.searches.end(search.view.search_id)
    with pytest.raises(ConflictError, match="is errored: there is nothing to pause"):
        search.store.experiments.pause(search.view.experiment_id, "ann")
    with pytest.raises(ConflictError, match="is errored: there is nothing to activate"):
        search.store.experiments.activate(search.view.experiment_id, "ann")


# -- limit of concurrent trials ---------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [0, 1])
def test_no_more_trials_hold_gangs_than_the_search_allows(store, slots):
    store.hosts.add(host("a", 8))
    search = Search(store)
    search.plan(max_concurrent_trials=2)
    tickets = [search.submit(number, slots=slots) for number in range(4)]
    assert store.queue.schedule("gpus").granted == tuple(ticket.allocation_id for ticket in tickets[:2])
    waits = store.attempts.get(tickets[2].attempt_id)
    assert waits.reason.startswith("2 of 2 trials of the experiment run (max_concurrent_trials).")
    assert waits.expected == "not known; its experiment is at max_concurrent_trials"
    for ticket in tickets[:2]:
        search.follow(ticket.attempt_id)
    assert store.queue.schedule("gpus").granted == ()
    search.end(tickets[0])
    assert store.queue.schedule("gpus").granted == (tickets[2].allocation_id,)
    assert store.queue.schedule("gpus").granted == ()


@pytest.mark.each_change
def test_the_cap_counts_each_search_by_itself(store, submit):
    store.hosts.add(host("a", 8))
    one, other = Search(store), Search(store, run="s", name="f")
    one.plan(max_concurrent_trials=1)
    other.plan(max_concurrent_trials=1)
    tickets = [search.submit(number) for search in (one, other) for number in range(2)]
    plain = submit(slots=0)
    granted = store.queue.schedule("gpus").granted
    assert set(granted) == {tickets[0].allocation_id, tickets[2].allocation_id, plain.allocation_id}


def test_a_gang_that_expired_makes_room_for_another_trial(store):
    store.hosts.add(host("a", 8))
    search = Search(store)
    search.plan(max_concurrent_trials=1)
    first = search.start(0, slots=1)
    store.attempts.end(first.attempt_id, search.watches[first.attempt_id], state="errored", failure={"kind": "infra"})
    second = search.submit(1, slots=1)
    assert store.attempts.get(first.attempt_id).allocation_state == "expired"
    assert store.queue.schedule("gpus").granted == (second.allocation_id,)
