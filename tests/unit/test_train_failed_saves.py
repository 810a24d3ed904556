"""Saves that the storage rejects, runs in one folder, and folders in which everything is damaged."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint import saver, storage  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.trial_storage import LEASE  # noqa: E402
from airflow_provider_dtrain.train.errors import (  # noqa: E402
    CheckpointError,
    CheckpointStorageError,
    DamagedCheckpointError,
)
from airflow_provider_dtrain.train.files.lease import Lease  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a script alone."""
    monkeypatch.setattr(saver, "RETRY_AFTER_S", (0.0, 0.0))
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    def begin(**options):
        ctx = dtrain.init(hparams={"global_batch_size": 4}, **{"checkpoint_dir": tmp_path / "kept", **options})
        ctx.prepare(torch.nn.Linear(2, 1))
        return ctx

    return begin


@pytest.fixture
def failing(monkeypatch):
    """Return a list of numbers: how often each save is rejected. It shrinks with each try."""
    write, left = storage.Storage.write, []

    def rejecting(kept, where, step, *args, **options):
        if left and left[0] > 0:
            left[0] -= 1
            raise CheckpointStorageError(f"The checkpoint of step {step} cannot be written: no space left.")
        if left:
            left.pop(0)
        return write(kept, where, step, *args, **options)

    monkeypatch.setattr(storage.Storage, "write", rejecting)
    return left


def refuse(lease, holder):
    """Refuse the holder of a lease, as if it had raised its counter."""
    raise lease._in_use(holder, False)


def steps(folder):
    return sorted(int(path.name[-8:]) for path in folder.glob("step-*"))


def test_a_save_that_the_storage_rejects_is_tried_again(start, failing, tmp_path, caplog):
    failing[:] = [2]
    with start() as ctx:
        ctx.save_checkpoint(1)
    assert steps(tmp_path / "kept") == [1]
    assert caplog.text.count("The next try is in 0 s") == 2


def test_a_failed_save_is_reported_and_does_not_end_training(start, failing, tmp_path, caplog):
    with start() as ctx:
        failing[:] = [3]
        ctx.save_checkpoint(1)
        ctx.save_checkpoint(2)
    assert steps(tmp_path / "kept") == [2]
    assert "step 1 cannot be written: no space left. Training continues" in caplog.text


def test_the_last_save_of_a_program_must_not_fail(start, failing):
    failing[:] = [3]

    def train():
        with start() as ctx:
            ctx.save_checkpoint(1)

    with pytest.raises(CheckpointStorageError, match="no space left"):
        train()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over_unless_asked(start, tmp_path, monkeypatch):
    with start() as ctx:
        ctx.save_checkpoint(1)
    for path in (tmp_path / "kept").glob("step-*/state*"):
        path.write_bytes(b"")
    with (
        start() as ctx,
        pytest.raises(DamagedCheckpointError, match="None of 1 checkpoints.*start_over=True"),
    ):
        ctx.restore_checkpoint()
    with start() as ctx:
        assert ctx.restore_checkpoint(start_over=True) == 0
    monkeypatch.setenv("DTRAIN_START_OVER", "1")
    with start() as ctx:
        assert ctx.restore_checkpoint() == 0


def test_a_folder_in_which_another_run_writes_is_refused_before_training(start, tmp_path, monkeypatch):
    monkeypatch.setattr(Lease, "_wait_for_its_end", refuse)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / LEASE).write_text('{"run": "t3.1.1", "host": "far", "pid": 7}')
    with start() as ctx, pytest.raises(CheckpointError, match="run t3.1.1 on host far, process 7"):
        ctx.restore_checkpoint()


def test_a_bucket_in_which_another_run_writes_is_refused_and_its_checkpoints_stay(start, tmp_path, monkeypatch):
    fs = pytest.importorskip("fsspec").filesystem("memory")
    url = f"memory://kept{tmp_path}"
    with start(checkpoint_dir=url) as ctx:
        ctx.save_checkpoint(1)
        ctx._saver.finish()
        assert fs.exists(f"{url}/{LEASE}")
    assert not fs.exists(f"{url}/{LEASE}")
    monkeypatch.setattr(Lease, "_wait_for_its_end", refuse)
    fs.pipe_file(f"{url}/{LEASE}", b'{"run": "t3.1.1", "host": "far", "pid": 7}')
    with start(checkpoint_dir=url) as ctx, pytest.raises(CheckpointError, match="run t3.1.1 on host far, process 7"):
        ctx.restore_checkpoint()
    assert fs.exists(f"{url}/step-00000001/metadata.json")
