"""Checkpoints on disk."""

from __future__ import annotations

import json
import logging
import math

import pytest

from airflow_provider_dtrain.train.checkpoint import description, disk, storage
from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError
from tests.support import stored

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def write(folder, step, **metrics):
    return stored.write(folder, step, {disk.STATE: {"w": torch.full((4,), float(step))}}, {"metrics": metrics})


def test_a_checkpoint_is_read_back_as_it_was_written(tmp_path):
    written = write(tmp_path, 3, accuracy=0.5)
    found = stored.newest(tmp_path)
    assert found == written
    assert (found.step, found.metrics) == (3, {"accuracy": 0.5})
    assert torch.load(found.path / disk.STATE, weights_only=True)["w"].tolist() == [3.0] * 4


def test_nothing_but_the_checkpoint_is_left_in_the_folder(tmp_path):
    written = write(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == [written.path.name]


def test_a_checkpoint_that_is_being_written_is_not_found(tmp_path):
    written = write(tmp_path, 3)
    written.path.rename(tmp_path / ".step-3.99.tmp")
    assert stored.newest(tmp_path) is None


def test_the_same_step_twice_keeps_both_and_finds_the_later(tmp_path):
    first, second = write(tmp_path, 3), write(tmp_path, 3)
    assert first.path != second.path
    assert stored.newest(tmp_path).path == second.path


def spoil_state(path):
    content = bytearray((path / disk.STATE).read_bytes())
    content[len(content) // 2] ^= 1
    (path / disk.STATE).write_bytes(content)


def cut_state(path):
    (path / disk.STATE).write_bytes((path / disk.STATE).read_bytes()[:-1])


def lose_state(path):
    (path / disk.STATE).unlink()


def lose_metadata(path):
    (path / description.METADATA).unlink()


def cut_metadata(path):
    (path / description.METADATA).write_bytes((path / description.METADATA).read_bytes()[:-20])


def change_metadata(path):
    metadata = json.loads((path / description.METADATA).read_text())
    (path / description.METADATA).write_text(json.dumps({**metadata, "step": 99}))


@pytest.mark.parametrize("damage", [spoil_state, cut_state, lose_state, lose_metadata, cut_metadata, change_metadata])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path, caplog, damage):
    before, newest = write(tmp_path, 1), write(tmp_path, 2)
    damage(newest.path)
    with caplog.at_level(logging.WARNING):
        assert stored.newest(tmp_path).path == before.path
    assert f"{newest.path} is damaged" in caplog.text


def test_when_all_are_damaged_none_is_found_and_the_log_names_them(tmp_path, caplog):
    cut_state(write(tmp_path, 1).path)
    assert stored.newest(tmp_path) is None
    assert "step-00000001 is damaged" in caplog.text


def test_a_checkpoint_elsewhere_is_looked_at_as_well(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    write(here, 1)
    newer = write(there, 2)
    copied = newer.path.rename(there / "t1.1.7-step2")
    assert stored.newest(here, copied).step == 2


def test_one_damaged_elsewhere_falls_back_to_its_neighbour(tmp_path):
    before, newest = write(tmp_path, 1), write(tmp_path, 2)
    cut_state(newest.path)
    assert stored.newest(None, newest.path).path == before.path


@pytest.mark.parametrize("is_old", [False, True], ids=["torch", "torch-2.4"])
def test_what_cannot_be_loaded_without_pickle_is_refused_when_it_is_written(tmp_path, monkeypatch, is_old):
    class Clever:
        pass

    if is_old:
        monkeypatch.delattr("torch.serialization.get_unsafe_globals_in_checkpoint", raising=False)
        stored.write(tmp_path / "good", 1, {disk.STATE: {"x": torch.ones(2), "y": [1.0, "a"]}}, {})

    globals()["Clever"], Clever.__qualname__ = Clever, "Clever"
    with pytest.raises(CheckpointError, match="Clever"):
        stored.write(tmp_path / "bad", 1, {disk.STATE: {"x": Clever()}}, {})
    assert list((tmp_path / "bad").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"step 1 cannot be written to .*file/step-00000001"):
        write(tmp_path / "file", 1)


def test_a_checkpoint_of_another_format_is_an_error_and_not_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(description, "FORMAT", 4)
    path = write(tmp_path, 1).path
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 4; this version reads format 1. Use") as caught:
        disk.read(path)
    assert not isinstance(caught.value, DamagedCheckpointError)


POLICY = {"metric": "accuracy", "smaller_is_better": False, "save_trial_best": 1, "save_trial_latest": 1}


@pytest.mark.parametrize(
    ("accuracies", "changes", "kept"),
    [
        ([0.1, 0.9, 0.5], {}, [2, 3]),
        ([0.1, 0.5, 0.9], {}, [3]),
        ([0.1, 0.9, 0.5], {"smaller_is_better": True}, [1, 3]),
        ([0.1, 0.9, 0.5], {"save_trial_latest": 0}, [2]),
        ([0.3, 0.9, 0.5, 0.1], {"save_trial_best": 2, "save_trial_latest": 2}, [2, 3, 4]),
        ([None, 0.2, None], {}, [2, 3]),
        ([None, None], {}, [2]),
        ([0.1, math.nan, 0.05], {}, [1, 3]),
        ([math.nan, 0.1, 0.05], {"smaller_is_better": True, "save_trial_latest": 0}, [3]),
        ([math.inf, 0.1, -math.inf, 0.05], {}, [2, 4]),
        ([True, "0.9", 0.1, 0.05], {}, [3, 4]),
        ([math.nan, math.nan, 0.3], {"save_trial_best": 3}, [3]),
        ([0.1, 0.9, 0.5], {"metric": None}, [3]),
        ([0.1, 0.2], {"save_trial_best": 0, "save_trial_latest": 0}, []),
    ],
)
def test_the_best_and_the_latest_are_kept(tmp_path, accuracies, changes, kept):
    for step, accuracy in enumerate(accuracies, start=1):
        write(tmp_path, step, accuracy=accuracy)
    gone = storage.open_storage(tmp_path, {}).prune({**POLICY, **changes})
    assert sorted(disk.read(path).step for path in tmp_path.iterdir()) == kept
    assert len(gone) == len(accuracies) - len(kept)


def signed(**more):
    """Return metadata with a checksum that fits, as a hostile program writes it."""
    metadata = {"format": description.FORMAT, "step": 1, "files": {}, **more}
    return json.dumps({**metadata, "checksum": description._checksum(metadata)}).encode()


FILE = {"size_bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000, b'{"a":' * 200_000, b"[1]", b"1", b"", b"{}", b"\xff",
        b" " * (description.METADATA_LIMIT_BYTES + 1),
        signed(step=float("inf")), signed(step=None), signed(files=[]), signed(files={"a": 1}), signed(files={"a": {}}),
        signed(files={"a": {**FILE, "size_bytes": float("inf")}}), signed(files={"a": {**FILE, "size_bytes": -1}}),
        signed(files={"a": {**FILE, "more": 1}}), signed(files={"a\0b": FILE}), signed(files={"..": FILE}),
        signed(files={"a/b": FILE}),
    ],
    ids=lambda text: repr(text[:40]),
)  # fmt: skip
def test_hostile_metadata_is_a_damaged_checkpoint_and_no_crash(tmp_path, text):
    (tmp_path / description.METADATA).write_bytes(text)
    with pytest.raises(DamagedCheckpointError):
        disk.whole(tmp_path)


def test_metadata_that_no_reader_accepts_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(description, "METADATA_LIMIT_BYTES", 500)
    with pytest.raises(CheckpointError, match="at most 500 bytes"):
        description.metadata_text(1, {"metrics": {f"loss{n}": 1.0 for n in range(100)}}, {})
