"""Answers that are made of kept parts: only changes are read again, and each user gets what the user may read."""

from __future__ import annotations

import sqlite3

import pytest

from airflow_provider_dtrain.api.samples import Samples
from airflow_provider_dtrain.core.search.dimensions import dimensions
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from testbed.stores import host
from tests.support.api_world import Api
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
    """Return the ids of trials with which a method is called from now on."""
    found, method = [], getattr(of, name)

    def record(*given, **more):
        found.append(list(next(one for one in given if not isinstance(one, int))))
        return method(*given, **more)

    monkeypatch.setattr(of, name, record)
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


@pytest.mark.parametrize("by_id", [2, 1])
def test_hyperparameters_of_many_trials_are_those_of_the_requested_ones(search, monkeypatch, by_id):
    monkeypatch.setattr("airflow_provider_dtrain.store.pages.trial_table.IDS_PER_STATEMENT", by_id)
    first, _, drawn_later, last = (search.submit(n, hparams=None if n == 2 else {"lr": n}) for n in range(4))
    samples = search.store.trial_table.samples
    found = samples(search.view.experiment_id, [last.trial_id, first.trial_id])
    assert list(found.items()) == [(first.trial_id, (1, '{"lr":0}')), (last.trial_id, (1, '{"lr":3}'))]
    assert samples(search.view.experiment_id, [drawn_later.trial_id]) == {}
    assert samples(search.view.experiment_id, []) == {}


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
    api.rights.readable = set()
    assert api.answer("GET", path(search, "/hyperparameters")).status_code == 404
    api.rights.readable = None
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


def curves(api, search, **query):
    page = api.get(path(search, "/curves"), metric="loss", **query)
    return {one["number"]: (one["x"], one["y"], one["is_best"], one["state"]) for one in page["series"]}


def test_a_report_of_a_trial_reads_the_curve_of_that_trial_only(api, search, monkeypatch):
    first, second = search.start(0, slots=1), search.start(1, slots=1)
    search.commit(first, {"kind": "validation", "step": 1, "metrics": {"loss": 0.5}})
    assert curves(api, search) == {0: ([1], [0.5], True, "running")}
    read = recorded(monkeypatch, search.store.curves, "of_trials")
    search.commit(second, {"kind": "validation", "step": 1, "metrics": {"loss": float("nan"), "other": 1}})
    assert curves(api, search) == {0: ([1], [0.5], True, "running"), 1: ([1], [None], False, "running")}
    search.commit(second, {"kind": "validation", "step": 2, "metrics": {"loss": 0.25}})
    # The first trial is no longer the best one.
    assert curves(api, search)[1] == ([1, 2], [None, 0.25], True, "running")
    search.end(second)
    assert curves(api, search)[1] == ([1, 2], [None, 0.25], True, "completed")
    ids = [first.trial_id, second.trial_id]
    assert [sorted(one) for one in read] == [[second.trial_id], ids, [second.trial_id]]


def test_a_poll_of_curves_stays_unchanged_while_a_trial_of_another_chart_reports(api, search):
    first, second = search.start(0, slots=1), search.start(1, slots=1)
    search.validate(first, loss=0.5)
    address = f"/curves?metric=loss&trial={first.trial_id}"
    tag = api.answer("GET", address).headers["etag"]
    search.validate(second, loss=0.5)
    assert api.answer("GET", address, headers={"If-None-Match": tag}).status_code == 304
    search.validate(first, loss=0.25)
    assert api.answer("GET", address, headers={"If-None-Match": tag}).status_code == 200


def holders(api):
    return {one["trial_id"]: (one["trial_name"], one["state"]) for one in api.get("/cluster")["holders"].values()}


def test_a_grant_reads_the_new_holder_only_and_a_released_one_disappears(api, search, monkeypatch):
    first = search.start(0, slots=1)
    assert holders(api) == {first.trial_id: ("0 | lr=0", "running")}
    read = recorded(monkeypatch, search.store.cluster_page, "holders")
    second = search.start(1, slots=2)
    assert holders(api)[second.trial_id] == ("1 | lr=1", "running")
    assert read == [[second.allocation_id]]
    search.end(first)
    assert set(holders(api)) == {second.trial_id}


def test_a_holder_that_changes_between_two_reads_is_not_kept_as_it_was_before(api, search, monkeypatch):
    ticket = search.start(0, slots=1)
    page, of = search.store.cluster_page, ticket.allocation_id
    read = page.holders

    def change(state):
        with search.store.db.engine.begin() as conn:
            conn.exec_driver_sql(f"UPDATE allocations SET state = '{state}' WHERE id = {of}")

    def late(ids):
        change("expired")
        return read(ids)

    monkeypatch.setattr(page, "holders", late)
    assert holders(api)[ticket.trial_id][1] == "expired"
    monkeypatch.setattr(page, "holders", read)
    change("running")
    api.state.kept.__init__()
    assert holders(api)[ticket.trial_id][1] == "running"


def test_a_kept_holder_is_hidden_from_a_user_who_may_not_read_its_dag(search):
    key = TrialKey(dag_id="secret", run_id="r", task_id="train")
    search.start(0, slots=1)
    submission = TrialSubmission(key=key, experiment_name="hush", config_id=search.config, pool="gpus", slots=1)
    search.store.trials.submit(submission)
    search.store.queue.schedule("gpus")
    api = Api(search.store)
    assert "hush" in str(api.get("/cluster"))
    api.rights.readable = {"d"}
    assert "hush" not in str(api.get("/cluster"))
    assert "0 | lr=0" in str(api.get("/cluster"))
    api.rights.readable = None
    assert "hush" in str(api.get("/cluster"))


@pytest.mark.parametrize("slots", [(0, 1, 2, 3), (0, 2)])
def test_each_slot_has_its_holder_whether_or_not_the_slots_of_a_gang_are_neighbours(api, search, slots):
    for index in {0, 1, 2, 3} - set(slots):
        search.store.hosts.set_slot_enabled("a", index, False)
    search.store.hosts.set_slot_enabled("b", 0, False)
    ticket = search.start(0, slots=len(slots))
    (host_a,) = [one for one in api.get("/cluster")["hosts"] if one["name"] == "a"]
    held = {index for index, one in enumerate(host_a["slots"]) if one.get("allocation_id") == ticket.allocation_id}
    assert held == set(slots)
