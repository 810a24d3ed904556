"""Several trials of one task: their identity, and the trials that a clear of the task keeps."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.errors import UnplaceableError
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from testbed.stores import host
from tests.support.search_world import Search

FAILURE = {"error": "RankFailedError", "kind": "user", "message": "no"}


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", 8))
    found = Search(store)
    found.plan(max_trials=6)
    return found


def task(search: Search, max_tries: int = 0, **fields: Any) -> list[Ticket]:
    """Submit three trials of one task."""
    of_task = {"map_index": 0, "keeps_result": True, "max_tries": max_tries, **fields}
    return [search.submit(number, trial_index=number, **of_task) for number in range(3)]


def ended(search: Search, tickets: list[Ticket], *states: str) -> None:
    for ticket, state in zip(tickets, states, strict=True):
        search.follow(ticket.attempt_id)
        search.validate(ticket, loss=0.1 * ticket.trial_id)
        search.end(ticket, state, failure=FAILURE if state == "errored" else None)


def test_trials_of_one_task_are_several_and_a_retry_finds_each(search):
    tickets = task(search)
    assert len({ticket.trial_id for ticket in tickets}) == 3
    assert task(search) == tickets
    views = [search.store.attempts.get(ticket.attempt_id) for ticket in tickets]
    assert [(view.key.map_index, view.trial_index, view.trial_number) for view in views] == [
        (0, i, i) for i in range(3)
    ]


@pytest.mark.each_change
@pytest.mark.parametrize("state", ["completed", "stopped"])
def test_a_clear_of_the_task_repeats_only_trials_without_a_result(search, state):
    first = task(search)
    ended(search, first, state, "errored", "killed")
    again = task(search, max_tries=2)
    assert again[0] == first[0]
    assert {ticket.trial_id for ticket in again[1:]}.isdisjoint(ticket.trial_id for ticket in first)
    assert [ticket.is_new for ticket in again] == [False, True, True]
    views = [search.store.trials.get(ticket.trial_id) for ticket in (*first, *again[1:])]
    assert [view.is_cleared for view in views] == [False, True, True, False, False]
    history = search.store.searches.history(search.view.search_id)
    assert [row.trial_id for row in history] == [ticket.trial_id for ticket in again]
    ended(search, again[1:], "completed", "completed")
    assert task(search, max_tries=2) == again
    assert task(search, max_tries=5) == again, "all have results"


def test_trials_of_a_task_are_submitted_together_or_not_at_all(search, store):
    key = TrialKey(dag_id="d", run_id="r", task_id="trial", map_index=3)
    values = {"experiment_name": "e", "config_id": search.config, "pool": "gpus", "search_id": search.view.search_id}
    fits, never = (TrialSubmission(key=key, slots=slots, trial_index=slots, **values) for slots in (1, 99))
    with pytest.raises(UnplaceableError):
        store.trials.submit_several([fits, never])
    assert store.trials.list() == []
    (ticket,) = store.trials.submit_several([fits])
    assert store.trials.submit_several([fits]) == [ticket]


def test_a_clear_while_a_trial_runs_replaces_it(search):
    first = task(search)
    search.follow(first[1].attempt_id)
    again = task(search, max_tries=1)
    key = search.store.attempts.get(again[1].attempt_id).key
    older = [search.store.attempts.older(key, index) for index in range(3)]
    assert [[view.attempt_id for view in views] for views in older] == [[ticket.attempt_id] for ticket in first]


def test_a_task_of_one_trial_repeats_it(search):
    first = task(search, keeps_result=False)
    ended(search, first, "completed", "stopped", "errored")
    again = task(search, max_tries=1, keeps_result=False)
    assert all(search.store.trials.get(ticket.trial_id).is_cleared for ticket in first)
    assert all(ticket.is_new for ticket in again)


def test_another_plan_keeps_nothing(search):
    ended(search, task(search), "completed", "completed", "completed")
    search.plan(max_tries=1, max_trials=6)
    assert all(ticket.is_new for ticket in task(search, max_tries=1))


def test_a_trial_draws_what_its_own_index_drew(search):
    first = task(search, hparams=None)
    for number, ticket in enumerate(first):
        search.follow(ticket.attempt_id)
        watch = search.watches[ticket.attempt_id]
        search.store.searches.set_hparams(ticket.attempt_id, watch, {"lr": number / 10}, 0)
    again = [search.store.trials.get(ticket.trial_id) for ticket in task(search, max_tries=1, hparams=None)]
    assert [view.hparams for view in again] == [{"lr": 0.0}, {"lr": 0.1}, {"lr": 0.2}]
