"""A trial class as a trial: the engine starts its harness on two slots of this machine."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import Engine

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MODEL = """
import torch
import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.pytorch import DataLoader, PyTorchTrial


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        if context.get_hparam("lr") > 1:
            raise dtrain.InvalidHP("lr above 1 diverges")
        self.model = context.wrap_model(torch.nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr")))

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.ones(16, 2), torch.zeros(16, 1))
        return DataLoader(data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = ((self.model(batch[0]) - batch[1]) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch):
        return {"error": ((self.model(batch[0]) - batch[1]) ** 2).mean(), "records": float(len(batch[0]))}
"""


def config(**hyperparameters: Any) -> dict[str, Any]:
    return {
        "name": "class",
        "entrypoint": "my_model:Trial",
        "model_dir": "code",
        "hyperparameters": {"global_batch_size": 4, **hyperparameters},
        "searcher": {"name": "single", "metric": "error", "max_length": {"epochs": 2}},
        "min_validation_period": {"epochs": 1},
        "scheduling_unit": 3,
        "max_restarts": 2,
        "resources": {"slots_per_trial": 1},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_model.py").write_text(textwrap.dedent(MODEL))
    return tmp_path


@pytest.mark.nightly
async def test_the_engine_trains_a_trial_class(engine: Engine, folder: Path) -> None:
    ticket = engine.submit(config(lr=0.05), folder=folder)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert outcome.result is not None
    assert outcome.result["steps"] == 8
    assert outcome.result["metrics"]["records"] == 4.0
    assert outcome.result["checkpoint"] is not None


async def test_a_trial_class_that_refuses_its_hyperparameters_is_not_restarted(engine: Engine, folder: Path) -> None:
    ticket = engine.submit(config(lr=5.0), folder=folder)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.failure is not None
    assert "lr above 1 diverges" in str(outcome.failure.exception())
    assert type(outcome.failure.exception()).__name__ == "InvalidHPError"
    assert engine.runtime is not None
    assert engine.hook.store.attempts.get(engine.runtime.attempt_id).number == 1
