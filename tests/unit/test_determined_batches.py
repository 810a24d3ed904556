"""Arguments of batch inference under the names of Determined."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from airflow_provider_dtrain.train.determined.batch_processing import (  # noqa: E402
    TorchBatchProcessor,
    torch_batch_process,
)
from airflow_provider_dtrain.train.errors import CheckpointError, NotOfferedError, SetupError  # noqa: E402

pytestmark = pytest.mark.torch


class Kept(TorchBatchProcessor):
    batches: list = []

    def __init__(self, context):
        self.context = context
        Kept.batches = []

    def process_batch(self, batch, batch_idx):
        Kept.batches.append((batch_idx, batch.tolist()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": iter(range(3))}, "needs a data set with a length, got range_iterator"),
        ({"checkpoint_interval": 0}, "checkpoint_interval must be 1 or more, got 0"),
        ({"batch_size": 2, "dataloader_kwargs": {"batch_size": 2}}, "batch_size is given twice"),
        ({"dataloader_kwargs": {"shuffle": True}}, "must not have 'shuffle'"),
        ({"dataloader_kwargs": {"sampler": [1]}}, "must not have 'sampler'"),
        ({"dataloader_kwargs": {"batch_sampler": [[1]]}}, "must not have 'batch_sampler'"),
    ],
)
def test_arguments_that_do_not_fit_are_named_before_anything_starts(changes, words):
    with pytest.raises(SetupError, match=words):
        torch_batch_process(Kept, **{"dataset": [1, 2, 3], **changes})


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({}, [(0, [0]), (1, [1]), (2, [2])]),
        ({"batch_size": 2}, [(0, [0, 1]), (1, [2])]),
        ({"dataloader_kwargs": {"batch_size": 2, "drop_last": True, "shuffle": False}}, [(0, [0, 1])]),
        ({"max_batches": 2}, [(0, [0]), (1, [1])]),
        ({"max_batches": 0}, [(0, [0]), (1, [1]), (2, [2])]),
        ({"max_batches": 9, "dataset": []}, []),
    ],
)
def test_batches_follow_the_arguments(tmp_path, monkeypatch, changes, batches):
    monkeypatch.chdir(tmp_path)
    torch_batch_process(Kept, **{"dataset": [0, 1, 2], **changes})
    assert Kept.batches == batches


def test_a_block_that_fails_and_a_missing_registry_leave_no_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fail(path):
        (path / "half.txt").write_text("half")
        raise ValueError("in the block")

    class Failing(Kept):
        def process_batch(self, batch, batch_idx):
            with contextlib.suppress(ValueError), self.context.upload_path() as path:
                fail(path)
            with pytest.raises(NotOfferedError, match=r"inference\.weights of the configuration"):
                self.context.report_task_using_checkpoint(None)
            assert not hasattr(self.context, "nonsense")

    torch_batch_process(Failing, [1])
    assert not list(tmp_path.rglob("half.txt"))
    assert list(tmp_path.rglob("step-00000001"))


def test_links_to_files_become_files_and_other_links_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far.txt").write_text("far")

    class Linking(Kept):
        def process_batch(self, batch, batch_idx):
            with self.context.upload_path() as path:
                (path / "z.txt").write_text("z")
                (path / "a.txt").symlink_to(path / "z.txt")
                (path / "b.txt").symlink_to("z.txt")
                (path / "c.txt").symlink_to(tmp_path / "far.txt")
                (path / "z.txt.copy").symlink_to(tmp_path / "far.txt")
                (path / "a.txt.copy").write_text("own")
                (path / "zz.txt").symlink_to("a.txt")

    torch_batch_process(Linking, [1])
    (saved,) = tmp_path.rglob("rank_0")
    found = {path.name: (path.is_symlink(), path.read_text()) for path in saved.iterdir()}
    assert found == {
        "z.txt": (False, "z"),
        "a.txt": (False, "z"),
        "b.txt": (False, "z"),
        "c.txt": (False, "far"),
        "z.txt.copy": (False, "far"),
        "a.txt.copy": (False, "own"),
        "zz.txt": (False, "z"),
    }
    assert (tmp_path / "far.txt").read_text() == "far"

    class Dangling(Kept):
        def process_batch(self, batch, batch_idx):
            with self.context.upload_path() as path:
                (path / "a.txt").symlink_to(self.target)

    for target in ("nothing", tmp_path):
        Dangling.target = target
        with pytest.raises(CheckpointError, match=r"a\.txt in upload_path is a link to .*Copy the files to upload"):
            torch_batch_process(Dangling, [1])
