"""A permanently lost host: the files of a plain script are on the host on which the trial resumes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import pytest

from tests.support.engines import Engine
from tests.support.pair import register_pair
from tests.support.snapshots import script, starts, until_copied

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.usefixtures("quick_looks")]


@pytest.mark.nightly
async def test_a_script_finds_its_snapshot_on_another_host_after_its_own_has_crashed(
    engine: Engine, hosts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine.hook.settings = dataclasses.replace(
        engine.hook.settings, output_sync_period_s=0.2, orphan_timeout_s=6.0, kill_grace_s=1.0
    )
    register_pair(engine.hook, hosts, monkeypatch)
    document = script("5 3 raise wait")
    document["resources"]["pool"] = "pair"
    ticket = engine.submit(document)
    carrying = asyncio.ensure_future(engine.carry(ticket, most_s=240))
    await until_copied(engine, ticket, "work/plots/2.txt")
    [used] = engine.hook.store.attempts.get(ticket.attempt_id).placement
    next(host for host in hosts if host.name == used).crash()
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert starts(caplog)[1] == "3, seen ['1:0', '1:1', '1:2']"
    after = engine.hook.store.attempts.get(engine.hook.store.trials.get(ticket.trial_id).attempt_id)
    assert set(after.plan["plans"] if after.plan else ()) not in ({used}, set())
    assert f"Outputs that rank 0 wrote on host '{used}' since the last copy (of attempt 1" in caplog.text
