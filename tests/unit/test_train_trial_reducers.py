"""Validation of trial classes: custom reducers before and after it, and the loader of a whole evaluation."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from airflow_provider_dtrain.train import pytorch  # noqa: E402
from tests.support.small_trial import Kept, Small  # noqa: E402


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Counting(Small):
    """Counts its batches by reducers, and keeps what each unit of training reports."""

    samples = 80
    units: list

    def __init__(self, context):
        super().__init__(context)
        self.both = context.wrap_reducer(sum, "both")
        self.training = context.wrap_reducer(sum, "training", for_validation=False)

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.both.update(1)
        self.training.update(1)
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch):
        self.both.update(1)
        self.training.update(1)  # by a method that training calls too
        return super().evaluate_batch(batch)

    def build_callbacks(self):
        units = self.units

        class Units(pytorch.PyTorchCallback):
            def on_training_workload_end(self, avg_metrics, batch_metrics):
                units.append((len(batch_metrics), avg_metrics["both"], avg_metrics["training"]))

        return {"units": Units()}


CONFIG = {
    "scheduling_unit": 4, "min_validation_period": {"batches": 8}, "min_checkpoint_period": {"batches": 8},
    "checkpoint_policy": "all", "perform_initial_validation": True,
}  # fmt: skip


def run(length, **options):
    class Own(Counting):
        units = []

    Kept(Own).run(length, config=CONFIG, **options)
    return Own.units


def test_a_unit_of_training_after_a_validation_holds_no_value_of_it():
    assert run({"batches": 20}) == [(4, 4, 4)] * 5


def test_a_resumed_run_reports_what_the_unbroken_one_reports(tmp_path):
    unbroken = run({"batches": 20})
    first = run({"batches": 8}, checkpoint_dir=tmp_path / "kept")
    assert first + run({"batches": 20}, checkpoint_dir=tmp_path / "kept") == unbroken


def test_a_sharded_loader_for_an_evaluation_by_rank_0_alone_is_warned_of_once(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)

    class Whole(Small):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def build_validation_data_loader(self):
            sampler = torch.utils.data.distributed.DistributedSampler(self.data(), num_replicas=2, rank=0)
            return torch.utils.data.DataLoader(self.data(), batch_size=4, sampler=sampler)

        def evaluate_full_dataset(self, data_loader):
            return {"accuracy": len(data_loader)}

    Kept(Whole).run({"batches": 4}, config={"min_validation_period": {"batches": 2}})
    warned = [message for message in caplog.messages if "whose DistributedSampler yields one of 2 parts" in message]
    assert len(warned) == 1
