"""A line through noisy points, fitted by Lightning's ``Trainer``. Downloads nothing."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.integrations.lightning import DtrainCallback, DtrainLogger


class Line(pl.LightningModule):
    """A linear model. It needs no change for dtrain.

    :param lr: learning rate
    """

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the error of a batch."""
        inputs, targets = batch
        self.log("error", torch.nn.functional.mse_loss(self.layer(inputs), targets), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), self.lr)


def points(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Return inputs of shape (count, 8) and their sums with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator))


def main() -> None:
    """Train to the end, or to the step at which the trial must stop."""
    with dtrain.init(hparams={"lr": 0.05, "epochs": 4}) as ctx:
        callback = DtrainCallback(ctx)
        trainer = pl.Trainer(
            max_epochs=ctx.hparams["epochs"],
            accelerator="auto" if torch.cuda.is_available() else "cpu",
            strategy="ddp" if ctx.world_size > 1 else "auto",
            devices=ctx.distributed.local_size,
            num_nodes=ctx.distributed.num_agents,
            callbacks=[callback],
            logger=DtrainLogger(ctx),
            log_every_n_steps=5,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = torch.utils.data.DataLoader(points(512, 0), batch_size=16)
        held_out = torch.utils.data.DataLoader(points(128, 1), batch_size=16)
        # weights_only, since Lightning 2.6: a checkpoint that would execute code is refused.
        trainer.fit(Line(ctx.hparams["lr"]), data, held_out, ckpt_path=callback.latest(), weights_only=True)


if __name__ == "__main__":
    main()
