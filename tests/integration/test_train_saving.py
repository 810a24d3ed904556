"""Killed, refused and damaged saves, and resumed runs compared with uninterrupted ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.train.checkpoint import disk
from tests.support import stored
from tests.support.ranks import ROOT, run_ranks, script

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]

KILLED = """
import os, random, signal, sys, time
import torch
import airflow_provider_dtrain.train as dtrain

def constantly(say):
    with dtrain.init(hparams={"global_batch_size": 1}, checkpoint_dir=sys.argv[1]) as ctx:
        model = torch.nn.Linear(400, 400)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        step = ctx.restore_checkpoint()
        for tensor in model.state_dict().values():
            # A checkpoint whose parts come from several steps would show here.
            assert step == 0 or (tensor == step).all(), (step, tensor)
        say.write(f"{step}\\n")
        while True:
            step += 1
            for tensor in model.state_dict().values():
                tensor.fill_(step)
            ctx.save_checkpoint(step)
            # The save before this one is on the disk now.
            say.write(f"{step - 1}\\n")

rng = random.Random(3)
for _ in range(12):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            constantly(os.fdopen(write, "w", buffering=1))
        finally:
            os._exit(1)
    os.close(write)
    lines = os.fdopen(read)
    first = lines.readline()
    for _ in range(rng.randint(1, 8)):
        lines.readline()
    # Somewhere in the middle of a save.
    time.sleep(rng.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    told = [line for line in lines.read().splitlines() if line]
    print("kill", os.waitpid(pid, 0)[1], first.strip() or "-", told[-1] if told else "-", flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    path, folder = tmp_path / "killed.py", tmp_path / "kept"
    path.write_text(KILLED)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path), str(folder)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    kills = re.findall(r"kill (\d+) (\S+) (\S+)", done.stdout)
    assert len(kills) == 12, done.stdout + done.stderr
    assert {status for status, _, _ in kills} == {str(int(signal.SIGKILL))}, done.stderr
    starts = [int(first) for _, first, _ in kills]
    assert starts[0] == 0
    for (_, _, told), restored in zip(kills, starts[1:], strict=False):
        # Nothing that was on the disk is lost.
        assert told == "-" or restored >= int(told)
    assert starts[-1] > 15
    assert stored.newest(folder) is not None
    # What kills left behind does not pile up: the next process swept it.
    assert len([path for path in folder.iterdir() if path.name.startswith(".")]) <= 2


RESUMED = """
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, index):
            # Augmentation inside a worker.
            return torch.full((4,), index / 40) + torch.randn(4) * 0.1, index % 2

    def main():
        with dtrain.init() as ctx:
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
            model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
            print("progress", ctx.saved_progress())
            step = ctx.restore_checkpoint()
            print("restored", step)
            for _ in ctx.epochs(3):
                for inputs, labels in ctx.loader(Noisy(), num_workers=WORKERS):
                    ctx.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
                    ctx.step(optimizer, clip_grad_norm=1.0)
                    step += 1
                    if step == SAVE:
                        ctx.save_checkpoint(step)
                    if step == STOP:
                        return
            print("parameters", dtrain.parameters_sha256(model), scheduler.get_last_lr(), torch.rand(1).item())
    main()
"""


@pytest.mark.each_change("2-2-3")
@pytest.mark.parametrize(("size", "workers", "aggregation"), [(1, 2, 1), (2, 0, 1), (2, 2, 3)])
def test_a_resumed_run_ends_as_an_unbroken_one(tmp_path, size, workers, aggregation):
    body = RESUMED.replace("WORKERS", str(workers)).replace("SAVE", "7")
    context = {"config": {"optimizations": {"aggregation_frequency": aggregation}}}
    whole = run_ranks(script(tmp_path, body.replace("STOP", "-1")), tmp_path / "whole", size, context=context)
    assert [rank.exit_code for rank in whole] == [0] * size, whole[0].output
    first = run_ranks(script(tmp_path, body.replace("STOP", "9")), tmp_path / "first", size, context=context)
    assert [rank.exit_code for rank in first] == [0] * size, first[0].output
    saved = str(tmp_path / "first" / "checkpoints" / "step-00000007")
    second = run_ranks(
        script(tmp_path, body.replace("STOP", "-1")), tmp_path / "second", size,
        context={**context, "latest_checkpoint": saved},
    )  # fmt: skip
    for resumed, unbroken in zip(second, whole, strict=True):
        assert resumed.said(r"progress (.+)") == ["SavedProgress(step=7, epochs=1.4, metrics={})"]
        assert resumed.said(r"restored (\d+)") == ["7"], resumed.output
        assert resumed.said(r"parameters (.+)") == unbroken.said(r"parameters (.+)") != []


REFUSED = """
    from airflow_provider_dtrain.train.checkpoint import saver
    saver.RETRY_AFTER_S = (0.0,)

    def main():
        try:
            with dtrain.init() as ctx:
                model = torch.nn.Linear(500, 500)
                ctx.prepare(model)
                for step in range(1, 9):
                    ctx.save_checkpoint(step)
        except dtrain.CheckpointError as error:
            print("refused", error)
            raise SystemExit(7)
    main()
"""


@pytest.mark.each_change
def test_a_full_disk_is_a_named_error_and_no_older_checkpoint_is_lost(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(small)]).returncode:
        pytest.skip("mounting a small tmpfs needs root and the right to mount")
    try:
        context = {"config": {"checkpoint_policy": "all"}, "checkpoint_dir": str(small)}
        (rank,) = run_ranks(script(tmp_path, REFUSED), tmp_path / "run", 1, context=context)
        assert rank.exit_code == 7, rank.output
        assert "No space left on device" in rank.said(r"refused (.+)")[0]
        assert "Training continues, and the save that begins now tries again" in rank.output
        left = sorted(path.name for path in small.glob("*step-*"))
        assert left == [f"step-{step:08d}" for step in range(1, len(left) + 1)]
        assert len(left) >= 3
        assert all(disk.whole(small / name) for name in left)
        told = [event["path"] for event in rank.events if event["kind"] == "checkpoint"]
        assert [Path(path).name for path in told] == left
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_folder_that_cannot_be_written_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    context = {"checkpoint_dir": str(tmp_path / "file" / "below")}
    (rank,) = run_ranks(script(tmp_path, REFUSED), tmp_path / "run", 1, context=context)
    assert rank.exit_code == 7, rank.output
    assert "step 8 cannot be written to" in rank.said(r"refused (.+)")[0]


ENDING = """
    def main():
        with dtrain.init() as ctx:
            model = torch.nn.Linear(3000, 3000)
            ctx.prepare(model)
            ctx.save_checkpoint(1)
            {ending}
    main()
"""


@pytest.mark.parametrize(("ending", "code"), [("raise ValueError('late')", 1), ("sys.exit(3)", 3), ("pass", 0)])
def test_a_save_in_the_works_is_finished_however_the_script_ends(tmp_path, ending, code):
    (rank,) = run_ranks(script(tmp_path, ENDING.format(ending=ending)), tmp_path / "run", 1)
    assert rank.exit_code == code, rank.output
    assert stored.newest(tmp_path / "run" / "checkpoints").step == 1
    assert "checkpoint" in [event["kind"] for event in rank.events]


@pytest.mark.each_change
def test_the_last_save_failing_fails_the_trial(tmp_path):
    (tmp_path / "file").write_text("")
    context = {"checkpoint_dir": str(tmp_path / "file" / "below")}
    (rank,) = run_ranks(script(tmp_path, ENDING.format(ending="pass")), tmp_path / "run", 1, context=context)
    assert rank.exit_code == 1, rank.output
    assert "cannot be written to" in rank.error["message"]


WARM = """
    def main():
        with dtrain.init() as ctx:
            model = torch.nn.Sequential(torch.nn.Linear(4, {width}), torch.nn.BatchNorm1d({width}))
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
            step, tensors = ctx.restore_checkpoint(), len(optimizer.state_dict()["state"])
            print("restored", step, dtrain.parameters_sha256(model), tensors)
            if {save}:
                ctx.backward(model(torch.randn(8, 4)).square().mean())
                ctx.step(optimizer)
                print("saved", dtrain.parameters_sha256(model))
                ctx.save_checkpoint(1)
    main()
"""


def test_a_warm_start_takes_the_weights_and_nothing_else(tmp_path):
    (first,) = run_ranks(script(tmp_path, WARM.format(width=3, save=True)), tmp_path / "first", 1)
    source = {"source_checkpoint": str(tmp_path / "first" / "checkpoints" / "step-00000001")}
    second = run_ranks(script(tmp_path, WARM.format(width=3, save=False)), tmp_path / "second", 2, context=source)
    for rank in second:
        assert rank.said(r"restored (\d+) (\w+) (\d+)") == [("0", first.said(r"saved (\w+)")[0], "0")], rank.output
    (other,) = run_ranks(script(tmp_path, WARM.format(width=5, save=False)), tmp_path / "other", 1, context=source)
    assert other.exit_code == 1
    assert "parameter 0.weight has shape (5, 4) here and (3, 4) in the checkpoint" in other.error["message"]
    assert disk.whole(tmp_path / "first" / "checkpoints" / "step-00000001").step == 1
