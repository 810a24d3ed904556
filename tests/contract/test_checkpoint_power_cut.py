"""A power cut after any fsync leaves every checkpoint that was reported, whole, and no other one that looks whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.checkpoint import disk
from tests.support.power_cut import Recorder, Step, cuts

#: Writes checkpoints of both kinds, removes those that are no longer needed, and tells each one that is complete.
WORK = """
import sys
from pathlib import Path
from airflow_provider_dtrain.train.checkpoint.storage import open_storage

folder = Path(sys.argv[1])
storage = open_storage(folder / "kept", {})
reported = open(folder / "reported", "w", buffering=1)
for step in range(1, 7):
    facts = {"metrics": {"loss": 1.0 / step}}
    where = storage.reserve(step)
    if step % 3:
        written = storage.write(where, step, {"state.pt": b"s" * 5000, "rng.pt": bytes([step])}, facts)
    else:
        files = storage.stage(step) / "files"
        (files / "inner").mkdir(parents=True)
        (files / "inner" / "weights").write_bytes(b"w" * 5000)
        (files / "list").write_text("x")
        written = storage.write_tree(where, step, files, {**facts, "kind": "files"})
    print(written.path.name, file=reported)
    policy = {"metric": "loss", "save_trial_best": 0, "save_trial_latest": 2}
    for gone in storage.prune(policy):
        print(f"-{gone.name}", file=reported)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Step]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    root = folder / "data"
    root.mkdir()
    recorder = Recorder(folder / "recorder", root)
    environment = {**os.environ, **recorder.env, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", WORK, str(root)], env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return root, recorder.steps()


def told(steps: list[Step]) -> set[str]:
    """Return the checkpoints that these steps have reported and not removed."""
    lines = b"".join(step.data for step in steps if step.kind == "W" and step.path.endswith("/reported")).decode()
    # A removal begins before it is told.
    removed = {line[1:] for line in lines.split() if line.startswith("-")}
    return {line for line in lines.split() if not line.startswith("-")} - removed


def test_no_reported_checkpoint_is_lost_or_damaged_by_a_power_cut(recorded, tmp_path):
    root, steps = recorded
    assert told(steps) == {"step-00000005", "step-00000006"}
    looked = 0
    for number, after in cuts(root, steps):
        kept = after.image(tmp_path / str(number)) / "kept"
        found = {path.name for path in kept.glob("step-*")}
        for name in found:
            disk.whole(kept / name)
        # Of those that are told and not removed, the newest cannot be among those that are being removed.
        newest = sorted(told(steps[:number]))[-1:]
        assert set(newest) <= found, f"after {number} of {len(steps)} steps"
        looked += 1
    assert looked > 20


def test_a_reported_checkpoint_survives_a_power_cut_right_after_the_report(recorded, tmp_path):
    root, steps = recorded
    looked = 0
    for number, step in enumerate(steps, start=1):
        if step.kind == "W" and step.path.endswith("/reported") and not step.data.startswith(b"-"):
            *_, (_, after) = cuts(root, steps[:number])
            image = after.image(tmp_path / str(number)) / "kept"
            assert disk.whole(image / step.data.decode().strip()).metadata["files"]
            looked += 1
    assert looked == 6
