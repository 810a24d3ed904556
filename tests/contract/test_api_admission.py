"""Requests are admitted before anything of their body is read."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.api import admission
from airflow_provider_dtrain.api.admission import OF_USER_MOST, VALUES_MOST, Bodies, _values_in
from airflow_provider_dtrain.api.app import PREFIX, VERSION
from airflow_provider_dtrain.api.code_archive import ARCHIVE_MOST
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.security import READING
from airflow_provider_dtrain.store.store import Store
from testbed.stores import new_sqlite
from tests.support.api_routes import concrete, matrix
from tests.support.api_world import Api
from tests.support.asgi import Sent, send

pytestmark = pytest.mark.airflow
MIB = 1 << 20


@pytest.fixture(scope="module")
def store(airflow_home, tmp_path_factory):
    opened = Store.open(new_sqlite(tmp_path_factory.mktemp("admission") / "s.db"))
    yield opened
    opened.close()


@pytest.fixture
def api(store):
    return Api(store)


def without_login(api: Api) -> Api:
    async def refuse(_request: Any) -> Any:
        raise HTTPException(401, "Not authenticated")

    api.state.user_of = refuse
    return api


@functools.cache
def routes() -> list[tuple[str, str]]:
    """Return method and path of each route, with ids, and of paths that look like the one with the large limit."""
    known = [(method, concrete(path).removeprefix(PREFIX + VERSION).partition("?")[0]) for method, path, _ in matrix()]
    return [*known, ("PATCH", "/trials/code"), ("PATCH", "/experiments/code"), ("POST", "/code/"), ("POST", "/x/code")]


def endless() -> Any:
    return itertools.repeat(bytes(MIB), 300)


@pytest.mark.parametrize("refused", ["no login", "no right to see the pages", "a page of another site"])
def test_nothing_of_a_body_is_read_before_the_request_is_admitted(api, refused):
    headers: dict[str, str] = {}
    match refused:
        case "no login":
            without_login(api)
        case "no right to see the pages":
            api.rights.plugins = False
        case "a page of another site":
            headers = {"x-dtrain": ""}
    expected = {"no login": 401}.get(refused, 403)
    for method, path in routes():
        if refused == "a page of another site" and method in READING:
            continue
        sent = asyncio.run(send(api, method, path, Sent(endless()), headers=headers))
        assert (sent.status, sent.read_bytes) == (expected, 0), (method, path)


@pytest.mark.parametrize("root", ["", "/airflow/dtrain"], ids=["alone", "mounted"])
def test_each_body_has_a_limit_and_only_that_of_one_method_and_path_a_larger_one(api, root):
    most = {("POST", "/configs/validate"): 16, ("POST", "/experiments"): 16, ("POST", "/code"): ARCHIVE_MOST // MIB}
    for method, path in routes():
        if method in READING:
            continue
        limit = most.get((method, path), 1)
        sent = asyncio.run(send(api, method, path, Sent(endless()), root=root))
        assert (sent.status, sent.detail["code"]) == (413, "invalid"), (method, path, sent.content)
        assert f"at most {limit} MiB" in sent.detail["message"], (method, path)
        assert sent.read_bytes <= (limit + 1) * MIB, (method, path)
        named = {"content-length": str(200 * MIB)}
        sent = asyncio.run(send(api, method, path, Sent(endless()), headers=named, root=root))
        assert (sent.status, sent.read_bytes) == (413, 0), (method, path)


def test_a_route_that_was_not_admitted_answers_401(api, monkeypatch):
    monkeypatch.setattr(admission, "ADMITTED", "another attribute")
    assert api.answer("GET", "/me").status_code == 401


def test_a_body_that_stops_or_trickles_is_ended_with_the_expected_rate(api, monkeypatch):
    monkeypatch.setattr(admission, "GRACE_S", 0.05)
    monkeypatch.setattr(admission, "RATE_BYTES_PER_S", 100 * MIB)
    for path, pieces in (
        ("/code", [b"x", None]),
        ("/experiments", [b'{"config"', None]),
        ("/trials/1", [None]),
    ):
        method = "PATCH" if path == "/trials/1" else "POST"
        sent = asyncio.run(asyncio.wait_for(send(api, method, path, Sent(pieces)), 30))
        assert sent.status == 408, (path, sent.content)
        assert "too slowly" in sent.detail["message"]
    assert api.state.bodies._users == api.state.uploads._users == {}


def test_a_body_ends_after_the_longest_time_whatever_its_rate(api, monkeypatch):
    monkeypatch.setattr(admission, "BODY_MOST_S", 0.05)

    async def pieces() -> Sent:
        return await send(api, "POST", "/code", Sent([bytes(MIB), None]))

    assert asyncio.run(asyncio.wait_for(pieces(), 30)).status == 408


def test_slow_uploads_of_one_user_leave_the_upload_to_the_others(store):
    ann, bob = Api(store), Api(store, name="bob")
    bob.state.uploads = ann.state.uploads

    async def requests() -> list[Sent]:
        slow = asyncio.ensure_future(send(ann, "POST", "/code", Sent([b"x", None])))
        async with asyncio.timeout(30):
            while not ann.state.uploads._users:
                await asyncio.sleep(0.001)
        others = [await send(user, "POST", "/code", Sent([b"no archive"])) for user in (ann, bob)]
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return [*others, await send(ann, "POST", "/code", Sent([b"no archive"]))]

    second, of_bob, later = asyncio.run(requests())
    assert (second.status, second.detail["code"], second.headers["retry-after"]) == (429, "busy", "5")
    assert "You send 1 archives already" in second.detail["message"]
    assert (of_bob.status, later.status) == (422, 422)
    assert ann.state.uploads._users == {}


def test_all_users_together_have_a_limit_too():
    bodies = Bodies(3, 2, "requests")
    with bodies.receiving("a"), bodies.receiving("a"), bodies.receiving("b"):
        for user, status in (("a", 429), ("c", 503)):
            with pytest.raises(ApiError) as refused, bodies.receiving(user):
                pass
            assert refused.value.status == status
    with bodies.receiving("c"):
        pass
    assert bodies._users == {}


def test_one_user_sends_a_limited_number_of_bodies_at_one_time(api):
    async def requests() -> int:
        waiting = [
            asyncio.ensure_future(send(api, "POST", "/configs/validate", Sent([b"{", None])))
            for _ in range(OF_USER_MOST)
        ]
        async with asyncio.timeout(30):
            while api.state.bodies._users.total() < OF_USER_MOST:
                await asyncio.sleep(0.001)
        status = (await send(api, "POST", "/configs/validate", Sent([b"{}"]))).status
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return status

    assert asyncio.run(requests()) == 429
    assert api.state.bodies._users == {}


@pytest.mark.parametrize("unit", [b"{},", b"[],", b"1,", b'"",', b'"a":[],'])
def test_many_values_are_refused_before_they_are_parsed(api, unit):
    body = b'{"config":[' + unit * (14 * MIB // len(unit)) + b"]}"
    sent = Sent([body])
    tracemalloc.start()
    try:
        asyncio.run(send(api, "POST", "/configs/validate", sent))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (sent.status, f"more than {VALUES_MOST} values" in sent.detail["message"]) == (422, True)
    assert peak < 64 * MIB


def test_deep_nesting_is_an_error_of_the_request(api):
    sent = Sent([b'{"config":' + b"[" * 4000 + b"]" * 4000 + b"}"])
    asyncio.run(send(api, "POST", "/configs/validate", sent))
    assert (sent.status, sent.detail["code"]) == (400, "invalid")


def test_a_long_configuration_with_any_characters_is_one_value(api):
    body = json.dumps({"config": 'a: "[{,' * 100_000 + "é\\\"'"}).encode()
    assert asyncio.run(send(api, "POST", "/configs/validate", Sent([body]))).status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def values(document: Any) -> int:
    match document:
        case list():
            return 1 + sum(map(values, document))
        case dict():
            return 1 + sum(map(values, document.values()))
    return 1


@given(JSON, st.booleans())
def test_the_values_of_json_are_never_undercounted(document, ascii_only):
    count = _values_in(json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    assert values(document) <= 2 * count + 1
    assert count <= 4 * values(document)
