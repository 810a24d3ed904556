"""Authorization of every route, on a real API server of Airflow with a user of each role.

The matrix comes from the routes of the application: a route without a rule fails in ``test_api_document``, and a new
route is part of the matrix at once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from airflow_provider_dtrain.api.app import PREFIX, create_app
from airflow_provider_dtrain.api.security import READING, Rule
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey
from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ROLES, ApiServer
from testbed.stores import host, new_sqlite
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

#: Rule -> the least role of the simple auth manager that it lets through.
LEAST = {Rule.READ: "viewer", Rule.EDIT_DAG: "user", Rule.START: "user", Rule.CHANGE_HOSTS: "op"}
IN_ORDER = ("viewer", "user", "op", "admin")
QUERIES = {
    "/lookup": "dag_id=d&run_id=r", "/curves": "metric=loss&trial=1", "/compare": "trial=1&trial=2",
    "/trials/{trial_id}/outputs/download": "path=x",
}  # fmt: skip
CONFIG = {"config": "name: x\nentrypoint: python t.py\n"}
BODIES = {"/configs/validate": CONFIG, "/experiments": CONFIG}
KNOWN_DAG = """
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session
with create_session() as session:
    if session.get(DagBundleModel, "dags-folder") is None:
        session.add(DagBundleModel(name="dags-folder"))
    session.flush()
    session.add(DagModel(dag_id="d", bundle_name="dags-folder", fileloc="/d.py", is_stale=False))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder: Path = tmp_path_factory.mktemp("api-server")
    url = new_sqlite(folder / "store" / "dtrain.db")
    fill(url)
    found = ApiServer(folder / "home", url)
    for command in (["-m", "airflow", "db", "migrate"], ["-c", KNOWN_DAG]):
        subprocess.run([sys.executable, *command], env=found.environment, check=True, capture_output=True, timeout=300)
    found.start()
    yield found
    found.stop()


def fill(url: str) -> None:
    """Write an experiment with two trials and a held gang of DAG d."""
    store = Store.open(url)
    store.hosts.add(host("a", slots=8))
    search = Search(store)
    search.plan(max_trials=4)
    search.submit(0, slots=1)
    search.submit(1, slots=1)
    store.gangs.submit(GangSubmission(key=TrialKey(dag_id="d", run_id="r", task_id="sensor"), pool="gpus", slots=1))
    store.close()


def matrix() -> list[tuple[str, str, Rule]]:
    """Return method, path and rule of every route."""
    return [
        (method, route.path, Rule(route.openapi_extra["x-dtrain-rule"]))
        for route in create_app().routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods - {"HEAD"})
    ]


def concrete(path: str) -> str:
    short = path.removeprefix("/api/v1")
    for name, value in {
        "experiment_id": 1, "trial_id": 1, "checkpoint_id": 1, "name": "a", "index": 0, "allocation_id": 3,
    }.items():  # fmt: skip
        path = path.replace(f"{{{name}}}", str(value))
    query = QUERIES.get(short)
    return f"{PREFIX}{path}" + (f"?{query}" if query else "")


def body(method: str, path: str) -> object:
    if method in READING:
        return None
    return {"priority": 5} if path.endswith("/priority") else BODIES.get(path.removeprefix("/api/v1"), {})


def test_no_route_answers_without_a_login(server):
    answers = {
        (method, path): server.request(method, concrete(path), body(method, path), headers={"X-Dtrain": "1"})[0]
        for method, path, _ in matrix()
    }
    assert {route: status for route, status in answers.items() if status != 401} == {}
    assert server.request("GET", f"{PREFIX}/api/v1/me", token="forged")[0] in {401, 403}


@pytest.mark.parametrize("role", IN_ORDER)
def test_each_role_may_do_what_the_rule_of_a_route_says(server, role):
    token = server.token(role)
    wrong = {}
    for method, path, rule in matrix():
        status, answer = server.request(method, concrete(path), body(method, path), token=token)
        may = IN_ORDER.index(role) >= IN_ORDER.index(LEAST[rule])
        if (status in {401, 403}) == may or status >= 500:
            wrong[method, path] = status, answer
    assert wrong == {}


def test_a_cookie_alone_changes_nothing_without_the_header(server):
    cookie = {"Cookie": f"_token={server.token('admin')}"}
    for method, path, _ in matrix():
        if method in READING or path.endswith("/validate"):
            continue
        status, answer = server.request(method, concrete(path), body(method, path), headers=cookie)
        assert (status, answer["detail"]["code"]) == (403, "cross_site"), path
    path = f"{PREFIX}/api/v1/hosts/a/slots/0/enable"
    assert server.request("POST", path, {}, headers={**cookie, "X-Dtrain": "1"})[0] == 200
    assert server.request("GET", f"{PREFIX}/api/v1/me", headers=cookie)[1]["user"] == "admin"


def test_an_action_is_in_the_audit_log_of_airflow_with_the_name_of_the_user(server):
    path = f"{PREFIX}/api/v1/experiments/1"
    assert server.request("PATCH", path, {"tags": ["x"]}, token=server.token("user"))[0] == 200
    query = "/api/v2/eventLogs?event=dtrain_experiment_labels&order_by=-id&limit=1"
    status, answer = server.request("GET", query, token=server.token("admin"))
    assert status == 200, answer
    (entry,) = answer["event_logs"]
    assert (entry["owner"], entry["dag_id"], entry["run_id"]) == ("user", "d", "r")
    assert '"experiment_id": 1' in entry["extra"]


def test_me_says_what_the_user_may_do_and_which_command_is_missing(server):
    viewer = server.request("GET", f"{PREFIX}/api/v1/me", token=server.token("viewer"))[1]
    assert (viewer["user"], viewer["may_change_hosts"]) == ("viewer", False)
    assert server.request("GET", f"{PREFIX}/api/v1/me", token=server.token("op"))[1]["may_change_hosts"] is True
    assert viewer["starting"]["exists"] is False
    assert "airflow dtrain init" in viewer["starting"]["hint"]


def test_the_openapi_document_is_served_to_users_only(server):
    path = f"{PREFIX}/api/v1/openapi.json"
    assert server.request("GET", path)[0] == 401
    assert "/api/v1/cluster" in server.request("GET", path, token=server.token("viewer"))[1]["paths"]
    assert server.request("GET", f"{PREFIX}/openapi.json", token=server.token("admin"))[0] == 404
    assert server.request("GET", f"{PREFIX}/docs", token=server.token("admin"))[0] == 404


def test_the_roles_are_those_of_the_server() -> None:
    assert set(IN_ORDER) == set(ROLES)
