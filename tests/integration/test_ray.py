"""Ray as the entrypoint of a gang of two hosts."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import Engine
from tests.support.pair import register_pair

pytest_plugins = ["testbed.netns.plugin"]

PROGRAM = """
import json, socket, time
import ray

ray.init()

@ray.remote
def place():
    time.sleep(1)
    return socket.gethostname()

places = sorted(set(ray.get([place.remote() for _ in range(4)])))
print("FOUND", json.dumps({"nodes": len(ray.nodes()), "slots": ray.cluster_resources()["CPU"], "places": places}))
"""


@pytest.mark.nightly
@pytest.mark.netns
async def test_ray_runs_tasks_on_the_slots_of_both_hosts_and_is_stopped(
    engine: Engine, hosts: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    caplog.set_level(logging.INFO)
    register_pair(engine.hook, hosts, monkeypatch)
    (tmp_path / "program.py").write_text(PROGRAM)
    document = {
        "name": "ray",
        "entrypoint": "ray symmetric-run -- python program.py",
        "resources": {"slots_per_trial": 4, "pool": "pair"},
        "environment": {"variables": {"RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT": "120"}},
        "max_restarts": 0,
    }
    outcome = await engine.carry(engine.submit(document, folder=tmp_path))
    assert outcome is not None
    assert outcome.state == "completed", f"{outcome}\n{caplog.text}"
    found = [json.loads(line.partition("FOUND ")[2]) for line in caplog.text.splitlines() if "FOUND {" in line]
    assert found == [{"nodes": 2, "slots": 4.0, "places": ["ns-0", "ns-1"]}]
    for host in list(hosts)[:2]:
        assert [one for one in host.commands().values() if "raylet" in " ".join(one)] == []
