"""Preflight check of shared checkpoint storage: each host of a gang writes a file that every other host reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import Engine, config, held
from tests.support.pair import register_pair

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = pytest.mark.netns


def on_both(path: str) -> dict[str, Any]:
    """Return a configuration that keeps its checkpoints below a path of both hosts."""
    storage = {"type": "directory", "container_path": path}
    document = config("facts", slots=4, checkpoint_storage=storage)
    document["resources"]["pool"] = "pair"
    return document


async def test_a_gang_starts_only_where_all_its_hosts_share_the_checkpoint_storage(
    engine: Engine, hosts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register_pair(engine.hook, hosts, monkeypatch)
    shared = hosts.folder / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    outcome = await engine.carry(engine.submit(on_both(str(shared))))
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert not list(shared.glob(".dtrain-check-*"))
    # Each host has its own /tmp.
    outcome = await engine.carry(engine.submit(on_both("/tmp/apart")))  # noqa: S108
    assert outcome is not None
    assert outcome.failure is not None
    assert "does not see in /tmp/apart what host 'ns-" in outcome.failure.message
    assert "Mount the same file system there on both, or use s3, gcs or azure." in outcome.failure.message
    assert held(engine) == []
