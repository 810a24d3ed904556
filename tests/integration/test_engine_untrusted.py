"""Reports of a training script are data: nothing outside its trial's places is removed, copied or fetched."""

from __future__ import annotations

import dataclasses
import json
import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.terminal import trials
from tests.support.engines import Engine


def liar(*arguments: str, **more: Any) -> dict[str, Any]:
    words = " ".join(f"'{word}'" for word in arguments)
    return {
        "name": "liar", "entrypoint": f"python liar.py {words}", "model_dir": "code", "max_restarts": 0,
        "resources": {"slots_per_trial": 1}, **more,
    }  # fmt: skip


def victim(folder: Path) -> Path:
    """Create a folder that looks like a checkpoint, so that only its place protects it."""
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"format": 1, "step": 1, "files": {}}))
    return folder


async def test_a_rank_that_names_folders_elsewhere_has_nothing_removed_there(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any, capsys: Any
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    shared = tmp_path / "shared"
    own = shared / "experiment-1" / "trial-1"
    outside = [
        victim(tmp_path / "models" / "prod"), victim(shared / "experiment-1" / "trial-2" / "step-1"),
        victim(Path(f"{shared}-evil") / "step-1"), victim(shared / "experiment-1" / "trial-10" / "step-1"),
    ]  # fmt: skip
    mine = victim(own / "step-1")
    named = [f"file://{outside[0]}", *map(str, outside), f"{own}/../trial-2/step-1", str(mine), str(own / "step-2")]
    storage = {"type": "shared_fs", "host_path": str(shared), "save_trial_best": 0}
    ticket = engine.submit(liar(*named, checkpoint_storage=storage))
    assert (ticket.experiment_id, ticket.trial_id) == (1, 1)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert all((folder / "metadata.json").is_file() for folder in outside)
    # Its own older one is removed as always.
    assert not mine.exists()
    assert caplog.text.count("is refused") == 6
    store = engine.hook.store
    assert [one.path for one in store.checkpoints.of_trial(ticket.trial_id)] == [str(own / "step-2")]
    trials.describe(Namespace(trial_id=ticket.trial_id, output="json"), StoreSource(store))
    shown = json.loads(capsys.readouterr().out)["refused_checkpoints"]
    assert [one["path"] for one in shown] == named[:6]
    assert all(f"directly below {own}/" in one["refused"] for one in shown[1:])


@pytest.mark.nightly
async def test_a_copy_is_limited_by_what_comes_and_not_by_what_was_reported(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    engine.hook.settings = dataclasses.replace(
        engine.hook.settings, checkpoint_copy_limit_bytes=1_000_000, trial_copy_limit_bytes=1_500_000, trial_copies=2
    )
    sizes = (900_000, 500_000, 3_000_000, 800_000)
    named = [f"checkpoints/step-{step}={size}" for step, size in enumerate(sizes, 1)]
    ticket = engine.submit(liar(*named, checkpoint_policy="all"))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    found = engine.hook.store.checkpoints.of_trial(ticket.trial_id)
    copies = {one.step: (one.size_bytes, Path(one.copy_url)) for one in found if one.copy_url is not None}
    # The latest takes the room of older ones: a restart needs it.
    assert 4 in copies
    assert 3 not in copies
    assert all(size == sizes[step - 1] for step, (size, _) in copies.items())
    assert len(copies) <= 2
    kept = sum(path.stat().st_size for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())
    assert kept <= 1_500_000
    names = {path.name for path in (tmp_path / "checkpoints" / "experiment-1" / "trial-1").iterdir()}
    assert names == {path.name for _, path in copies.values()}
    assert "checkpoint_copy_limit is 1000000" in caplog.text


@pytest.mark.nightly
async def test_metadata_that_no_parser_takes_costs_the_copy_and_nothing_else(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    ticket = engine.submit(liar("checkpoints/step-1=deep", "checkpoints/step-2=10", checkpoint_policy="all"))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    copied = {one.step for one in engine.hook.store.checkpoints.of_trial(ticket.trial_id) if one.copy_url is not None}
    assert copied == {2}
    assert "Checkpoint of step 1 was not copied" in caplog.text
