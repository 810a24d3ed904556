"""A batch inference on two hosts that share nothing, one of which crashes: its results are on the Airflow machine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from tests.support.engines import Engine, held  # noqa: E402
from tests.support.inference import PROCESSOR, rows, rows_of_a_loop  # noqa: E402
from tests.support.pair import register_pair  # noqa: E402

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.torch,
    pytest.mark.usefixtures("quick_looks"),
]
#: The hosts see no file of the Airflow machine, so the rows come from code.
ON_HOSTS = """
class Made(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return {"id": i, "x": float(i % 7), "y": i / 1000}

class OnHosts(Model):
    def build_dataset(self):
        return Made()

    def process_batch(self, batch, batch_idx):
        time.sleep(0.1)
        return {**super().process_batch(batch, batch_idx), "id": batch["id"]}
"""


def entries(place: Path) -> list[str]:
    folder = place / "out" / "_dtrain" / "done"
    return sorted(os.listdir(folder)) if folder.exists() else []


async def test_shards_that_have_arrived_outlive_their_host(
    engine: Engine, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hook.settings = dataclasses.replace(engine.hook.settings, orphan_timeout_s=6.0, kill_grace_s=1.0)
    register_pair(engine.hook, hosts, monkeypatch, slots=1)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "processors.py").write_text(PROCESSOR + ON_HOSTS)
    inference = {
        "processor": "processors:OnHosts",
        "inputs": {"shard_rows": 50},
        "outputs": {"path": str(tmp_path / "out"), "row_id": "row"},
        "batch_size": 16,
        "collect": True,
    }
    document = {"inference": inference, "model_dir": "code", "max_restarts": 0}
    both = {**document, "resources": {"slots_per_trial": 2, "pool": "pair"}}
    ticket = engine.submit(both, folder=tmp_path)
    carrying = asyncio.ensure_future(engine.carry(ticket, most_s=240))
    store = engine.hook.store
    while len(entries(tmp_path)) < 6:
        assert not carrying.done(), carrying.result()
        await asyncio.sleep(0.1)
    assert len({one.host for one in store.events.of_attempt(ticket.attempt_id, kinds=("shard_done",))}) == 2
    before = entries(tmp_path)
    crashed = list(hosts)[1]
    crashed.crash()
    store.control.kill(ticket.trial_id, by="ann")
    killed = await carrying
    assert killed is not None
    assert killed.state == "killed"

    one = {**document, "resources": {"slots_per_trial": 1, "pool": "pair"}}
    outcome = await engine.carry(engine.submit(one, folder=tmp_path), most_s=240)

    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert set(before) <= set(entries(tmp_path))
    assert rows(tmp_path) == rows_of_a_loop()
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert outcome.result is not None
    assert outcome.result["metrics"] == manifest["metrics"]
    assert [slot for slot in held(engine) if slot.host != crashed.name] == []
