"""Answers of the API on a store with hosts, trials and a search. Rights are given, see ``api_world``."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
#: For facts that do not depend on the database.
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def search(store):
    store.hosts.add(host("a", slots=4))
    store.hosts.add(host("b", slots=2))
    found = Search(store)
    found.plan(max_trials=4)
    found.start(0, slots=2)
    found.start(1, slots=1)
    return found


def other_dag(store, config_id, slots=1):
    key = TrialKey(dag_id="secret", run_id="r", task_id="train")
    submission = TrialSubmission(key=key, experiment_name="hush", config_id=config_id, pool="gpus", slots=slots)
    return store.trials.submit(submission)


def test_the_cluster_page_has_each_slot_with_its_holder(api, search):
    page = api.get("/cluster")
    (pool,) = page["pools"]
    assert (pool["hosts"], pool["slots"], pool["held"], pool["free"], pool["waiting"]) == (2, 6, 3, 3, 0)
    held = [slot["allocation_id"] for one in page["hosts"] for slot in one["slots"] if "allocation_id" in slot]
    assert sorted(map(str, set(held))) == sorted(page["holders"])
    holders = sorted(page["holders"].values(), key=lambda one: one["trial_id"])
    assert [(one["slots"], one["experiment"], one["trial_name"]) for one in holders] == [
        (2, "e", "0 | lr=0"), (1, "e", "1 | lr=1"),
    ]  # fmt: skip
    assert holders[0]["task"] == {"dag_id": "d", "run_id": "r", "task_id": "trial", "map_index": 0}


def test_pools_are_counted_alike_from_the_slots_of_a_page_and_by_the_database(api, search):
    hosts = search.store.hosts
    for name in ("c", "d", "e"):
        hosts.add(host(name, slots=4))
    hosts.set_slot_enabled("c", 1, False)
    hosts.set_slot_enabled("a", 0, False)
    hosts.mark_slot("c", 0, "stuck", "pid 7")
    hosts.set_state("d", "draining")
    hosts.set_state("e", "unreachable")
    hosts.set_state("e", "lost")
    pools = api.get("/cluster")["pools"]
    assert pools == api.get("/cluster", host="a")["pools"]
    assert pools == api.get("/cluster", pool="gpus")["pools"]
    (pool,) = pools
    assert (pool["hosts"], pool["slots"], pool["held"]) == (5, 18, 3)
    assert pool["free"] == api.get("/queue")["pools"][0]["free"] == 5
    assert api.get("/cluster", pool="none")["pools"] == []


@SQLITE
def test_the_cluster_page_leaves_out_defaults_and_has_devices_only_with_details(api, search):
    search.store.hosts.add(host("c", slots=2))
    search.store.hosts.set_slot_enabled("c", 1, False)
    search.store.hosts.mark_slot("c", 0, "stuck", "pid 7")
    slots = {one["name"]: one["slots"] for one in api.get("/cluster")["hosts"]}
    assert slots["c"] == [{"state": "stuck", "note": "pid 7"}, {"is_enabled": False}]
    (only,) = api.get("/cluster", host="c", details=True)["hosts"]
    assert [slot["device"] for slot in only["slots"]] == ["GPU-c-0", "GPU-c-1"]


@SQLITE
def test_a_holder_of_a_dag_that_the_user_may_not_read_has_no_names(search):
    other_dag(search.store, search.config)
    search.store.queue.schedule("gpus")
    page = Api(search.store, readable={"d"}).get("/cluster")
    (hidden,) = [one for one in page["holders"].values() if one["is_hidden"]]
    assert hidden["slots"] == 1
    assert "secret" not in str(page)
    assert "hush" not in str(page)


@SQLITE
@pytest.mark.parametrize("details", [False, True])
def test_the_note_of_a_slot_is_for_users_who_may_read_the_dag_of_the_gang_that_holds_it(search, details):
    store = search.store
    other_dag(store, search.config)
    store.queue.schedule("gpus")
    for one in store.hosts.slots():
        store.hosts.mark_slot(one.host, one.index, "stuck", f"held by {one.dag_id}")
    api = Api(store)

    def notes():
        hosts = api.get("/cluster", details=details)["hosts"]
        return {slot["note"] for one in hosts for slot in one["slots"] if "note" in slot}

    for readable, shown in ((None, {"d", "secret", "None"}), ({"d"}, {"d"}), ({"secret"}, {"secret"}), (set(), set())):
        api.rights.readable = readable
        assert notes() == {f"held by {dag}" for dag in shown}


def test_the_queue_page_shows_running_gangs_before_waiting_ones_with_their_reasons(api, search):
    search.submit(2, slots=4)
    search.store.queue.schedule("gpus")
    page = api.get("/queue")
    assert [(row["state"], row["slots"], row["position"]) for row in page["rows"]] == [
        ("running", 2, None), ("running", 1, None), ("waiting", 4, 1),
    ]  # fmt: skip
    assert page["rows"][2]["reason"]
    assert page["rows"][0]["placement"]
    assert {row["queue_class"] for row in page["rows"]} == {"fresh"}
    (pool,) = page["pools"]
    assert [pool[name] for name in ("name", "slots", "free", "waiting", "running")] == ["gpus", 6, 3, 1, 2]


def test_the_queue_page_is_filtered_sorted_and_cut(api, search):
    search.submit(2, slots=4)
    assert [row["slots"] for row in api.get("/queue", sort="slots", order="desc")["rows"]] == [4, 2, 1]
    page = api.get("/queue", sort="slots", limit=1, offset=1)
    assert ([row["slots"] for row in page["rows"]], page["total"]) == ([2], 3)
    assert api.get("/queue", state="waiting")["total"] == 1
    assert api.get("/queue", q="TRIAL")["total"] == 3
    assert api.get("/queue", q="%")["total"] == 0
    assert api.get("/queue", pool="none")["rows"] == []


@SQLITE
def test_the_queue_page_has_no_row_of_a_dag_that_the_user_may_not_read(search):
    other_dag(search.store, search.config)
    page = Api(search.store, readable={"d"}, editable=()).get("/queue")
    assert {row["task"]["dag_id"] for row in page["rows"]} == {"d"}
    assert page["total"] == 2
    assert {row["may_edit"] for row in page["rows"]} == {False}


@SQLITE
def test_the_table_of_experiments_has_best_progress_and_tags(api, search, clock):
    search.ask(search.start(2, slots=1), 0, 0.25)
    search.store.control.set("experiment", search.view.experiment_id, description="a try", tags=["x", "big"], by="ann")
    (row,) = api.get("/experiments")["rows"]
    assert (row["name"], row["method"], row["metric"], row["max_trials"]) == ("e", "async_halving", "loss", 4)
    assert row["trials"] == {"running": 3}
    assert (row["description"], row["tags"], row["may_edit"]) == ("a try", ["big", "x"], True)
    assert api.get("/experiments")["tags"] == ["big", "x"]


@pytest.mark.each_change
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"q": "HUS"}, ["hush"]), ({"q": "_"}, []), ({"tag": "x"}, ["e"]), ({"tag": ["x", "no"]}, []),
        ({"dag_id": "secret"}, ["hush"]), ({"state": "completed"}, []), ({"name": "HUS"}, ["hush"]),
        ({"name": "secret"}, []), ({"dag_id": "d", "run_id": "r"}, ["e"]), ({"run_id": "no"}, []),
        ({"sort": "name", "order": "asc"}, ["e", "hush"]),
        ({"sort": "best"}, ["hush", "e"]), ({"sort": "progress"}, ["hush", "e"]), ({"offset": 1}, ["e"]),
    ],
)  # fmt: skip
def test_the_table_of_experiments_is_filtered_and_sorted(api, search, given, found):
    other_dag(search.store, search.config)
    search.store.control.set("experiment", search.view.experiment_id, tags=["x"], by="ann")
    assert [row["name"] for row in api.get("/experiments", **given)["rows"]] == found


@SQLITE
def test_experiments_of_unreadable_dags_do_not_exist_for_the_user(search):
    other_dag(search.store, search.config)
    page = Api(search.store, readable=["d"]).get("/experiments")
    assert ([row["dag_id"] for row in page["rows"]], page["total"]) == (["d"], 1)


@SQLITE
def test_a_task_instance_leads_to_its_trials(api, search):
    found = api.get("/lookup", dag_id="d", run_id="r", task_id="trial", map_index=1)
    assert [one["name"] for one in found["experiments"]] == ["e"]
    assert [(one["name"], one["state"], one["is_current"]) for one in found["trials"]] == [
        ("1 | lr=1", "running", True)
    ]
    assert len(api.get("/lookup", dag_id="d", run_id="r")["trials"]) == 2
    closed = Api(search.store, readable=())
    assert closed.get("/lookup", dag_id="d", run_id="r") == {"experiments": [], "trials": []}


@SQLITE
def test_an_unchanged_page_is_answered_without_its_content(api, search):
    first = api.answer("GET", "/experiments")
    again = api.answer("GET", "/experiments", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    search.store.experiments.stop(search.view.experiment_id, "ann")
    changed = api.answer("GET", "/experiments", headers={"If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200
