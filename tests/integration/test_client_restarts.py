"""``dtrain trials logs -f`` on a real API server that restarts while a trial writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_dtrain.client.address import address
from airflow_provider_dtrain.client.logs import LogReader
from airflow_provider_dtrain.client.main import parser
from airflow_provider_dtrain.client.operations import ServerOperations
from airflow_provider_dtrain.client.reconnection import Patience
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ApiServer
from testbed.standalone import wait_until
from testbed.stores import host, new_sqlite
from tests.support.api_routes import prepare
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]


def test_a_follower_survives_a_restart_and_prints_each_byte_once(tmp_path: Path, capfdbinary) -> None:
    url = new_sqlite(tmp_path / "store" / "dtrain.db")
    store = Store.open(url)
    store.hosts.add(host("a", slots=2))
    search = Search(store)
    ticket = search.start(0, slots=1)
    content = bytearray()

    def write(text: bytes) -> None:
        content.extend(text)
        watch = search.watches[ticket.attempt_id]
        store.events.commit_log(ticket.attempt_id, watch, "a", 0, None, bytes(content), tail_end=len(content))

    server = ApiServer(tmp_path / "home", url)
    prepare(server)
    told: list[str] = []
    try:
        server.start()
        write(b"before\n")
        session = Session(address(server.base), server.token("viewer"))
        args = parser().parse_args(["trials", "logs", "1", "-f"])
        patience = Patience(session, told.append)
        operations = ServerOperations(session, patience)
        reader = LogReader(ServerSource(session), args, patience=patience, operations=operations)
        codes: list[int] = []
        following = threading.Thread(target=lambda: codes.append(reader.follow()))
        following.start()
        wait_until(lambda: reader.offsets.get(0) == len(content), timeout_s=60, what="the first line")
        server.stop()
        wait_until(lambda: told, timeout_s=60, what="the message about the server")
        write(b"while it was away\n")
        server.start()
        wait_until(lambda: reader.offsets.get(0) == len(content), timeout_s=120, what="the second line")
        write(b"after")
        search.end(ticket)
        following.join(timeout=60)
    finally:
        server.stop()
        store.close()
    assert codes == [0]
    assert capfdbinary.readouterr().out == bytes(content)
    assert [server.base in words for words in told] == [True, True]
    assert "does not answer" in told[0]
    assert "answers again" in told[1]
