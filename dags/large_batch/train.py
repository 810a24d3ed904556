"""Handwritten digits with batches of any size: optimizer by name, linear scaling with warm-up.

Runs as a trial, under ``torchrun train.py`` and with ``python train.py``.
"""

import airflow_provider_dtrain.train as dtrain

DEFAULTS = {"global_batch_size": 256, "reference_batch_size": 32, "warmup_epochs": 4, "epochs": 20,
            "optimizer": "lamb", "lr": 0.003}  # fmt: skip


def digits():
    """Return (training, validation) data: 8x8 grey images from scikit-learn, without a download."""
    import torch
    from sklearn.datasets import load_digits
    from torch.utils.data import TensorDataset

    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    return torch.utils.data.Subset(data, order[360:]), torch.utils.data.Subset(data, order[:360])


def network():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def accuracy(ctx, model, data):
    """Return (accuracy, number of samples) of this rank's share of the validation data."""
    import torch

    right = count = 0
    model = dtrain.unwrap(model).eval()
    with torch.no_grad():
        for batch in ctx.validation_loader(data):
            images, labels = ctx.to_device(batch)
            right += (model(images).argmax(1) == labels).sum().item()
            count += len(labels)
    model.train()
    return right / max(count, 1), count


def main():
    from torch.nn.functional import cross_entropy
    from torch.optim.lr_scheduler import CosineAnnealingLR

    with dtrain.init(hparams=DEFAULTS) as ctx:
        hparams = ctx.hparams
        training, validation = digits()
        model = network()
        optimizer = dtrain.optim.create(hparams["optimizer"], model, lr=hparams["lr"])
        batches = len(ctx.loader(training))
        steps = hparams["epochs"] * batches // ctx.config.get("optimizations", {}).get("aggregation_frequency", 1)
        scheduler = dtrain.optim.linear_scaling(
            optimizer, ctx, reference_batch_size=hparams["reference_batch_size"],
            warmup_epochs=hparams["warmup_epochs"], batches_per_epoch=batches,
            after=CosineAnnealingLR(optimizer, T_max=steps),
        )  # fmt: skip
        model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
        step = ctx.restore_checkpoint()
        for epoch in ctx.epochs(hparams["epochs"]):
            for batch in ctx.loader(training):
                images, labels = ctx.to_device(batch)
                loss = cross_entropy(model(images), labels)
                ctx.backward(loss)
                ctx.step(optimizer)
                step += 1
                ctx.report(step, {"loss": loss, "lr": scheduler.get_last_lr()[0]})
            share, count = accuracy(ctx, model, validation)
            ctx.report_validation(step, {"accuracy": share}, weight=count)
            ctx.save_checkpoint(step)
            print(f"rank {ctx.rank} epoch {epoch} step {step} accuracy {share:.4f}")
            if ctx.should_stop:
                break


if __name__ == "__main__":
    main()
