"""A store that does not answer, and an Airflow that lacks a module: an explanation within seconds."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from fastapi.testclient import TestClient

from airflow_provider_dtrain.api import app as api_app
from airflow_provider_dtrain.api import execution
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import Workers
from airflow_provider_dtrain.errors import StoreError, StoreNotMigratedError, StoreUnavailableError
from airflow_provider_dtrain.store.database.transactions import reads
from airflow_provider_dtrain.store.store import Store
from testbed.standalone import wait_until
from testbed.stores import new_sqlite
from tests.support.api_world import Api

pytestmark = pytest.mark.airflow


@pytest.fixture
def api(tmp_path):
    store = Store.open(new_sqlite(tmp_path / "s" / "dtrain.db"))
    yield Api(store)
    store.close()


def test_a_store_that_does_not_answer_costs_no_thread_of_the_server(api, monkeypatch):
    monkeypatch.setattr(execution, "READ_DEADLINE_S", 0.2)
    api.state.workers = workers = Workers(threads=2)
    bob = Api(api.store, name="bob")
    bob.state.workers = workers
    back = threading.Event()
    monkeypatch.setattr(api.store.cluster_page, "state", lambda *_: back.wait(60))
    for user in (api, bob):
        assert user.refusal("GET", "/cluster")[:2] == (503, "store_unavailable")
    began = time.monotonic()
    status, _, message = api.refusal("GET", "/experiments")
    assert (status, "earlier requests" in message) == (503, True)
    assert time.monotonic() - began < 5
    back.set()
    wait_until(lambda: not workers._late, timeout_s=30, what="the end of the late threads")
    assert api.answer("GET", "/experiments").status_code == 200


def test_late_threads_of_one_user_leave_the_others_theirs(api, monkeypatch):
    monkeypatch.setattr(execution, "READ_DEADLINE_S", 0.2)
    api.state.workers = workers = Workers(threads=8)
    bob = Api(api.store, name="bob")
    bob.state.workers = workers
    back = threading.Event()
    monkeypatch.setattr(api.store.cluster_page, "state", lambda *_: back.wait(60))
    messages = [api.refusal("GET", "/cluster")[2] for _ in range(6)]
    assert ["within" in one for one in messages] == [True, True, False, False, False, False]
    assert all("earlier requests" in one for one in messages[2:])
    assert bob.answer("GET", "/experiments").status_code == 200
    back.set()
    wait_until(lambda: not workers._users, timeout_s=30, what="the end of the late threads")
    assert api.answer("GET", "/experiments").status_code == 200


def test_one_user_has_half_of_the_threads_and_their_further_requests_wait_for_these():
    workers = Workers(threads=4)
    running: list[str] = []
    most: list[int] = []
    lock, back = threading.Lock(), threading.Event()

    def work(user: str) -> str:
        with lock:
            running.append(user)
            most.append(running.count("ann"))
        back.wait(60)
        with lock:
            running.remove(user)
        return user

    async def requests() -> list[str]:
        def request(user: str) -> asyncio.Future[str]:
            return asyncio.ensure_future(workers.run(lambda: work(user), user=user, deadline_s=60, is_write=False))

        every = [request("ann") for _ in range(20)]
        await asyncio.sleep(0)
        every += [request("bob"), request("eve")]
        async with asyncio.timeout(30):
            while len(running) < 4:
                await asyncio.sleep(0.001)
        assert sorted(running) == ["ann", "ann", "bob", "eve"]
        back.set()
        return await asyncio.gather(*every)

    assert asyncio.run(requests()) == ["ann"] * 20 + ["bob", "eve"]
    assert max(most) == 2
    wait_until(lambda: not workers._users, timeout_s=30, what="the end of all shares")


def test_a_request_that_gave_up_before_its_turn_is_never_executed():
    workers = Workers(threads=2)
    back, executed = threading.Event(), []

    async def requests() -> None:
        first = asyncio.ensure_future(workers.run(lambda: back.wait(60), user="ann", deadline_s=60, is_write=False))
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="within"):
            await workers.run(lambda: executed.append(1), user="ann", deadline_s=0.05, is_write=False)
        back.set()
        await first

    asyncio.run(requests())
    wait_until(lambda: not workers._users, timeout_s=30, what="the end of all shares")
    assert (executed, workers._late) == ([], 0)


def test_the_statement_of_a_late_thread_is_interrupted(api, monkeypatch):
    monkeypatch.setattr(execution, "READ_DEADLINE_S", 0.2)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"

    class Endless:
        db = api.store.db

        @reads
        def read(self, conn):
            conn.exec_driver_sql(endless)

    monkeypatch.setattr(api.store.cluster_page, "state", lambda *_: Endless().read())
    assert api.refusal("GET", "/cluster")[0] == 503
    wait_until(lambda: not api.state.workers._users, timeout_s=30, what="the end of the statement")


@pytest.mark.parametrize("error", [StoreUnavailableError("password of db.internal"), StoreError("db.internal")])
def test_an_error_of_the_store_is_explained_without_its_details(api, monkeypatch, error):
    def fail(*_args):
        raise error

    monkeypatch.setattr(api.store.cluster_page, "state", fail)
    answer = api.answer("GET", "/cluster")
    assert answer.status_code == 503
    assert "db.internal" not in answer.text
    assert answer.headers["retry-after"]


def test_a_store_of_another_version_names_the_command(api, monkeypatch):
    def fail(*_args):
        raise StoreNotMigratedError("The store has schema 0001.")

    monkeypatch.setattr(api.store.cluster_page, "state", fail)
    assert api.answer("GET", "/cluster").json()["detail"]["hint"] == "airflow dtrain db migrate"


def test_a_defect_is_answered_without_a_traceback(api, monkeypatch):
    def fail(*_args):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(api.store.cluster_page, "state", fail)
    answer = api.answer("GET", "/cluster")
    assert (answer.status_code, answer.json()["detail"]["code"]) == (500, "internal")
    assert "secret" not in answer.text


def test_without_a_module_of_airflow_every_request_is_refused(monkeypatch):
    def fail():
        raise ImportError("airflow.api_fastapi.core_api.security")

    monkeypatch.setattr(api_app, "create_app", fail)
    client = TestClient(api_app.application.__wrapped__())
    for method, path in (("GET", "/api/v1/me"), ("POST", "/api/v1/hosts/a/drain"), ("GET", "/static/main.js")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["detail"]["code"]) == (503, "closed")


@pytest.mark.parametrize("offset", ["-1", "1e9", str(10**30), "x"])
def test_an_offset_that_makes_no_sense_is_refused(api, offset):
    assert api.refusal("GET", "/experiments", params={"offset": offset})[:2] == (422, "invalid")


def test_a_huge_offset_is_an_empty_page(api):
    assert api.get("/experiments", offset=2**53) == {
        "rows": [],
        "total": 0,
        "tags": [],
        "owners": [],
        "projects": [],
    }
