"""Rights of users of the FAB auth manager, on a real API server: its own roles, and rights on single DAGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.api.app import PREFIX
from airflow_provider_dtrain.api.security import Rule
from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ApiServer
from testbed.stores import new_sqlite
from tests.support.api_routes import body, concrete, fill, matrix, prepare, refused
from tests.support.search_world import Search

pytest.importorskip("airflow.providers.fab", reason="needs the FAB auth manager: apache-airflow-providers-fab")
pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]

MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
#: User, with the same name as password -> roles. ``Pages`` may only view plugins, ``OnlyD`` also read DAG d.
USERS = {
    "viewer": ("Viewer",), "user": ("User",), "op": ("Op",), "admin": ("Admin",),
    "reader": ("Viewer", "Pages"), "worker": ("User", "Pages"), "guest": ("OnlyD", "Pages"),
}  # fmt: skip
#: User -> rules whose right they have.
MAY: dict[str, set[Rule]] = {
    "viewer": set(),
    "user": set(),
    "op": set(Rule),
    "admin": set(Rule),
    "reader": {Rule.READ, Rule.FETCH, Rule.READ_LOGS, Rule.READ_CODE, Rule.OWN_VIEWS},
    "worker": {
        Rule.READ,
        Rule.FETCH,
        Rule.READ_LOGS,
        Rule.READ_CODE,
        Rule.EDIT_DAG,
        Rule.START,
        Rule.OWN_VIEWS,
    },
    "guest": {Rule.READ, Rule.FETCH, Rule.OWN_VIEWS},
}
#: DAG d may be read by the role OnlyD, DAG other only by the roles that read all DAGs.
DAGS = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
with DAG("d", schedule=None, access_control={"OnlyD": {"DAGs": {"can_read"}}}):
    EmptyOperator(task_id="trial")
with DAG("other", schedule=None):
    EmptyOperator(task_id="trial")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder: Path = tmp_path_factory.mktemp("fab")
    url = new_sqlite(folder / "store" / "dtrain.db")
    fill(url)
    add_other(url)
    found = ApiServer(folder / "home", url, {"AIRFLOW__CORE__AUTH_MANAGER": MANAGER})
    (found.home / "dags" / "site.py").write_text(DAGS)
    prepare(found, *commands(), dags=())
    try:
        found.start()
        yield found
    finally:
        found.stop()


def add_other(url: str) -> None:
    """Write an experiment of DAG ``other`` with a trial that holds a slot."""
    store = Store.open(url)
    search = Search(store, name="private", dag="other")
    search.start(0, slots=1)
    store.close()


def commands() -> list[list[str]]:
    """Return the commands that create roles and users, as an administrator gives them."""
    found = [
        ["sync-perm"],
        ["roles", "create", "Pages", "OnlyD"],
        ["roles", "add-perms", "Pages", "-a", "can_read", "-r", "Plugins"],
        ["roles", "add-perms", "OnlyD", "-a", "can_read", "-r", "DAG Runs"],
    ]
    for name, (role, *more) in USERS.items():
        names = ["--username", name, "--firstname", name, "--lastname", name, "--email", f"{name}@example.org"]
        found.append(["users", "create", *names, "--role", role, "--password", name])
        found.extend(["users", "add-role", "--username", name, "--role", one] for one in more)
    return found


def get(server: ApiServer, user: str, path: str) -> tuple[int, object]:
    return server.request("GET", f"{PREFIX}/api/v1{path}", token=server.token(user))


@pytest.mark.parametrize("user", list(USERS))
def test_each_user_may_do_what_the_rule_of_a_route_says(server, user):
    allowed = {rule: rule in MAY[user] for rule in Rule}
    assert refused(server, server.token(user), allowed) == {}


def test_a_user_without_the_right_to_view_plugins_learns_which_right_is_missing(server):
    status, answer = get(server, "viewer", "/experiments")
    assert status == 403
    assert "Plugins" in answer["detail"]["hint"]


def test_a_user_who_may_read_one_dag_sees_only_its_rows(server):
    shown = {row["dag_id"] for row in get(server, "guest", "/experiments")[1]["rows"]}
    assert shown == {"d"}
    assert {row["dag_id"] for row in get(server, "reader", "/experiments")[1]["rows"]} == {"d", "other"}
    assert "private" in str(get(server, "reader", "/queue")[1])
    for path in ("/queue", "/experiments.csv", "/cluster"):
        status, answer = get(server, "guest", path)
        assert status == 200, (path, answer)
        assert "private" not in str(answer), path


def test_ids_of_a_dag_that_a_user_may_not_read_do_not_exist_for_them(server):
    rows = get(server, "admin", "/experiments")[1]["rows"]
    hidden = next(row["experiment_id"] for row in rows if row["dag_id"] == "other")
    (trial,) = [row["trial_id"] for row in get(server, "admin", f"/trials?experiment_id={hidden}")[1]["rows"]]
    ids, token = {"experiment_id": hidden, "trial_id": trial}, server.token("guest")
    routes = [(method, path) for method, path, _ in matrix() if "{experiment_id}" in path or "{trial_id}" in path]
    assert len(routes) > 25
    found = {}
    for method, path in routes:
        status, answer = server.request(method, concrete(path, **ids), body(method, path), token=token)
        if status != 404:
            found[method, path] = status, answer
    assert found == {}
    for query in (f"/curves?metric=loss&trial={trial}", f"/compare?trial=1&trial={trial}"):
        assert get(server, "guest", query)[0] == 404, query
    assert "private" not in str(get(server, "guest", "/lookup?dag_id=other&run_id=r"))


def test_the_cluster_hides_who_holds_a_slot_from_users_who_may_not_read_the_dag(server):
    # Tests of all routes have disabled the host and killed the trials.
    assert server.request("POST", f"{PREFIX}/api/v1/hosts/a/enable", {}, token=server.token("op"))[0] == 200
    store = Store.open(server.environment["AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN"])
    Search(store, run="later").start(0, slots=1)
    store.close()
    holders = list(get(server, "guest", "/cluster")[1]["holders"].values())
    hidden = [one for one in holders if one["is_hidden"]]
    assert len(hidden) == 1
    assert len(holders) > 1
    assert (hidden[0]["trial_id"], hidden[0]["task"], hidden[0]["experiment"]) == (None, None, "")
    assert not any(one["is_hidden"] for one in get(server, "reader", "/cluster")[1]["holders"].values())


def test_rows_of_a_dag_that_was_deleted_from_airflow_are_left_to_users_who_may_edit_connections(server):
    admin = server.token("admin")
    assert server.request("DELETE", "/api/v2/dags/d", token=admin)[0] == 204
    seen = {user: get(server, user, "/experiments/1")[0] for user in ("guest", "reader", "worker", "op")}
    assert seen == {"guest": 404, "reader": 404, "worker": 404, "op": 200}
