"""Handwritten digits with a small convolutional network: a training script for any number of ranks.

Runs as a trial, under ``torchrun train.py`` and with ``python train.py``.
"""

import airflow_provider_dtrain.train as dtrain

DEFAULTS = {"global_batch_size": 64, "lr": 0.006, "dropout": 0.1, "epochs": 10}


def all_digits():
    """Return 1,797 8x8 grey images with their labels, from scikit-learn and without a download."""
    import torch
    from sklearn.datasets import load_digits
    from torch.utils.data import TensorDataset

    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))


def digits():
    """Return (training, validation) data."""
    import torch

    data = all_digits()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    return torch.utils.data.Subset(data, order[360:]), torch.utils.data.Subset(data, order[:360])


def network(dropout):
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10),
    )  # fmt: skip


def validate(ctx, model, data):
    """Return (metrics, number of samples) of this rank's share of the validation data."""
    import torch
    from torch.nn.functional import cross_entropy

    model = dtrain.unwrap(model).eval()
    loss = correct = count = 0
    with torch.no_grad():
        for batch in ctx.validation_loader(data):
            images, labels = ctx.to_device(batch)
            scores = model(images)
            loss += cross_entropy(scores, labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
            count += len(labels)
    model.train()
    return {"validation_loss": loss / max(count, 1), "accuracy": correct / max(count, 1)}, count


def report_mistakes(ctx, model, data):
    """Report a confusion matrix, and wrongly classified digits as one image. Rank 0 has all validation data."""
    import torch

    if not ctx.is_chief:
        return
    images, labels = (torch.stack(part) for part in zip(*data, strict=True))
    model = dtrain.unwrap(model).eval()
    with torch.no_grad():
        predicted = model(ctx.to_device(images)).argmax(1).cpu()
    model.train()
    ctx.report_confusion_matrix("validation/confusion", labels, predicted)
    wrong = images[predicted != labels][:8]
    if len(wrong):
        # Eight grey images of 8 x 8 pixels side by side, of shape (height, width).
        ctx.report_image("validation/mistakes", torch.cat(list(wrong), dim=2)[0])


def main():
    import torch
    from torch.nn.functional import cross_entropy

    with dtrain.init(hparams=DEFAULTS) as ctx:
        rank = ctx.rank
        training, validation = digits()
        model = network(ctx.hparams["dropout"])
        optimizer = torch.optim.Adam(model.parameters(), lr=ctx.hparams["lr"])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
        model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
        step = ctx.restore_checkpoint()
        for epoch in ctx.epochs(ctx.hparams["epochs"]):
            for batch in ctx.loader(training):
                images, labels = ctx.to_device(batch)
                loss = cross_entropy(model(images), labels)
                ctx.backward(loss)
                ctx.step(optimizer, clip_grad_norm=1.0)
                step += 1
                ctx.report(step, {"loss": loss})
            metrics, count = validate(ctx, model, validation)
            ctx.report_validation(step, metrics, weight=count)
            report_mistakes(ctx, model, validation)
            right = round(metrics["accuracy"] * count)
            print(f"rank {rank} epoch {epoch} step {step} loss {loss.item():.4f} right {right} of {count}")
            ctx.save_checkpoint(step)
            if ctx.should_stop:
                break
        print(f"rank {rank} parameters sha256 {dtrain.parameters_sha256(model)}")


if __name__ == "__main__":
    main()
