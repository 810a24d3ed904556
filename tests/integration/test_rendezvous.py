"""Listening addresses of the ranks of real gangs, on this machine and on two hosts."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.support.engines import Engine, config
from tests.support.pair import register_pair

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = pytest.mark.torch
SSH = 22


async def listening(engine: Engine, caplog: pytest.LogCaptureFixture, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a trial of ``listening.py`` and return what its rank 0 printed."""
    caplog.set_level(logging.INFO)
    outcome = await engine.carry(engine.submit(document))
    assert outcome is not None
    assert outcome.state == "completed", f"{outcome}\n{caplog.text}"
    marks = (line.partition("LISTENING ")[2] for line in caplog.text.splitlines())
    return [json.loads(mark) for mark in marks if mark]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["plain", "library"])
async def test_a_gang_of_one_host_listens_on_the_loopback_address_only(
    engine: Engine, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    document = {**config("", slots=2), "entrypoint": f"python listening.py {kind}"}
    found = await listening(engine, caplog, document)
    assert len(found) == (2 if kind == "plain" else 1)
    for one in found:
        assert one["master"] in one["namespace"]
        assert {address for rank in one["ranks"] for address, _ in rank} == {"127.0.0.1"}


@pytest.mark.nightly
@pytest.mark.netns
async def test_a_gang_of_two_hosts_listens_on_the_chosen_addresses_only(
    engine: Engine, hosts: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_pair(engine.hook, hosts, monkeypatch, slots=1)
    document = {**config("", slots=2), "entrypoint": "python listening.py plain"}
    document["resources"]["pool"] = "pair"
    found = await listening(engine, caplog, document)
    assert len(found) == 2
    own = {host.address for host in list(hosts)[:2]}
    for one in found:
        assert one["sum"] == 2.0
        assert one["master"] in one["namespace"]
        assert {address for rank in one["ranks"] for address, _ in rank} == own
        assert {address for address, port in one["namespace"] if port != SSH} <= own
