"""A look at the checkpoint before the restore, for programs whose objects change during training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.checkpoint.restorer import Restorer
from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def start(folder, **config):
    return dtrain.init(hparams={"global_batch_size": 8}, seed=3, checkpoint_dir=folder, config=config or None)


def thaw(ctx, *, asks=True, stop_at=None):
    """Train a head, and from the second epoch on the body, too. Return the digest of the parameters."""
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1)
    saved = ctx.saved_progress() if asks else None
    if saved is not None and saved.epochs > 1:
        optimizer.add_param_group({"params": body.parameters()})
    model, optimizer = ctx.prepare(torch.nn.Sequential(body, head), optimizer)
    step = ctx.restore_checkpoint()
    for epoch in ctx.epochs(3):
        if epoch == 1 and len(optimizer.param_groups) == 1:
            body.zero_grad()
            optimizer.add_param_group({"params": body.parameters()})
        for batch in ctx.loader(data):
            ctx.backward(model(batch).square().mean())
            ctx.step(optimizer)
            step += 1
            if step == stop_at:
                ctx.save_checkpoint(step)
                return dtrain.parameters_sha256(model)
    return dtrain.parameters_sha256(model)


def test_a_program_that_adds_a_group_later_resumes_as_an_unbroken_one_from_any_step(tmp_path):
    with start(tmp_path / "unbroken") as ctx:
        unbroken = thaw(ctx)
    for stop_at in (1, 3, 5, 6, 9):
        with start(tmp_path / f"{stop_at}") as ctx:
            assert thaw(ctx, stop_at=stop_at) != unbroken
        with start(tmp_path / f"{stop_at}") as ctx:
            assert thaw(ctx) == unbroken, stop_at


def test_a_program_that_lacks_a_group_of_the_checkpoint_is_refused_with_the_remedy(tmp_path):
    with start(tmp_path) as ctx:
        thaw(ctx, stop_at=5)
    sizes = r"has 2 parameter groups \(2 \+ 2 parameters\) in optimizers\[0\] \(AdamW\), got 1 parameter group \(2 par"
    with start(tmp_path) as ctx, pytest.raises(CheckpointError, match=rf"{sizes}.*ctx\.saved_progress\(\)"):
        thaw(ctx, asks=False)
    with start(tmp_path) as ctx:
        assert ctx.saved_progress().step == 5, "the checkpoint stays"


def test_progress_has_the_epochs_and_metrics_of_the_checkpoint_that_would_be_restored(tmp_path):
    parameter = torch.nn.Parameter(torch.zeros(2))
    with start(tmp_path) as ctx:
        assert ctx.saved_progress() is None
        ctx.register(state=_Held(parameter))
        ctx.report_validation(4, {"accuracy": 0.5}, epoch=1.5)
        ctx.save_checkpoint(4)
    with start(tmp_path) as ctx:
        progress = ctx.saved_progress()
        assert (progress.step, progress.epochs, progress.metrics) == (4, 1.5, {"accuracy": 0.5})
        ctx.register(state=_Held(parameter))
        assert ctx.restore_checkpoint() == 4


def test_progress_is_of_the_newest_intact_checkpoint(tmp_path):
    with start(tmp_path, checkpoint_storage={"save_trial_latest": 2}) as ctx:
        ctx.register(state=_Held(torch.zeros(2)))
        for step in (1, 2):
            ctx.save_checkpoint(step)
    older, newest = sorted(tmp_path.glob("step-*"))
    (newest / "metadata.json").write_text("{")
    with start(tmp_path) as ctx:
        assert ctx.saved_progress().step == 1
    (older / "metadata.json").write_text("{")
    with start(tmp_path) as ctx:
        with pytest.raises(DamagedCheckpointError, match="None of 2 checkpoints is intact"):
            ctx.saved_progress()
        assert ctx.saved_progress(start_over=True) is None


class _Held:
    """A state of one tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def state_dict(self):
        return {"tensor": self.tensor}

    def load_state_dict(self, state):
        self.tensor = state["tensor"]


def test_copies_of_a_checkpoint_stay_until_every_rank_has_read_them(tmp_path):
    """Ranks of one host read the files that rank 0 has fetched."""
    there = []
    restorer = Restorer.__new__(Restorer)
    restorer._env = SimpleNamespace(run_dir=tmp_path)
    restorer._distributed = SimpleNamespace(barrier=lambda: there.append(len(list(tmp_path.iterdir()))))
    with restorer._scratch():
        pass
    assert (there, list(tmp_path.iterdir())) == ([1], [])
