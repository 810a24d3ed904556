"""A small trial class that tests change in one place each."""

from __future__ import annotations

import torch

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train import pytorch

HPARAMS = {"lr": 0.1, "global_batch_size": 8}


class Small(pytorch.PyTorchTrial):
    """Two classes, 20 samples: three batches of 8 per epoch, the last of 4."""

    samples = 20

    def __init__(self, context):
        self.context = context
        self.trained = []
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
        self.model = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr"), momentum=0.9)
        )
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(self.samples, 4, generator=generator)
        self.labels = (self.inputs.sum(1) > 0).long()

    def data(self):
        return torch.utils.data.TensorDataset(self.inputs, self.labels)

    def build_training_data_loader(self):
        return pytorch.DataLoader(self.data(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.data(), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch, epoch_idx, batch_idx):
        inputs, labels = batch
        self.trained.append((epoch_idx, batch_idx, len(labels)))
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        inputs, labels = batch
        return {"accuracy": (self.model(inputs).argmax(1) == labels).float().mean()}


class Kept:
    """Runs a trial class and keeps the trial itself."""

    def __init__(self, kind):
        self.kind, self.trial = kind, None

    def run(self, length, *, config=None, hparams=None, **options):
        """Train and return the last validation metrics."""
        kept = self

        class Keeping(self.kind):
            def __init__(self, context):
                super().__init__(context)
                kept.trial = self

        config = {"checkpoint_policy": "none", **(config or {})}
        return dtrain.run_trial(Keeping, hparams=hparams or HPARAMS, max_length=length, config=config, **options)

    @property
    def batches(self):
        return [batch for _, batch, _ in self.trial.trained]


def digest(trial):
    return dtrain.parameters_sha256(*trial.context.models)
