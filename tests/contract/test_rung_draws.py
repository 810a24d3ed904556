"""Hyperparameters that a trial draws from the rungs of its search in the store."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.hyperparameters.space import sample
from airflow_provider_dtrain.engine.attempt import sampling
from airflow_provider_dtrain.search.rung_sampler import STARTUP, KnownTrial, draw
from testbed.stores import host
from tests.support.search_world import Search

pytest.importorskip("scipy")

SPACE = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
SEARCHER = {"name": "async_halving", "sampler": "gp", "metric": "loss", "max_trials": 40, "num_rungs": 3}
BRACKETS = {0: (1, 4, 16), 1: (4, 16)}


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a", slots=40))
    found = Search(store)
    document = {"entrypoint": "python train.py", "hyperparameters": SPACE, "searcher": SEARCHER}
    found.config = store.configs.put(document, origins={}).config_id
    found.plan(rungs=BRACKETS, max_trials=40, seed=7)
    return found


def values_of(number: int) -> dict[str, float]:
    return {"lr": (number + 0.5) / 20}


def started(search: Search, number: int, *metrics: float | None, bracket: int = 0):
    """Start a trial that reports a metric at each of its first rungs."""
    ticket = search.start(number, hparams=values_of(number), bracket=bracket, slots=1)
    for rung, metric in enumerate(metrics):
        search.ask(ticket, rung, metric, units=BRACKETS[bracket][rung])
    return ticket


def draws(search: Search, number: int):
    """Return what a trial without hyperparameters draws."""
    ticket = search.start(number, hparams=None, slots=1)
    return sampling.drawn(search.store, search.store.attempts.get(ticket.attempt_id), 0)


def test_a_trial_draws_from_the_metrics_of_all_brackets_and_from_open_trials(search) -> None:
    expected = []
    for number in range(STARTUP):
        # Larger numbers are better, so each trial continues.
        metrics = [1 - number / 20, 0.9 - number / 20][: 1 + number % 2]
        bracket = number % 2
        ticket = started(search, number, *metrics, bracket=bracket)
        is_open = number % 3 > 0
        if not is_open:
            search.end(ticket)
        expected.append(KnownTrial(values_of(number), dict(zip(BRACKETS[bracket], metrics, strict=False)), is_open))
    started(search, 12)
    expected.append(KnownTrial(values_of(12), {}, True))
    own = draws(search, 13)
    assert own == draw(SPACE, seed=7, trial=13, rungs=(1, 4, 16), history=expected)
    assert own != sample(SPACE, experiment_seed=7, trial=13)


def test_a_search_whose_metric_grows_draws_near_the_largest(search) -> None:
    search.name = "accuracy"
    search.plan(rungs=BRACKETS, max_trials=40, seed=7, smaller_is_better=False, task="other")
    for number in range(20):
        search.end(started(search, number, number / 20))
    assert draws(search, 20)["lr"] > 0.8


def test_a_cleared_trial_and_a_metric_that_is_none_count_as_they_do_at_rungs(search) -> None:
    tickets = [started(search, number, 0.5 if number else None) for number in range(STARTUP + 1)]
    search.end(tickets[0])
    search.submit(1, max_tries=1, hparams=values_of(1))
    known = [KnownTrial(values_of(0), {1: None}, False)]
    known += [KnownTrial(values_of(number), {1: 0.5}, True) for number in range(2, STARTUP + 1)]
    # The cleared trial has left, and its successor has not reported yet.
    known.insert(1, KnownTrial(values_of(1), {}, True))
    assert draws(search, 14) == sample(SPACE, experiment_seed=7, trial=14), "one metric fewer than the model needs"
    started(search, 15, 0.4)
    known.append(KnownTrial(values_of(15), {1: 0.4}, True))
    assert draws(search, 16) == draw(SPACE, seed=7, trial=16, rungs=(1, 4, 16), history=known)


def test_a_killed_trial_keeps_its_metrics_and_one_that_failed_ranks_last(search) -> None:
    known = []
    for number in range(STARTUP + 2):
        ticket = started(search, number, 1 - number / 20)
        if number == 12:
            search.end(ticket, "killed")
        elif number == 13:
            search.end(ticket, "errored", failure={"error": "UserError", "kind": "user", "message": "no"})
        metrics = {1: 1 - number / 20, **({4: None} if number == 13 else {})}
        known.append(KnownTrial(values_of(number), metrics, number < 12))
    assert sampling._known_trials(search.store, search.view, trial_id=-1) == known


def test_a_refused_first_draw_is_followed_by_the_first_random_one(search, monkeypatch) -> None:
    for number in range(STARTUP):
        started(search, number, number / 20)
    ticket = search.start(16, hparams=None, slots=1)
    search.store.searches.set_hparams(ticket.attempt_id, search.watches[ticket.attempt_id], {"lr": 0.25}, 0)
    view = search.store.attempts.get(ticket.attempt_id)
    informed = []
    monkeypatch.setattr(sampling, "_known_trials", lambda *_: informed.append(1))
    assert sampling.redrawn(search.store, view) == (1, sample(SPACE, experiment_seed=7, trial=16, draw=1))
    assert informed == [], "the first sample cannot be drawn a second time"
