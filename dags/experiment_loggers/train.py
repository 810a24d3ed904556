"""A line through noisy points, whose metrics go to MLflow, Weights & Biases and TensorBoard. Downloads nothing."""

from __future__ import annotations

import torch

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.integrations.tensorboard import SummaryWriter


def points(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Return inputs of shape (count, 8) and their sums with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator))


def main() -> None:
    """Train to the end, or to the step at which the trial must stop.

    ``loggers`` of the configuration copies what the script reports. A writer of TensorBoard needs a line of its own.
    """
    with dtrain.init(hparams={"lr": 0.05, "epochs": 4, "global_batch_size": 16}) as ctx, SummaryWriter(ctx) as writer:
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.Adam(model.parameters(), ctx.hparams["lr"])
        model, optimizer = ctx.prepare(model, optimizer)
        held_out = points(128, 1)
        step = ctx.restore_checkpoint()
        for _ in ctx.epochs(ctx.hparams["epochs"]):
            for batch in ctx.loader(points(512, 0)):
                inputs, targets = ctx.to_device(batch)
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                ctx.backward(loss)
                ctx.step(optimizer)
                step += 1
                writer.add_scalar("loss", loss, step)  # an event file, and a report
            writer.add_histogram("weights", dtrain.unwrap(model).weight, step)
            with torch.no_grad():
                inputs, targets = ctx.to_device(held_out.tensors)
                error = torch.nn.functional.mse_loss(dtrain.unwrap(model)(inputs), targets)
            ctx.report_validation(step, {"error": error})
            ctx.save_checkpoint(step)


if __name__ == "__main__":
    main()
