"""Answers that are made of kept parts: only changes are read again, and each user gets what the user may read."""

from __future__ import annotations

import sqlite3

import pytest

from airflow_provider_dtrain.api.samples import Samples
from airflow_provider_dtrain.core.search.dimensions import dimensions
from testbed.stores import host
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.parametrize("url", ["sqlite"], indirect=True)]
SPACE = {"lr": {"type": "double", "minval": 0, "maxval": 100}, "seed": 3}


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    store.hosts.add(host("b", slots=2))
    found = Search(store)
    found.config = store.configs.put({"entrypoint": "x", "hyperparameters": SPACE}, origins={}).config_id
    found.plan(max_trials=9)
    return found


def recorded(monkeypatch, of, name):
    """Return the first arguments of the calls of a method from now on."""
    found, method = [], getattr(of, name)
    monkeypatch.setattr(of, name, lambda some, *rest, **more: found.append(list(some)) or method(some, *rest, **more))
    return found


def path(search, more=""):
    return f"/experiments/{search.view.experiment_id}{more}"


def shown(api, search):
    page = api.get(path(search, "/hyperparameters"))
    return dict(zip(page["trial_id"], zip(page["metric"], page["columns"]["lr"], strict=True), strict=True))


def test_a_report_of_a_trial_reads_no_hyperparameters_again_and_a_new_sample_those_of_its_trial(
    api, search, monkeypatch
):
    api.state.importances.start = lambda *_, **__: None
    first, second = search.start(0, slots=1), search.start(1, slots=1)
    assert shown(api, search) == {first.trial_id: (None, 0), second.trial_id: (None, 1)}
    read = recorded(monkeypatch, search.store.trial_table, "samples")
    search.validate(first, loss=0.5)
    assert shown(api, search) == {first.trial_id: (0.5, 0), second.trial_id: (None, 1)}
    assert read == [[]]
    search.store.searches.set_hparams(second.attempt_id, search.watches[second.attempt_id], {"lr": 7}, 4)
    assert shown(api, search)[second.trial_id] == (None, 7)
    assert read == [[], [second.trial_id]]


def test_the_first_sample_of_a_trial_is_a_new_version(api, search):
    ticket = search.start(0, slots=1, hparams=None)
    assert shown(api, search) == {ticket.trial_id: (None, None)}
    search.store.searches.set_hparams(ticket.attempt_id, search.watches[ticket.attempt_id], {"lr": 7}, 0)
    assert shown(api, search) == {ticket.trial_id: (None, 7)}


def test_a_trial_that_is_cleared_or_deleted_leaves_the_hyperparameters(api, search, tmp_path):
    first, second = search.start(0, slots=1), search.submit(1, slots=1)
    assert set(shown(api, search)) == {first.trial_id, second.trial_id}
    search.end(first)
    again = search.submit(0, slots=1, max_tries=1)
    assert set(shown(api, search)) == {again.trial_id, second.trial_id}
    with sqlite3.connect(search.store.db.engine.url.database) as rows:
        rows.execute("DELETE FROM trials WHERE id = ?", [second.trial_id])
    rows.close()
    assert set(shown(api, search)) == {again.trial_id}


def test_kept_hyperparameters_are_not_for_a_user_who_may_not_read_the_dag(api, search):
    search.start(0, slots=1)
    everything = shown(api, search)
    api.access.given = set()
    assert api.answer("GET", path(search, "/hyperparameters")).status_code == 404
    api.access.given = None
    assert shown(api, search) == everything


def test_the_hyperparameters_of_the_experiment_that_was_not_requested_for_longest_are_dropped(
    store, search, monkeypatch
):
    ticket = search.submit(0)
    (of,) = [one for one in dimensions(SPACE) if one.kind != "const"]
    trials = store.trial_table.columns(search.view.experiment_id, most=10)
    read = recorded(monkeypatch, store.trial_table, "samples")
    kept = Samples(kept_characters=2 * len('{"lr":0}'))
    for experiment in (1, 2, 1, 3, 1, 2):
        assert kept.columns(store, experiment, [of], trials) == {"lr": (0,)}
    assert read == [[ticket.trial_id], [ticket.trial_id], [], [ticket.trial_id], [], [ticket.trial_id]]
