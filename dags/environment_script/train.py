"""Trains a model with a layer of a package that the hosts do not have: the lock file beside this script names it."""

from __future__ import annotations

import torch
from einops.layers.torch import Rearrange

import airflow_provider_dtrain.train as dtrain


def network() -> torch.nn.Module:
    """Return a network that sees an image, (rows, 8, 8), as four patches, (rows, 4, 16)."""
    patches = Rearrange("b (h p) (w q) -> b (h w) (p q)", p=4, q=4)
    layers = (torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 1))
    return torch.nn.Sequential(patches, *layers)


def main() -> None:
    """Learn the mean of the first patch of random images, with a checkpoint every 50 steps."""
    with dtrain.init(hparams={"lr": 0.01, "steps": 200}) as ctx:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=ctx.hparams["lr"])
        model, optimizer = ctx.prepare(model, optimizer)
        for step in range(ctx.restore_checkpoint() + 1, ctx.hparams["steps"] + 1):
            images = ctx.to_device(torch.randn(32, 8, 8))
            loss = torch.nn.functional.mse_loss(model(images).squeeze(1), images[:, :4, :4].mean((1, 2)))
            ctx.backward(loss)
            ctx.step(optimizer)
            ctx.report(step, {"loss": loss})
            stop = ctx.should_stop(step)
            if step % 50 == 0 or stop:
                ctx.report_validation(step, {"error": loss.item()})
                ctx.save_checkpoint(step)
            if stop:
                break


if __name__ == "__main__":
    main()
