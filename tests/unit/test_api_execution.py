"""A store that does not answer, and an Airflow that lacks a module: an explanation within seconds."""

from __future__ import annotations

import threading
import time

import pytest
from fastapi.testclient import TestClient

from airflow_provider_dtrain.api import app as api_app
from airflow_provider_dtrain.api import execution
from airflow_provider_dtrain.api.execution import Workers
from airflow_provider_dtrain.errors import StoreError, StoreNotMigratedError, StoreUnavailableError
from airflow_provider_dtrain.store.store import Store
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
    back = threading.Event()
    monkeypatch.setattr(api.store.cluster_page, "state", lambda *_: back.wait(60))
    for _ in range(2):
        assert api.refusal("GET", "/cluster")[:2] == (503, "store_unavailable")
    began = time.monotonic()
    status, _, message = api.refusal("GET", "/experiments")
    assert (status, "earlier requests" in message) == (503, True)
    assert time.monotonic() - began < 5
    back.set()
    deadline = time.monotonic() + 30
    while workers._late and time.monotonic() < deadline:
        time.sleep(0.01)
    assert api.answer("GET", "/experiments").status_code == 200


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
    assert api.get("/experiments", offset=2**53) == {"rows": [], "total": 0, "tags": []}
