"""Bad numbers and the order of numbers in memory, with tensors on a real GPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint import disk  # noqa: E402


def begun(folder: Path) -> dtrain.Context:
    return dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=folder, device="cuda:0")


def train(folder: Path, bad_at: int, where: str) -> None:
    """Train with a NaN in the loss or in a module at a step, and save after each epoch."""
    with begun(folder) as ctx:
        torch.manual_seed(1)
        data = torch.utils.data.TensorDataset(torch.randn(16, 3), torch.randn(16, 1))
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), 0.01))
        step = ctx.restore_checkpoint()
        for _ in ctx.epochs(3):
            for inputs, targets in ctx.loader(data):
                step += 1
                inputs, targets = ctx.to_device(inputs), ctx.to_device(targets)
                if step == bad_at and where == "input":
                    inputs[1, 1] = math.nan
                loss = (model(inputs) - targets).square().mean()
                ctx.backward(loss * math.nan if step == bad_at and where == "loss" else loss)
                ctx.step(optimizer)
            ctx.save_checkpoint(step)


@pytest.mark.parametrize("where", ["loss", "input"])
def test_a_loss_that_is_nan_ends_the_training_before_the_next_save(tmp_path: Path, where: str) -> None:
    with pytest.raises((dtrain.NonFiniteLossError, dtrain.NonFiniteWeightsError)) as caught:
        train(tmp_path, 6, where)
    print("NaN on a GPU:", caught.value)
    (path,) = tmp_path.glob("step-*")
    assert disk.whole(path).step == 4
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    dtrain.load_weights(model, path)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_order_of_numbers_in_memory_survives_a_checkpoint(tmp_path: Path) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)

    strides = model().weight.stride()
    with begun(tmp_path) as ctx:
        first, optimizer = ctx.prepare(
            made := model(), torch.optim.AdamW(made.parameters(), fused=True, capturable=True)
        )
        first(torch.randn(2, 4, 8, 8, device="cuda").to(memory_format=torch.channels_last)).sum().backward()
        optimizer.step()
        moments = [state["exp_avg"].stride() for state in optimizer.state.values()]
        ctx.save_checkpoint(1)
    with begun(tmp_path) as ctx:
        second, optimizer = ctx.prepare(
            made := model(), torch.optim.AdamW(made.parameters(), fused=True, capturable=True)
        )
        assert ctx.restore_checkpoint() == 1
        assert second.weight.stride() == strides
        assert [state["exp_avg"].stride() for state in optimizer.state.values()] == moments
        assert all(state["step"].device.type == "cuda" for state in optimizer.state.values())
        assert torch.equal(second.weight, first.weight)
