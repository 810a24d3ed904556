"""Handwritten digits as a trial class.

Runs as a trial (entrypoint ``model_def:DigitsTrial``), under ``torchrun model_def.py`` and with
``python model_def.py``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from airflow_provider_dtrain.train.pytorch import DataLoader, LRScheduler, PyTorchTrial


class DigitsTrial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(context.get_hparam("dropout")), nn.Linear(64, 10),
        )  # fmt: skip
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("lr")))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.99)
        context.wrap_lr_scheduler(scheduler, LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.fail_at_batch = context.get_data_config().get("fail_at_batch")

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == self.fail_at_batch and self.context.get_initial_batch() == 0:
            raise RuntimeError(f"Batch {batch_idx} fails in an attempt from scratch, as fail_at_batch demands.")
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, clip_grads=lambda params: nn.utils.clip_grad_norm_(params, 1.0))
        return {"loss": loss}

    def evaluate_batch(self, batch):
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": cross_entropy(scores, labels).item(),
            "accuracy": (scores.argmax(1) == labels).float().mean().item(),
        }

    def build_training_data_loader(self):
        return DataLoader(digits()[0], batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(digits()[1], batch_size=self.context.get_per_slot_batch_size())


def digits():
    """Return (training, validation) data: 8x8 grey images from scikit-learn, without a download."""
    images, labels = load_digits(return_X_y=True)
    data = torch.utils.data.TensorDataset(
        torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    )
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    return torch.utils.data.Subset(data, order[360:]), torch.utils.data.Subset(data, order[:360])


if __name__ == "__main__":
    import airflow_provider_dtrain.train as dtrain

    hparams = {"global_batch_size": 64, "lr": 0.006, "dropout": 0.1}
    print(dtrain.run_trial(DigitsTrial, hparams=hparams, max_length={"epochs": 10}))
