"""``hosts describe`` and ``hosts check`` of both programs, and their routes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.client.main import main, parser
from airflow_provider_dtrain.core.host_rates import HostFinding, HostRate, RateMetric, SlowRate
from airflow_provider_dtrain.engine.operations.check_outcome import evacuated
from airflow_provider_dtrain.resources.host_checks import HostCheck, HostTexts
from airflow_provider_dtrain.terminal.hosts import describe
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.http_api import HttpApi
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow
SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
EVIL = "\x1b[31m\u202e<script>"
FACTS = {
    "python": "3.11.2", "executable": "/usr/bin/python3", "torch": "2.13.0", "cpu_count": 8, "memory_bytes": 2**35,
    "gpus": [{"name": EVIL, "memory_bytes": 2**36}], "interfaces": [{"name": "eth0", "address": "10.0.0.7/24"}],
    "clock_offset_s": 0.1, "clock_uncertainty_s": 0.05,
}  # fmt: skip


@pytest.fixture
def search(store) -> Search:
    for name, slots in (("a", 4), ("b", 1)):
        store.hosts.add(host(name, slots=slots, conn_id=f"ssh_{name}", facts=FACTS))
    rates = [
        HostRate(host="a", metric=RateMetric.MATMUL, kind="cpu", value=1e12),
        HostRate(host="a", metric=RateMetric.LINK, kind="eth", value=1e8, peer="b"),
        HostRate(host="b", metric=RateMetric.LINK, kind="eth", value=9e8, peer="a"),
    ]
    slow = SlowRate(rate=rates[1], reference=9e8, basis="peers")
    store.host_rates.record([HostRate(host="a", metric=RateMetric.MATMUL, kind="cpu", value=5e11)], [])
    store.host_rates.record(
        rates, [HostFinding(hosts=("a",), sentence=slow.sentence, rates=(rates[1],), ratio=slow.ratio)]
    )
    found = Search(store)
    found.plan(max_trials=2)
    found.start(0, slots=2)
    return found


@pytest.fixture
def server(search, tmp_path, monkeypatch) -> Iterator[HttpApi]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with HttpApi(Api(search.store)) as found:
        monkeypatch.setenv("DTRAIN_SERVER", found.url)
        monkeypatch.setenv("DTRAIN_TOKEN", "given")
        yield found


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_host_is_described_alike_by_both_programs(server, search, capsys, form):
    argv = ["hosts", "describe", "a", "-o", form]
    assert main(argv) == 0, capsys.readouterr()
    remote = capsys.readouterr().out
    describe(parser().parse_args(argv), StoreSource(search.store))
    assert remote == capsys.readouterr().out
    assert not {"\x1b", "\u202e"} & set(remote)
    if form == "json":
        found = json.loads(remote)
        assert [(one["metric"], one["to"], one["value"]) for one in found["rates"]] == [
            ("matmul", None, 1e12),
            ("link", "b", 1e8),
            ("link", "a", 9e8),
        ]
        assert len(found["holders"]) == 1
    else:
        for text in ("state", "ssh_a", "last probe", "10.0.0.7/24", "+0.100 s", "1 TFLOP/s", "a to b", "89% below"):
            assert text in remote, (text, remote)


@SQLITE
def test_facts_of_a_host_are_for_users_who_may_edit_its_connection(search):
    page = Api(search.store, hosts=False, readable=set()).get("/hosts/a")
    assert (page["facts"], page["host"]["details"]["conn_id"]) == ([], None)
    assert [one["is_hidden"] for one in page["holders"].values()] == [True]
    assert "10.0.0.7" not in json.dumps(page)
    assert Api(search.store).refusal("GET", "/hosts/absent")[:2] == (404, "not_found")


@pytest.fixture
def triggered(monkeypatch) -> list[dict]:
    found: list[dict] = []
    monkeypatch.setattr("airflow_provider_dtrain.api.host_work.trigger", lambda conf, *_: found.append(conf) or "run")
    return found


@SQLITE
def test_a_check_needs_the_connections_of_its_hosts(search, triggered):
    api = Api(search.store, team="a", operations=True)
    api.facts.connection_teams = {"ssh_a": "a", "ssh_b": "b"}
    assert api.answer("POST", "/operations/check", json={"hosts": ["a"]}).status_code == 201
    for body in ({"hosts": ["a", "b"]}, {}, {"pool": "gpus"}):
        assert api.refusal("POST", "/operations/check", json=body)[:2] == (403, "forbidden"), body
    blind = Api(search.store, hosts=False, operations=True)
    for name in ("a", "absent"):
        assert blind.refusal("POST", "/operations/check", json={"hosts": [name]})[0] == 403
    assert len(triggered) == 1
    stored = search.store.operations.get(triggered[0]["operation"])
    assert stored.arguments == {"hosts": ["a"], "wait_s": 0.0, "tolerance": 0.15, "evacuate": False}


@SQLITE
def test_a_check_without_hosts_or_with_too_many_is_refused(search, triggered):
    api = Api(search.store, operations=True)
    assert api.refusal("POST", "/operations/check", json={"hosts": ["absent"]})[:2] == (404, "not_found")
    assert "no host to check" in api.refusal("POST", "/operations/check", json={"pool": "other"})[2]
    for body in ({"wait_s": -1}, {"wait_s": 1e9}, {"tolerance": 2}, {"hosts": ["x" * 64]}):
        assert api.refusal("POST", "/operations/check", json=body)[0] == 422, body
    for number in range(65):
        search.store.hosts.add(host(f"h{number}"))
    assert "at most 64 hosts" in api.refusal("POST", "/operations/check", json={})[2]
    assert triggered == []


@SQLITE
def test_slow_hosts_of_a_check_are_drained_but_not_the_last_ready_one(search):
    found = HostCheck(hosts=["a", "b"], rates=[], findings=[HostTexts(host=name, texts=["slow"]) for name in "ab"])
    first, second = evacuated(search.store, found).evacuated
    assert "Host 'a' is drained" in first
    assert "Host 'b' is not drained" in second
    assert [search.store.hosts.get(name).state == "ready" for name in "ab"] == [False, True]
