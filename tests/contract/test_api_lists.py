"""Lists of requests: each one at its bound, and 1,000 times as long, for time, memory and backends of the database."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.support.api_world import Api, document_of_api
from tests.support.asgi import Sent, send
from tests.support.search_world import Search

pytestmark = [pytest.mark.airflow, pytest.mark.each_change]
#: Values of a list, and 1,000 times as many.
USUAL, MANY = 20, 20_000
#: CPU seconds of all threads of this process and of the backends for one request, and growth of memory.
CPU_MOST_S, MEMORY_MOST_BYTES, BACKEND_MOST_BYTES = 4.0, 64 << 20, 48 << 20
PATHS = {"experiment_id": 1, "trial_id": 1, "name": "a", "index": 0, "view_id": 1}
CONFIG = "name: mine\nentrypoint: python train.py\nresources: {pool: gpus, slots_per_trial: 1}\n"


def resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without a reference, and of several ones the first that is not null."""
    if "$ref" in schema:
        return resolved(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return resolved(next(one for one in schema["anyOf"] if one.get("type") != "null"), schemas)
    return schema


def values(schema: dict[str, Any], count: int) -> list[Any]:
    """Return allowed values that differ, as far as there are any."""
    item = schema["items"]
    if "enum" in item:
        return [item["enum"][number % len(item["enum"])] for number in range(count)]
    return [number + 1 if item["type"] == "integer" else f"value-{number}" for number in range(count)]


def lists() -> Iterator[tuple[str, str, str, str, dict[str, Any]]]:
    """Yield (method, path, place, name, schema) of each list that a request may hold."""
    document = document_of_api()
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for one in operation.get("parameters", ()):
                schema = resolved(one["schema"], schemas)
                if schema.get("type") == "array":
                    schema = {**schema, "items": resolved(schema["items"], schemas)}
                    yield method, path, "query", one["name"], schema
            for content in operation.get("requestBody", {"content": {}})["content"].values():
                body = resolved(content["schema"], schemas)
                for name, part in body.get("properties", {}).items():
                    schema = resolved(part, schemas)
                    if schema.get("type") == "array":
                        schema = {**schema, "items": resolved(schema["items"], schemas)}
                        yield method, path, "body", name, schema


LISTS = list(lists())


@pytest.fixture
def store(store: Store) -> Store:
    store.hosts.add(host("a", slots=8))
    search = Search(store)
    search.plan(max_trials=4)
    search.validate(search.start(0, slots=1), loss=0.5)
    return store


class Watch:
    """Measures of one request: CPU time, memory of this process, statements, and backends of PostgreSQL.

    :param store: on a server of this machine
    """

    def __init__(self, store: Store) -> None:
        self.engine = store.db.engine
        self.statements = 0
        sa.event.listen(self.engine, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self.statements += 1

    def of(self, request: Any) -> Any:
        """Return the answer to a request that costs little."""
        before = self._backends()
        self.statements = 0
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        memory = _status("self", "VmRSS")
        began = time.process_time()
        answer = request()
        cpu_s = time.process_time() - began
        grown = _status("self", "VmHWM") - memory
        statements, after = self.statements, self._backends()
        for pid, (busy_s, rss, _) in after.items():
            cpu_s += busy_s - before.get(pid, (0.0, 0, ""))[0]
            assert rss < BACKEND_MOST_BYTES, f"a backend has {rss >> 20} MiB"
        assert [state for *_, state in after.values() if state == "active"] == []
        assert cpu_s < CPU_MOST_S
        assert grown < MEMORY_MOST_BYTES
        self.statements = statements
        return answer

    def _backends(self) -> dict[int, tuple[float, int, str]]:
        """Return pid -> CPU seconds, private memory in bytes and state of the other backends of this database."""
        if self.engine.dialect.name != "postgresql":
            return {}
        query = (
            "SELECT pid, state FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with self.engine.connect() as conn:
            rows = conn.exec_driver_sql(query).all()
        return {pid: (*_usage(pid), state) for pid, state in rows if Path(f"/proc/{pid}").exists()}


def _usage(pid: int) -> tuple[float, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), _status(pid, "RssAnon")


def _status(pid: int | str, name: str) -> int:
    """Return a size of a process in bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0]) << 10


def sent(api: Api, method: str, path: str, place: str, name: str, items: list[Any]) -> tuple[int, bytes]:
    """Return status and body of the answer to a request with a list."""
    where = path.removeprefix("/api/v1").format_map(PATHS)
    if place == "body":
        rest = {"trial_id": 1, "rank": 0, "argv": ["true"]} if "exec" in path else {}
        found = api.answer(method.upper(), where, json={**rest, name: items})
        return found.status_code, found.content
    query = urlencode([("range_s", 60), *((name, one) for one in items)])
    answer = asyncio.run(send(api, method.upper(), where, Sent(), query=query))
    return answer.status, answer.content


def test_the_api_has_lists_in_queries_and_in_bodies() -> None:
    assert {place for _, _, place, _, _ in LISTS} == {"query", "body"}
    assert len(LISTS) > 15


@pytest.mark.nightly
def test_each_list_at_its_bound_and_a_thousand_times_as_long_costs_little(store: Store) -> None:
    api, watch = Api(store, operations=True), Watch(store)
    for *at, schema in LISTS:
        most = schema["maxItems"]
        status, body = watch.of(partial(sent, api, *at, values(schema, most)))
        assert status < 500, (at, body[:300])
        assert b"maxItems" not in body
        assert most <= MANY
        status, body = watch.of(partial(sent, api, *at, values(schema, max(MANY, most * 20))))
        assert status == 422, (at, body[:300])
        assert watch.statements == 0, at
        assert len(body) < 100_000


def config_lists() -> Iterator[tuple[str, str]]:
    """Yield (path, YAML with ``LIST`` in place of one) of each kind of list in a configuration."""
    yield "tags", "tags: LIST\n"
    yield "entrypoint", "entrypoint: LIST\n"
    yield "hyperparameters", "hyperparameters: {a: {type: categorical, vals: LIST}}\n"
    yield "variables", "environment: {environment_variables: LIST}\n"
    yield "public", "environment: {public_variables: LIST}\n"
    yield "data", "data: {files: LIST}\n"
    yield "hosts", "resources: {pool: gpus, slots_per_trial: 1, exclude_hosts: LIST}\n"
    yield "mounts", "bind_mounts: LIST\n"
    yield "policies", "log_policies: LIST\n"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("name", "text"), list(config_lists()), ids=[name for name, _ in config_lists()])
def test_each_list_of_a_configuration_times_a_thousand_costs_little(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.api.routes.configs.trigger", lambda *_, **__: "run")
    api, watch = Api(store, operations=True), Watch(store)
    for count in (USUAL, MANY):
        kept = "".join(line + "\n" for line in CONFIG.splitlines() if line.partition(":")[0] not in text)
        whole = kept + text.replace("LIST", f"[{', '.join(f'A{number}=b' for number in range(count))}]")
        assert count > USUAL or load_yaml(whole)
        for path in ("/configs/validate", "/experiments"):
            answer = watch.of(partial(api.answer, "POST", path, json={"config": whole}))
            assert answer.status_code < 500, (name, count, answer.text[:300])
            assert len(answer.content) < 4 << 20
