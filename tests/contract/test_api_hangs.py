"""Databases that hang: each route answers within its deadline, and Airflow's other routes do not wait."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time

import httpx
import pytest
from fastapi import FastAPI

from airflow_provider_dtrain.api import execution
from airflow_provider_dtrain.api.app import VERSION
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.store import Store
from testbed.stores import new_sqlite
from tests.support.api_world import Api

pytestmark = pytest.mark.airflow
DEADLINE_S = 1.0
#: Readers wait for a writer that has the file for itself.
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
connection.execute("UPDATE counters SET value = value")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locked(tmp_path):
    """The URL of a SQLite store that another process keeps to itself."""
    path = tmp_path / "s" / "dtrain.db"
    url = new_sqlite(path)
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        yield url
        holder.stdin.close()


@pytest.fixture
def silent():
    """The URL of a server that accepts connections and never answers."""
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"postgresql+psycopg://dtrain@127.0.0.1:{server.getsockname()[1]}/dtrain"


@pytest.fixture
def api(tmp_path):
    store = Store.open(new_sqlite(tmp_path / "other" / "dtrain.db"))
    yield Api(store)
    store.close()


async def answers(app, routes, other):
    """Return the answers of several routes that are requested at once. Another one answers before all of them."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
        waiting = [asyncio.ensure_future(client.get("/dtrain" + VERSION + route)) for route in routes]
        await asyncio.sleep(0)
        assert (await client.get(other)).status_code == 200
        assert not all(one.done() for one in waiting)
        return await asyncio.gather(*waiting)


@pytest.mark.parametrize("database", ["locked", "silent"])
def test_a_database_that_hangs_is_explained_and_other_routes_of_the_server_answer(database, api, request, monkeypatch):
    url = request.getfixturevalue(database)
    monkeypatch.setattr(execution, "READ_DEADLINE_S", DEADLINE_S)
    monkeypatch.setenv("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", url)
    api.state.make_hook = lambda: DtrainHook(settings())
    airflow = FastAPI()
    airflow.mount("/dtrain", api.client.app)

    @airflow.get("/other")
    def other():
        return {}

    # More requests than there are threads: the last ones are refused at once.
    routes = ["/cluster", "/queue", "/experiments", "/experiments/1", "/trials/1/curves?metric=loss"] * 5
    began = time.monotonic()
    found = asyncio.run(answers(airflow, routes, "/other"))
    took_s = time.monotonic() - began
    assert {one.status_code for one in found} == {503}
    details = [one.json()["detail"] for one in found]
    assert {one["code"] for one in details} == {"store_unavailable"}
    assert all("has not answered" in one["message"] and "airflow dtrain doctor" in one["hint"] for one in details)
    assert took_s < 20 * DEADLINE_S
