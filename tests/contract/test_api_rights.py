"""Rights of users, decided by the real code of the API with given answers of an auth manager."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import HTTPException
from starlette.requests import Request

from airflow_provider_dtrain.api.airflow_facts import AirflowFacts
from airflow_provider_dtrain.api.security import Access
from airflow_provider_dtrain.store.records.operations import OperationKind, Through
from airflow_provider_dtrain.store.records.trials import HostRecord
from testbed.stores import host
from tests.support.api_world import Api, GivenFacts, GivenRights
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
#: Changes of an experiment and its trial, each with a body.
EDITS: dict[str, dict[str, Any]] = {
    "/experiments/1/pause": {}, "/experiments/1/activate": {}, "/experiments/1/stop": {}, "/experiments/1/kill": {},
    "/trials/1/pause": {}, "/trials/1/stop": {}, "/trials/1/kill": {},
}  # fmt: skip


@pytest.fixture
def search(store) -> Search:
    store.hosts.add(host("a1", slots=4, pool="a", conn_id="ssh_a"))
    store.hosts.add(host("b1", slots=4, pool="b", conn_id="ssh_b"))
    store.hosts.add(host("c1", slots=4, pool="c", conn_id=None))
    found = Search(store, pool="b")
    found.plan(max_trials=2)
    found.submit(0, slots=1)
    return found


def of_teams(store, **rights: Any) -> Api:
    """Return the API of a user, where DAG d and connection ssh_b are of team b, and connection ssh_a of team a."""
    api = Api(store, operations=True, **rights)
    api.facts.dag_teams = {"d": "b"}
    api.facts.connection_teams = {"ssh_a": "a", "ssh_b": "b"}
    return api


@SQLITE
def test_an_operator_of_a_team_changes_the_hosts_of_this_team_and_those_without_a_team(search, store, monkeypatch):
    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", lambda *_: "run")
    api = of_teams(store, team="a", name="op-of-a")
    for action in ("drain", "enable", "disable", "slots/0/disable", "slots/0/enable"):
        seen = {name: api.answer("POST", f"/hosts/{name}/{action}", json={}).status_code for name in ("a1", "b1", "c1")}
        assert seen == {"a1": 200, "b1": 403, "c1": 200}, action
    assert store.hosts.get("b1").state == "ready"
    assert {entry[3]["host"] for entry in api.logged} == {"a1", "c1"}
    assert api.answer("POST", "/operations/probe", json={"hosts": ["a1", "c1"]}).status_code == 201
    for path, body in (("probe", {"hosts": ["a1", "b1"]}), ("probe", {}), ("doctor", {})):
        assert api.refusal("POST", f"/operations/{path}", json=body)[0] == 403, (path, body)
    shown = {one["name"]: one["details"]["conn_id"] for one in api.get("/cluster", details=True)["hosts"]}
    assert shown == {"a1": "ssh_a", "b1": None, "c1": None}
    assert api.get("/me")["may_change_hosts"] is True


@SQLITE
def test_priorities_and_commands_need_the_connections_of_the_team_of_the_dag_and_of_the_hosts(
    search, store, monkeypatch
):
    monkeypatch.setenv("AIRFLOW__DTRAIN__ALLOW_EXEC", "True")
    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", lambda *_: "run")
    for team, allowed in (("a", False), ("b", True)):
        api = of_teams(store, team=team)
        # Both may read and edit the DAG: only the right on connections is of a team.
        api.facts.dag_teams = {}
        access = api.answer("POST", "/operations/exec", json={"trial_id": 1, "argv": ["true"]}).status_code
        assert access == (201 if allowed else 403), team
        api.facts.dag_teams = {"d": "b"}
        for path in ("/trials/1", "/experiments/1"):
            assert (api.answer("PATCH", path, json={"priority": 5}).status_code == 200) == allowed, (team, path)


@SQLITE
def test_rows_of_a_dag_are_read_and_changed_with_the_rights_of_its_team(search, store):
    for team, status in (("a", 404), ("b", 200)):
        api = of_teams(store, team=team)
        assert api.answer("GET", "/experiments/1").status_code == status
        assert api.answer("PATCH", "/trials/1", json={"tags": [team]}).status_code == status
        assert api.get("/experiments")["total"] == (status == 200)


@pytest.mark.parametrize("team", ["a", "b"])
def test_each_right_on_a_dag_is_asked_for_with_its_team(team):
    facts = GivenFacts()
    facts.dag_teams = {"d": "b"}
    access = Access(None, GivenRights(team=team), facts)
    decisions = (
        access.may_read("d"), bool(access.may_edit({"d"})), access.may_read_logs("d"), access.may_read_code("d"),
        access.may_trigger("d"), access.may_change_queue("d"),
    )  # fmt: skip
    assert set(decisions) == {team == "b"}


@SQLITE
def test_a_user_without_any_connection_learns_nothing_about_hosts(search, store):
    api = Api(store, hosts=False)
    for name in ("a1", "absent"):
        assert api.refusal("POST", f"/hosts/{name}/drain", json={})[0] == 403
        assert api.refusal("POST", "/operations/probe", json={"hosts": [name]})[0] == 403
    assert {one["details"]["conn_id"] for one in api.get("/cluster", details=True)["hosts"]} == {None}
    assert api.get("/me")["may_change_hosts"] is False


@SQLITE
def test_rows_of_a_deleted_dag_are_read_and_changed_by_users_of_all_connections_only(search, store):
    admin, op, user = Api(store), of_teams(store, team="a"), Api(store, hosts=False)
    for api in (admin, op, user):
        api.facts.deleted = {"d"}
        api.facts.dag_teams = {}
    for api in (op, user):
        assert api.answer("GET", "/experiments/1").status_code == 404
        assert api.get("/experiments")["total"] == 0
        for path, body in EDITS.items():
            assert api.answer("POST", path, json=body).status_code == 404, path
        assert api.answer("PATCH", "/trials/1", json={"tags": ["x"]}).status_code == 404
    assert store.trials.get(1).state == "queued"
    assert admin.get("/experiments")["rows"][0]["may_edit"] is True
    assert admin.answer("PATCH", "/trials/1", json={"tags": ["x"]}).status_code == 200


@SQLITE
def test_a_user_who_reads_a_dag_that_airflow_has_forgotten_changes_nothing(search, store, monkeypatch):
    """The two decisions are independent: this one does not rely on the row being hidden."""
    api = Api(store, hosts=False)
    api.facts.deleted = {"d"}
    monkeypatch.setattr(Access, "may_read", lambda *_: True)
    for path, body in EDITS.items():
        assert api.refusal("POST", path, json=body)[:2] == (403, "forbidden"), path
    assert api.refusal("PATCH", "/trials/1", json={"tags": ["x"]})[0] == 403
    assert api.get("/trials/1")["may_edit"] is False


@SQLITE
@pytest.mark.parametrize("path", ["/queue", "/experiments"])
def test_a_kept_answer_is_not_for_a_user_with_other_rights_to_edit(search, store, path):
    editor, reader = Api(store), Api(store, name="bob", editable=())
    reader.state.kept = editor.state.kept
    first = editor.answer("GET", path)
    again = reader.answer("GET", path, headers={"If-None-Match": first.headers["etag"]})
    shown = [{row["may_edit"] for row in answer.json()["rows"]} for answer in (first, again)]
    assert shown == [{True}, {False}]


@SQLITE
@pytest.mark.parametrize("kind", [OperationKind.EXEC, OperationKind.PROBE, OperationKind.DOCTOR])
def test_results_from_hosts_are_no_longer_readable_after_the_right_was_taken_away(search, store, kind):
    arguments = {"hosts": ["a1"]} if kind is OperationKind.PROBE else {}
    trial = 1 if kind is OperationKind.EXEC else None
    number = store.operations.request(kind, trial, arguments, by="ann", through=Through.DAG)
    store.operations.take(number, Through.DAG)
    store.operations.done(number, {"output": "of a command"})
    api = Api(store)
    assert api.get(f"/operations/{number}")["state"] == "done"
    api.rights.hosts = False
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert api.refusal(method, f"/operations/{number}{path}")[:2] == (403, "forbidden")
    api.rights.hosts = True
    api.rights.editable = ()
    assert api.answer("GET", f"/operations/{number}").status_code == (403 if kind is OperationKind.EXEC else 200)


def test_airflow_itself_decides_alike_on_connections_with_teams(airflow_home, monkeypatch):
    """Our decision on hosts beside that of Airflow's own route for their connections, with its own auth manager."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api import security
    from airflow.models.connection import Connection
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    manager = SimpleAuthManager()
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    ids = ("team_a_conn", "team_b_conn", "no_team_conn", "not_in_the_database")
    with create_session() as session:
        session.add_all([Team(name="a"), Team(name="b")])
        session.flush()
        for conn_id, team in zip(ids, ("a", "b", None), strict=False):
            session.add(Connection(conn_id=conn_id, conn_type="ssh", team_name=team))
    try:
        users = [
            SimpleAuthManagerUser(username=f"{role}-{team}", role=role, teams=[team] if team else [])
            for role in ("viewer", "user", "op", "admin")
            for team in ("a", "b", None)
        ]
        seen = {}
        for user in users:
            access = Access(user, manager, AirflowFacts())
            hosts = [HostRecord(name=f"host {one}", pool="p", slot_type="cpu", slots=(), conn_id=one) for one in ids]
            for conn_id in ids:
                ours = (f"host {conn_id}" in access.may_change(hosts), access.may_use_connection(conn_id))
                seen[user.username, conn_id] = (
                    ours,
                    tuple(airflow_allows(security, method, conn_id, user) for method in ("PUT", "GET")),
                )
        assert {key: both for key, both in seen.items() if both[0] != both[1]} == {}
        assert {ours for ours, _ in seen.values()} == {(True, True), (False, False)}
        assert AirflowFacts().teams() == {"a", "b"}
    finally:
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id.in_(ids)).delete()
            session.query(Team).delete()


def airflow_allows(security: Any, method: str, conn_id: str, user: Any) -> bool:
    """Return whether the dependency of Airflow's own route for a connection lets a user through."""

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps({}).encode(), "more_body": False}

    scope = {"type": "http", "method": method, "path": "/", "headers": [], "path_params": {"connection_id": conn_id}}
    try:
        asyncio.run(security.requires_access_connection(method)(Request(scope, receive), user))
    except HTTPException as error:
        return error.status_code != 403
    return True
