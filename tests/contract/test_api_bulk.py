"""Owners, projects and archives in the API, and actions on several experiments. Rights are given, see ``api_world``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_dtrain.api.init_dags import OPERATIONS_DAG_ID, DagState
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.parametrize("url", ["sqlite"], indirect=True)]
HOSTILE = ["<script>alert(1)</script>", "\u202etxt.exe", "'; DROP TABLE experiments; --", "%", "a" * 512]


@pytest.fixture
def pool(store: Store) -> Store:
    store.hosts.add(host("a", slots=8))
    return store


@pytest.fixture
def api(pool: Store) -> Api:
    return Api(pool)


def planned(store: Store, name: str, *, dag: str = "d", **fields: Any) -> Search:
    search = Search(store, name=name, dag=dag, run=f"r-{name}")
    search.plan(max_trials=1, **fields)
    return search


def ended(store: Store, name: str, *, dag: str = "d", **fields: Any) -> int:
    search = planned(store, name, dag=dag, **fields)
    search.end(search.start(0, slots=1))
    return search.view.experiment_id


def acted(api: Api, action: str, ids: list[int], **body: Any) -> dict[str, Any]:
    answer = api.answer("POST", "/experiments/actions", json={"action": action, "experiment_ids": ids, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(api: Api, query: str = "") -> list[str]:
    return sorted(row["name"] for row in api.answer("GET", f"/experiments?{query}").json()["rows"])


def test_experiments_are_listed_by_owner_project_and_archive(api, pool):
    old = ended(pool, "old", owner="ann")
    ended(pool, "new", owner="ann", project="vision")
    ended(pool, "theirs", owner="bob")
    acted(api, "archive", [old])
    assert names(api) == ["new", "theirs"]
    assert names(api, "mine=true") == ["new"]
    assert names(api, "mine=true&owner=bob&archived=all") == ["new", "old"]
    assert names(api, "owner=bob") == ["theirs"]
    assert names(api, "project=vision") == ["new"]
    assert names(api, "archived=only") == ["old"]
    page = api.answer("GET", "/experiments").json()
    assert (page["owners"], page["projects"]) == (["ann", "bob"], ["Uncategorized", "vision"])
    csv = api.answer("GET", "/experiments.csv?mine=true").text
    assert "vision" in csv
    assert "bob" not in csv


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_owners_and_projects_are_only_text(api, pool, name):
    ended(pool, "e", owner=name, project=name[:128])
    assert names(api, "owner=zoe") == []
    for field, value in (("owner", name), ("project", name[:128])):
        found = api.get("/experiments", **{field: value})
        assert [row[field] for row in found["rows"]] == [value]


def test_owners_and_projects_of_hidden_dags_are_hidden(pool):
    ended(pool, "mine", owner="ann")
    ended(pool, "hidden", dag="secret", owner="eve", project="secret project")
    page = Api(pool, readable={"d"}).answer("GET", "/experiments").json()
    assert (page["owners"], page["projects"]) == (["ann"], ["Uncategorized"])


def test_me_knows_whether_the_user_owns_an_experiment(api, pool):
    assert api.answer("GET", "/me").json()["owns_experiments"] is False
    ended(pool, "e", owner="ann")
    assert api.answer("GET", "/me").json()["owns_experiments"] is True


def test_a_dry_run_names_counts_and_changes_nothing(api, pool):
    done, running = ended(pool, "done"), planned(pool, "running")
    running.submit(0, slots=1)
    found = acted(api, "delete", [done, running.view.experiment_id, done], dry_run=True)
    assert (found["done_count"], found["refused_count"], found["freed"]["trials"]) == (1, 1, 1)
    assert found["message"].startswith("1 experiment: deleted for good. Removed with them: 1 trial, 0 checkpoints")
    assert "has not ended" in found["outcomes"][1]["message"]
    assert api.logged == []
    assert pool.deletions.pending() == []


def test_each_experiment_is_refused_alone_and_the_audit_has_the_others(api, pool):
    done, running = ended(pool, "done"), planned(pool, "running")
    running.submit(0, slots=1)
    found = acted(api, "archive", [done, running.view.experiment_id])
    assert [one["is_refused"] for one in found["outcomes"]] == [False, True]
    assert pool.experiments.get(done).archived
    assert not pool.experiments.get(running.view.experiment_id).archived
    assert [event for event, *_ in api.logged] == ["experiment_archive", "experiment_archive"]


def test_experiments_are_moved_tagged_stopped_and_killed(api, pool):
    one, two = (planned(pool, name) for name in ("one", "two"))
    ids = [search.view.experiment_id for search in (one, two)]
    for search in (one, two):
        search.submit(0, slots=1)
    assert acted(api, "move", ids, project="vision")["done_count"] == 2
    acted(api, "tag", ids, tags=["paper"])
    acted(api, "stop", ids[:1])
    acted(api, "kill", ids[1:])
    views = [pool.experiments.get(number) for number in ids]
    assert [(view.project, view.control_request, view.requested_by) for view in views] == [
        ("vision", "stop", "ann"),
        ("vision", "kill", "ann"),
    ]
    assert pool.labels.get("experiment", ids[0]).tags == ("paper",)


def test_a_deletion_hides_the_experiment_and_says_what_removes_its_data(api, pool):
    number = ended(pool, "gone")
    found = acted(api, "delete", [number])
    assert "airflow dtrain gc" in found["message"]
    assert names(api, "archived=all") == []
    assert pool.deletions.pending() == [number]
    assert api.answer("GET", f"/experiments/{number}").json()["is_deleting"] is True


def test_a_run_of_the_dag_for_operations_removes_the_data(api, pool, monkeypatch):
    number = ended(pool, "gone")
    api.facts.dags[OPERATIONS_DAG_ID] = DagState(exists=True)
    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", lambda conf, by, dag_id: "run-1")
    assert f"Run run-1 of the DAG {OPERATIONS_DAG_ID} removes" in acted(api, "delete", [number])["message"]
    (operation,) = [pool.operations.get(1)]
    assert operation.arguments["experiments"] == [number]


def test_an_action_needs_the_right_to_edit_and_other_experiments_are_not_named(pool):
    mine, readable, hidden = ended(pool, "mine"), ended(pool, "read", dag="b"), ended(pool, "hidden", dag="c")
    api = Api(pool, readable={"d", "b"}, editable={"d"})
    found = acted(api, "archive", [mine, readable, hidden, 999])
    assert (found["done_count"], found["refused_count"]) == (1, 3)
    words = {one["experiment_id"]: (one["name"], one["message"]) for one in found["outcomes"]}
    assert words[readable] == ("", "You may not edit runs of DAG 'b'.")
    assert words[hidden] == ("", words[999][1].replace("999", str(hidden)))
    assert [event[0] for event in api.logged] == ["experiment_archive"]
    assert (
        api.refusal("POST", "/experiments/actions", json={"action": "archive", "experiment_ids": [readable]})[0] == 403
    )
    assert api.refusal("POST", "/experiments/actions", json={"action": "archive", "experiment_ids": [hidden]})[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {"action": "archive", "experiment_ids": []},
        {"action": "archive", "experiment_ids": [1] * 201},
        {"action": "archive", "experiment_ids": [2**63]},
        {"action": "explode", "experiment_ids": [1]},
        {"action": "move", "experiment_ids": [1]},
        {"action": "move", "experiment_ids": [1], "project": "a\x00b"},
        {"action": "move", "experiment_ids": [1], "project": "x" * 129},
        {"action": "tag", "experiment_ids": [1]},
        {"action": "tag", "experiment_ids": [1], "tags": ["a,b"]},
    ],
)
def test_a_wrong_request_is_refused_as_a_whole(api, pool, body):
    ended(pool, "e")
    assert api.refusal("POST", "/experiments/actions", json=body)[0] == 422
    assert pool.experiments.get(1).archived is False
