"""Authorization of every route, on a real API server of Airflow with a user of each role.

The matrix comes from the routes of the application: a route without a rule fails in ``test_api_document``, and a new
route is part of the matrix at once.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_dtrain.api.app import PREFIX
from airflow_provider_dtrain.api.security import READING, Rule
from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.main import main
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.submission import run_state
from airflow_provider_dtrain.hosts.payload import pack
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ApiServer
from testbed.roles import ROLES
from testbed.stores import Server, new_sqlite, server_programs
from tests.support.api_routes import CONFIG, SEARCH, SECRET, body, concrete, fill, matrix, prepare, refused
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

#: Rule -> the least role of the simple auth manager that it lets through.
LEAST = {
    Rule.READ: "viewer",
    Rule.READ_LOGS: "viewer",
    Rule.READ_CODE: "viewer",
    Rule.FETCH: "viewer",
    Rule.OWN_VIEWS: "viewer",
    Rule.EDIT_DAG: "user",
    Rule.START: "user",
    Rule.EXEC: "op",
    Rule.CHANGE_HOSTS: "op",
}
IN_ORDER = ("viewer", "user", "op", "admin")
RUNS = "/api/v2/dags/dtrain_experiment/dagRuns"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder: Path = tmp_path_factory.mktemp("api-server")
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url = new_sqlite(folder / "store" / "dtrain.db")
        else:
            url = stack.enter_context(postgresql())
        fill(url)
        found = ApiServer(folder / "home", url)
        prepare(found)
        stack.callback(found.stop)
        found.start()
        yield found


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Yield the URL of a migrated database of a PostgreSQL server of its own."""
    programs = server_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    server = Server(programs)
    server.start()
    try:
        with server.new_store() as url:
            yield url
    finally:
        server.stop()


@pytest.fixture
def ready(server: ApiServer) -> Store:
    """The store, with a host that gets gangs: tests of all routes have disabled it."""
    assert server.request("POST", f"{PREFIX}/api/v1/hosts/a/enable", {}, token=server.token("op"))[0] == 200
    return store_of(server)


@pytest.mark.nightly
def test_no_route_answers_without_a_login(server):
    answers = {
        (method, path): server.request(method, concrete(path), body(method, path), headers={"X-Dtrain": "1"})[0]
        for method, path, _ in matrix()
    }
    assert {route: status for route, status in answers.items() if status != 401} == {}
    assert server.request("GET", f"{PREFIX}/api/v1/me", token="forged")[0] in {401, 403}


@pytest.mark.parametrize("role", IN_ORDER)
def test_each_role_may_do_what_the_rule_of_a_route_says(server, role):
    allowed = {rule: IN_ORDER.index(role) >= IN_ORDER.index(least) for rule, least in LEAST.items()}
    assert refused(server, server.token(role), allowed) == {}


def test_dtrain_logs_in_submits_lists_and_stops_with_the_rights_of_its_user(
    server, ready, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**SEARCH, "name": "mine"}))
    start = ["experiments", "create", str(tmp_path / "mine.yaml"), str(tmp_path / "code")]

    def login(user: str, password: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
        return main(["login", "--server", server.base, "--username", user, "--password-stdin"])

    assert (login("viewer", "wrong"), login("viewer", "viewer")) == (1, 0)
    assert main(["trials", "list", "-o", "json"]) == 0
    assert "e" in {row["experiment"] for row in json.loads(capsys.readouterr().out)}
    assert (main(start), main(["trials", "stop", "1", "-y"])) == (1, 1)
    assert "You may not" in capsys.readouterr().err
    assert login("user", "user") == 0
    assert main([*start, "-o", "json"]) == 0
    started = json.loads(capsys.readouterr().out)
    session = Session(address(server.base))
    assert run_state(session, started["dag"], started["dag_run"]) in {"queued", "running"}
    assert ready.payloads.has(pack(tmp_path / "code").digest)
    assert main(["trials", "set", "1", "--tag", "seen"]) == 0
    assert ready.labels.get("trial", 1).tags == ("seen",)


@pytest.mark.nightly
def test_two_hundred_megabytes_are_refused_with_the_limit_and_never_in_memory(
    server, ready, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DTRAIN_TOKEN", server.token("user"))
    (tmp_path / "code").mkdir()
    with (tmp_path / "code" / "data.bin").open("wb") as file:
        file.truncate(200 << 20)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**SEARCH, "entrypoint": "python data.bin"}))
    before = last_entry(server, "dtrain_experiment_start")["event_log_id"]
    words = ["experiments", "create", str(tmp_path / "mine.yaml"), str(tmp_path / "code"), "--server", server.base]
    assert main(words) == 1
    assert "200.0 MiB in 1 files, at most 96.0 MiB" in capsys.readouterr().err
    bomb = gzip.compress(bytes(200 << 20), 1)
    for path, status, size_bytes, most_mib in [
        ("/code", 413, 200 << 20, 16),
        ("/code", 413, None, 160),
        ("/code", 422, len(bomb), 32),
        ("/experiments", 413, 200 << 20, 16),
        ("/experiments", 413, None, 48),
        ("/configs/validate", 413, None, 48),
    ]:
        peak = Peak(server.pid)
        body = (bomb,) if status == 422 else (bytes(1 << 20) for _ in range(200))
        found, text = sent(server, path, body, size_bytes)
        assert (found, "at most" in text or "more than 96 MiB" in text) == (status, True), (path, size_bytes, text)
        assert peak.mib() < most_mib, (path, size_bytes)
    assert last_entry(server, "dtrain_experiment_start")["event_log_id"] == before


class Peak:
    """Growth of the largest size of a process in memory from now on."""

    def __init__(self, pid: int) -> None:
        self.folder = Path("/proc", str(pid))
        (self.folder / "clear_refs").write_text("5")
        self.before = self._peak()

    def _peak(self) -> int:
        return next(int(line.split()[1]) for line in (self.folder / "status").open() if line.startswith("VmHWM"))

    def mib(self) -> float:
        return (self._peak() - self.before) / 1024


def sent(server: ApiServer, path: str, body: Iterable[bytes], size_bytes: int | None) -> tuple[int, str]:
    """Return status and text of the answer to a body, whose client does not care for limits.

    :param size_bytes: named in the request; None = sent in pieces of unknown number
    """
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    named = {} if size_bytes is None else {"Content-Length": str(size_bytes)}
    headers = {"Authorization": f"Bearer {server.token('user')}", "Content-Type": "application/json", **named}
    # A client may send on after the answer, or find that the connection is closed.
    with contextlib.suppress(ConnectionError):
        connection.request("POST", f"{PREFIX}/api/v1{path}", body, headers, encode_chunked=size_bytes is None)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


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
    entry = last_entry(server, "dtrain_experiment_set")
    assert (entry["owner"], entry["dag_id"], entry["run_id"]) == ("user", "d", "r")
    assert '"experiment_id": 1' in entry["extra"]


def test_an_experiment_is_started_as_a_dag_run_with_the_name_of_the_user(server, ready):
    token = server.token("user")
    status, started = server.request("POST", f"{PREFIX}/api/v1/experiments", CONFIG, token=token)
    assert status == 202, started
    status, run = server.request("GET", f"{RUNS}/{started['run_id']}", token=token)
    assert (run["state"], run["run_type"], run["triggered_by"]) == ("queued", "manual", "ui"), run
    assert run["triggering_user_name"] == "user"
    assert run["conf"]["payload"] is None
    document = ready.configs.get(run["conf"]["config"]["config_id"]).document
    assert (document["name"], document["entrypoint"]) == ("x", "python t.py")
    entry = last_entry(server, "dtrain_experiment_start")
    assert (entry["owner"], entry["dag_id"]) == ("user", "dtrain_experiment")


def test_a_fork_with_other_hyperparameters_is_started_with_the_secrets_of_its_source(server, ready):
    token = server.token("user")
    source = server.request("GET", f"{PREFIX}/api/v1/experiments/1/fork", token=token)[1]
    assert SECRET not in str(source)
    document = yaml.safe_load(source["yaml"])
    document["hyperparameters"]["lr"]["maxval"] = 0.5
    body = {"config": yaml.safe_dump(document), "fork_of": 1}
    refused = server.request("POST", f"{PREFIX}/api/v1/experiments", body, token=token)
    assert (refused[0], "only the user who submitted" in str(refused[1])) == (422, True)
    view = ready.experiments.get(1)
    config_id = ready.experiment_table.config_id(1)
    own = {"dag_id": view.dag_id, "run_id": view.run_id, "config_id": config_id, "payload": None, "user_id": "user"}
    ready.submissions.add(Submission(**own))
    assert server.request("POST", f"{PREFIX}/api/v1/experiments", body, token=server.token("admin"))[0] == 422
    status, started = server.request("POST", f"{PREFIX}/api/v1/experiments", body, token=token)
    assert status == 202, started
    run = server.request("GET", f"{RUNS}/{started['run_id']}", token=token)[1]
    stored = ready.configs.get(run["conf"]["config"]["config_id"])
    assert stored.document["hyperparameters"]["lr"]["maxval"] == 0.5
    assert SECRET not in str(stored.document)
    assert stored.secrets
    assert SECRET not in str(run)


def test_a_paused_dag_starts_nothing_and_the_answer_names_the_command(server):
    admin, dag = server.token("admin"), "/api/v2/dags/dtrain_experiment"
    assert server.request("PATCH", dag, {"is_paused": True}, token=admin)[0] == 200
    try:
        before = server.request("GET", RUNS, token=admin)[1]["total_entries"]
        status, answer = server.request("POST", f"{PREFIX}/api/v1/experiments", CONFIG, token=server.token("user"))
        assert (status, answer["detail"]["code"]) == (409, "conflict")
        assert "airflow dags unpause dtrain_experiment" in str(answer["detail"])
        assert server.request("GET", f"{PREFIX}/api/v1/me", token=admin)[1]["starting"]["may_trigger"] is False
        assert server.request("GET", RUNS, token=admin)[1]["total_entries"] == before
    finally:
        server.request("PATCH", dag, {"is_paused": False}, token=admin)


def test_me_says_what_the_user_may_do(server):
    viewer = server.request("GET", f"{PREFIX}/api/v1/me", token=server.token("viewer"))[1]
    assert (viewer["user"], viewer["may_change_hosts"]) == ("viewer", False)
    assert viewer["starting"]["exists"] is True
    assert "You may not trigger" in viewer["starting"]["hint"]
    op = server.request("GET", f"{PREFIX}/api/v1/me", token=server.token("op"))[1]
    assert (op["may_change_hosts"], op["starting"]["hint"]) == (True, "")


def test_the_openapi_document_is_served_to_users_only(server):
    path = f"{PREFIX}/api/v1/openapi.json"
    assert server.request("GET", path)[0] == 401
    assert "/api/v1/cluster" in server.request("GET", path, token=server.token("viewer"))[1]["paths"]
    assert server.request("GET", f"{PREFIX}/openapi.json", token=server.token("admin"))[0] == 404
    assert server.request("GET", f"{PREFIX}/docs", token=server.token("admin"))[0] == 404


@pytest.mark.nightly
def test_the_roles_are_those_of_the_server() -> None:
    assert set(IN_ORDER) == set(ROLES)


def test_a_dag_that_was_deleted_from_airflow_starts_nothing_and_the_answer_names_the_command(server):
    admin = server.token("admin")
    assert server.request("DELETE", "/api/v2/dags/dtrain_experiment", token=admin)[0] == 204
    status, answer = server.request("POST", f"{PREFIX}/api/v1/experiments", CONFIG, token=server.token("user"))
    assert (status, answer["detail"]["code"]) == (409, "conflict")
    assert "airflow dtrain init" in str(answer["detail"])
    starting = server.request("GET", f"{PREFIX}/api/v1/me", token=admin)[1]["starting"]
    assert starting["exists"] is False
    assert "airflow dtrain init" in starting["hint"]


def test_rows_of_a_deleted_dag_are_left_to_users_who_may_edit_connections(server, ready):
    Search(ready, run="later").start(0, slots=1)
    assert server.request("DELETE", "/api/v2/dags/d", token=server.token("admin"))[0] == 204
    path = f"{PREFIX}/api/v1/experiments/1"
    assert server.request("GET", path, token=server.token("user"))[0] == 404
    assert server.request("PATCH", path, {"tags": []}, token=server.token("user"))[0] == 404
    assert server.request("GET", path, token=server.token("op"))[0] == 200
    assert server.request("GET", f"{PREFIX}/api/v1/experiments", token=server.token("user"))[1]["total"] == 0
    holders = server.request("GET", f"{PREFIX}/api/v1/cluster", token=server.token("user"))[1]["holders"]
    assert holders
    assert all(holder["is_hidden"] and holder["task"] is None for holder in holders.values())


def last_entry(server: ApiServer, event: str) -> dict[str, Any]:
    """Return the latest entry of an event in Airflow's audit log."""
    query = f"/api/v2/eventLogs?event={event}&order_by=-id&limit=1"
    status, answer = server.request("GET", query, token=server.token("admin"))
    assert status == 200, answer
    (entry,) = answer["event_logs"]
    return dict(entry)


def store_of(server: ApiServer) -> Store:
    return Store.open(server.environment["AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN"])
