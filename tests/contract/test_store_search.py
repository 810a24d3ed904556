"""Searches: their plan, their generations, their history, and how their experiment ends."""

from __future__ import annotations

import math

import pytest

from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, UserError
from airflow_provider_dtrain.store.records.pages import ExperimentQuery
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host
from tests.support.search_world import Search

FAILURE = {"error": "UserError", "kind": "user", "message": "ValueError: no"}


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", 8))
    return Search(store)


# -- plans ----------------------------------------------------------------------------------------------


@pytest.mark.each_change
def test_a_plan_is_written_once_however_often_its_task_asks(search):
    first = search.plan(rungs={0: (1, 4, 16), 1: (4, 16)}, max_trials=9, max_concurrent_trials=3, seed=2**40)
    again = search.plan(rungs={0: (1,)}, max_trials=3, seed=5)
    assert again == first == search.store.searches.get(first.search_id)
    assert (first.generation, first.rungs, first.seed) == (1, {0: (1, 4, 16), 1: (4, 16)}, 2**40)
    assert (first.max_trials, first.max_concurrent_trials, first.metric) == (9, 3, "loss")
    assert search.store.experiments.get(first.experiment_id).state == "running"


def test_clearing_the_plan_makes_the_next_generation_with_the_same_seed_and_keeps_the_old_one(search):
    first = search.plan(seed=7)
    ticket = search.start(0)
    assert search.ask(ticket, 0, 0.5) == "continue"
    search.end(ticket)
    second = search.plan(max_tries=1, seed=8)
    assert (second.generation, second.seed, second.experiment_id) == (2, 7, first.experiment_id)
    assert search.store.searches.rung_entries(second.search_id) == []
    old = search.start(0, max_tries=1)
    # Worse than every entry of the first generation, and the first entry of its own.
    assert search.ask(old, 0, 9.0) == "continue"
    assert [entry.metric for entry in search.store.searches.rung_entries(first.search_id)] == [0.5]
    assert [row.trial_id for row in search.store.searches.history(first.search_id)] == [ticket.trial_id]
    assert search.plan(max_tries=2, seed=9, is_seed_given=True).seed == 9


def test_two_tasks_of_a_dag_run_cannot_plan_experiments_of_one_name(search):
    search.plan()
    with pytest.raises(ConflictError, match="'other' and task 'plan' of DAG run 'r' both plan an experiment 'e'.*name"):
        search.plan(task="other")
    assert Search(search.store, name="another").plan(task="other").generation == 1
    assert Search(search.store, run="next").plan(task="other").generation == 1


@pytest.mark.parametrize("fields", [{"max_trials": 0}, {"divisor": 1}, {"max_concurrent_trials": -1}])
def test_a_search_with_a_number_out_of_range_is_refused(search, fields):
    with pytest.raises(UserError, match="must be at least 1"):
        search.plan(**fields)
    assert search.store.experiments.list() == []


def test_what_does_not_exist_is_named(search):
    store = search.store
    with pytest.raises(NotFoundError, match="no search 77"):
        store.searches.get(77)
    with pytest.raises(NotFoundError, match="no search 77"):
        store.searches.best_trial(77)
    with pytest.raises(NotFoundError, match="no search 77"):
        store.searches.end(77)
    with pytest.raises(NotFoundError, match="no experiment 77"):
        store.experiments.get(77)
    search.plan()
    with pytest.raises(NotFoundError, match="no search 77"):
        search.submit(0, search_id=77)


# -- trials ---------------------------------------------------------------------------------------------


def test_a_trial_knows_its_search_and_a_plain_one_has_none(search, submit):
    view, store = search.plan(rungs={0: (1, 4), 1: (4,)}), search.store
    ticket, plain = search.submit(3, bracket=1), submit(task="alone")
    attempt, trial = store.attempts.get(ticket.attempt_id), store.trials.get(ticket.trial_id)
    for seen in (attempt, trial):
        assert (seen.search_id, seen.bracket, seen.draw, seen.is_drawn, seen.rung) == (view.search_id, 1, 0, True, None)
    assert store.searches.of_trial(ticket.trial_id) == view
    assert (store.searches.of_trial(plain.trial_id), store.trials.get(plain.trial_id).search_id) == (None, None)


def test_hyperparameters_come_when_the_trial_starts_and_may_be_drawn_again(search):
    store, ticket = search.store, search.submit(0, hparams=None)
    search.follow(ticket.attempt_id)
    assert (store.trials.get(ticket.trial_id).is_drawn, store.trials.get(ticket.trial_id).hparams) == (False, {})
    watch = search.watches[ticket.attempt_id]
    store.searches.set_hparams(ticket.attempt_id, watch, {"lr": 0.1, "name": "ä"}, 0)
    store.searches.set_hparams(ticket.attempt_id, watch, {"lr": 0.2}, 1)
    trial = store.trials.get(ticket.trial_id)
    assert (trial.is_drawn, trial.hparams, trial.draw) == (True, {"lr": 0.2}, 1)
    store.attempts.watch(ticket.attempt_id, watcher="another")
    with pytest.raises(StaleWatchError):
        store.searches.set_hparams(ticket.attempt_id, watch, {"lr": 0.3}, 2)
    assert store.attempts.get(ticket.attempt_id).hparams == {"lr": 0.2}


def test_the_history_has_the_best_finite_metric_of_each_trial(search):
    search.plan(max_trials=3)
    first, second, third = (search.start(number) for number in range(3))
    for value in (0.5, 0.25, math.nan, None, "0.1", True, -math.inf, 10**400, 0.75):
        search.validate(first, loss=value, other=0.0)
    search.commit(first, {"kind": "validation", "metrics": {"loss": 0.0}}, stream="rank1.events")
    search.commit(first, {"kind": "report", "step": 1, "metrics": {"loss": 0.0}})
    search.validate(second, other=1.0)
    search.ask(second, 1, 2.0, units=5)
    search.end(third, "errored", failure=FAILURE)
    rows = search.store.searches.history(search.view.search_id)
    found = [(row.number, row.metric, row.units, row.state, row.hparams) for row in rows]
    assert found == [
        (0, 0.25, 0, "running", {"lr": 0}),
        (1, None, 5, "running", {"lr": 1}),
        (2, None, 0, "errored", {"lr": 2}),
    ]
    assert search.store.trials.get(first.trial_id).best_metric == 0.25


def test_the_best_trial_is_one_that_completed_or_was_stopped(search):
    search.plan(max_trials=4, smaller_is_better=False)
    tickets = [search.start(number) for number in range(4)]
    for ticket, value in zip(tickets, (0.9, 0.7, 0.8, 0.8), strict=True):
        search.validate(ticket, loss=value)
    assert search.store.searches.best_trial(search.view.search_id) is None
    for ticket, state in zip(tickets, ("errored", "completed", "stopped", "stopped"), strict=True):
        search.end(ticket, state)
    best = search.store.searches.best_trial(search.view.search_id)
    assert (best.trial_id, best.best_metric, best.state) == (tickets[2].trial_id, 0.8, "stopped")
    view = search.store.experiments.get(search.view.experiment_id)
    assert (view.best, view.best_trial, view.trials) == (
        0.8,
        best.trial_id,
        {"errored": 1, "completed": 1, "stopped": 2},
    )


def test_clearing_a_trial_lets_the_new_one_stand_in_its_place(search):
    search.plan(max_trials=2)
    other, old = search.start(0), search.start(1)
    search.validate(old, loss=0.1)
    search.end(old)
    new = search.submit(1, max_tries=2)
    store = search.store
    assert (store.trials.get(old.trial_id).is_cleared, store.trials.get(new.trial_id).is_cleared) == (True, False)
    assert [row.trial_id for row in store.searches.history(search.view.search_id)] == [other.trial_id, new.trial_id]
    assert store.searches.best_trial(search.view.search_id) is None


def test_a_cleared_trial_has_the_sample_that_its_task_drew_before(search):
    store, view = search.store, search.plan(max_trials=2)
    first, other = search.start(0, hparams=None), search.start(1, hparams=None)
    store.searches.set_hparams(first.attempt_id, search.watches[first.attempt_id], {"lr": 0.1}, 0)
    store.searches.set_hparams(first.attempt_id, search.watches[first.attempt_id], {"lr": 0.2}, 3)
    cleared = [store.trials.get(search.submit(0, max_tries=tries, hparams=None).trial_id) for tries in (1, 2)]
    assert [(one.hparams, one.draw, one.is_drawn) for one in cleared] == [({"lr": 0.2}, 3, True)] * 2
    again = store.trials.get(search.submit(1, max_tries=1, hparams=None).trial_id)
    assert (again.is_drawn, store.trials.get(other.trial_id).is_cleared) == (False, True), "it had drawn none"
    assert search.plan(max_tries=1).search_id != view.search_id
    assert not store.trials.get(search.submit(0, max_tries=3, hparams=None).trial_id).is_drawn, "of another plan"


@pytest.mark.each_change
def test_the_best_of_earlier_runs_is_that_of_ended_searches_of_the_name_and_metric(search):
    store, found = search.store, []

    def run(name, value, *, end=True, **fields):
        one = Search(store, name=name, run=f"run{len(found)}")
        view = one.plan(max_trials=1, **fields)
        ticket = one.start(0)
        one.validate(ticket, loss=value, accuracy=value)
        one.end(ticket, "stopped")
        if end:
            store.searches.end(view.search_id)
        found.append(view.search_id)
        return view

    first = run("e", 0.5)
    assert store.searches.best_metric_of("e", True, before_search_id=first.search_id) is None
    run("e", 0.4)
    run("e", 0.3, end=False)
    run("other", 0.2)
    run("e", 0.1, metric="accuracy")
    run("e", 0.9, smaller_is_better=False)
    last = run("e", 0.6)
    assert store.searches.best_metric_of("e", True, before_search_id=last.search_id) == 0.4
    assert store.searches.best_metric_of("e", False, before_search_id=last.search_id) == 0.9


# -- the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_a_best_trial_is_announced_again_by_a_retry_or_when_it_is_better(search, sign):
    view = search.plan(smaller_is_better=sign > 0)
    first, cleared = (TrialKey(dag_id="d", run_id="r", task_id="best", max_tries=tries) for tries in (3, 4))
    asked = [(first, 0.5), (first, 0.5), (cleared, 0.5), (cleared, 0.6), (cleared, 0.4), (cleared, 0.4), (first, 0.4)]
    said = [search.store.searches.announce_best(view.search_id, key, sign * metric) for key, metric in asked]
    assert said == [None, None, sign * 0.5, sign * 0.5, None, None, sign * 0.4]
    with pytest.raises(NotFoundError, match="no search 77"):
        search.store.searches.announce_best(77, first, 0.5)


def test_checkpoints_of_refused_hyperparameters_are_not_among_the_best(search):
    first = search.start(0)
    saved = {"kind": "checkpoint", "path": "c", "metrics": {"loss": 0.1}}
    search.commit(first, {**saved, "step": 1})
    again = search.draw_again(first)
    search.commit(again, {**saved, "step": 2})
    found = search.store.checkpoints.of_experiment(first.experiment_id)
    assert [(one.step, one.metrics) for one in found] == [(1, {}), (2, {"loss": 0.1})]
    assert [one.metrics for one in search.store.checkpoints.of_trial(first.trial_id)] == [{"loss": 0.1}] * 2


def state_of(search: Search) -> str:
    return search.store.experiments.get(search.view.experiment_id).state


def test_an_experiment_goes_on_until_the_last_planned_trial_has_ended(search):
    search.plan(max_trials=3)
    search.end(search.start(0))
    search.end(search.start(1), "errored", failure=FAILURE)
    assert state_of(search) == "running"
    search.end(search.start(2), "stopped")
    assert state_of(search) == "completed"
    view = search.store.experiments.get(search.view.experiment_id)
    assert view.trials == {"completed": 1, "errored": 1, "stopped": 1}
    assert view.ended_at is not None


def test_a_cleared_trial_counts_once_towards_the_end(search):
    search.plan(max_trials=2)
    search.end(search.start(0))
    search.end(search.start(0, max_tries=1))
    assert state_of(search) == "running"
    search.end(search.start(1))
    assert state_of(search) == "completed"
    again = search.start(1, max_tries=1)
    assert state_of(search) == "running"
    search.end(again, "errored", failure=FAILURE)
    assert state_of(search) == "completed"


def test_trials_of_an_older_generation_do_not_end_the_newer_one(search):
    search.plan(max_trials=2)
    left = search.start(0)
    search.end(search.start(1))
    search.plan(max_tries=1, max_trials=1)
    search.end(left)
    assert state_of(search) == "running"
    assert search.store.experiments.get(search.view.experiment_id).trials == {}
    search.end(search.start(0, max_tries=1), "errored", failure=FAILURE)
    assert state_of(search) == "errored"


def test_the_selection_ends_a_search_whose_trials_were_not_all_submitted(search):
    search.plan(max_trials=5)
    search.end(search.start(0), "stopped")
    search.end(search.start(1), "errored", failure=FAILURE)
    end = search.store.searches.end(search.view.search_id)
    assert (end.state, end.failure, end.failed_trial_id) == ("completed", None, None)
    assert end.trials == {"stopped": 1, "errored": 1}
    assert state_of(search) == "completed"
    assert search.store.searches.end(search.view.search_id) == end
    # A trial that is cleared afterwards ends the experiment again by itself.
    again = search.start(1, max_tries=1)
    assert state_of(search) == "running"
    search.end(again)
    assert state_of(search) == "completed"


def test_an_experiment_has_ended_with_its_last_trial_however_often_its_best_trial_is_selected(search, clock):
    search.plan(max_trials=1)
    search.end(search.start(0))
    ended_at = search.store.experiments.get(search.view.experiment_id).ended_at
    assert ended_at == clock.now
    for _ in range(2):
        clock.advance(300)
        search.store.searches.end(search.view.search_id)
        assert search.store.experiments.get(search.view.experiment_id).ended_at == ended_at
    # A cleared trial runs again, and its end is the new one.
    again = search.start(0, max_tries=1)
    clock.advance(60)
    search.end(again)
    search.store.searches.end(search.view.search_id)
    assert search.store.experiments.get(search.view.experiment_id).ended_at == clock.now


def test_a_search_without_a_success_names_the_failure_that_came_first(search, clock):
    search.plan(max_trials=3)
    late, early, killed = (search.start(number) for number in range(3))
    search.end(early, "errored", failure={**FAILURE, "message": "the first"})
    clock.advance(5)
    search.end(late, "errored", failure={**FAILURE, "message": "the second"})
    end = search.store.searches.end(search.view.search_id)
    assert (end.state, end.failed_trial_id) == ("errored", early.trial_id)
    assert end.failure["message"] == "the first"
    search.end(killed, "killed")
    assert search.store.searches.end(search.view.search_id).state == "killed"


def test_a_killed_experiment_has_failed_whatever_some_trials_reached(search):
    search.plan(max_trials=2)
    first, second = search.start(0), search.start(1)
    search.end(first)
    search.store.experiments.kill(search.view.experiment_id, "ann")
    search.end(second, "killed")
    assert state_of(search) == "killed"
    end = search.store.searches.end(search.view.search_id)
    assert (end.state, end.trials) == ("killed", {"completed": 1, "killed": 1})
    assert end.failure["message"] == "The experiment was killed by ann."
    # A user who clears the killed trial resumes the experiment.
    search.end(search.start(1, max_tries=1))
    assert search.store.searches.end(search.view.search_id).state == "completed"


def test_a_search_of_which_no_trial_was_started_failed(search):
    search.plan()
    end = search.store.searches.end(search.view.search_id)
    assert (end.state, end.trials, end.failed_trial_id) == ("errored", {}, None)
    assert end.failure["message"] == "No trial of the experiment was started."


def test_ending_an_older_generation_leaves_the_newer_one_alone(search):
    first = search.plan(max_trials=1)
    search.plan(max_tries=1)
    assert search.store.searches.end(first.search_id).state == "errored"
    assert state_of(search) == "running"


@pytest.mark.each_change
def test_experiments_are_listed_newest_first_and_narrowed(search, submit):
    search.plan(max_trials=7, method="grid")
    submit(task="alone", experiment_name="plain")
    store = search.store
    plain, planned = store.experiments.list()
    assert (plain.name, plain.method, plain.search_id, plain.max_trials, plain.trials) == (
        "plain", "single", None, 1, {"queued": 1},
    )  # fmt: skip
    assert (planned.name, planned.method, planned.generation, planned.max_trials, planned.best) == (
        "e", "grid", 1, 7, None,
    )  # fmt: skip
    assert [view.name for view in store.experiments.list(limit=1)] == ["plain"]
    assert [view.name for view in store.experiments.list(name="e", dag_id="d", state="running")] == ["e"]
    assert store.experiments.list(dag_id="other") == store.experiments.list(state="killed") == []


@pytest.mark.each_change
def test_an_experiment_is_queued_while_all_of_its_current_trials_wait_for_slots(search):
    store = search.store
    search.plan(max_trials=3)
    other = Search(store, name="other", run="other")
    other.plan(max_trials=1)
    seen = []

    def see():
        """Check that lists, filters, order and lookups have the same states, and remember that of the search."""
        shown = {view.name: view.state for view in store.experiments.list()}
        for state in ("queued", "running", "completed"):
            expected = sorted(name for name, one in shown.items() if one == state)
            assert sorted(view.name for view in store.experiments.list(state=state)) == expected
            entries, total = store.experiment_table.page(ExperimentQuery(state=state))
            assert (sorted(entry.view.name for entry in entries), total) == (expected, len(expected))
        entries, _ = store.experiment_table.page(ExperimentQuery(sort="state", descending=False))
        assert [entry.view.state for entry in entries] == sorted(shown.values())
        assert [one.state for one in store.lookup.experiments("d", "r")] == [shown["e"]]
        seen.append(shown["e"])

    see()
    first, _ = search.submit(0), search.submit(1)
    see()
    search.follow(first.attempt_id)
    see()
    search.end(first)
    see()
    # Of a cleared task only the newest trial counts.
    search.plan(max_tries=1)
    third = search.submit(0, max_tries=1)
    see()
    search.follow(third.attempt_id)
    search.end(third)
    store.searches.end(search.view.search_id)
    see()
    assert seen == ["running", "queued", "running", "running", "queued", "completed"]
