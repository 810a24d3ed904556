"""A training with DistributedDataParallel, whose ranks torchrun starts."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

import airflow_provider_dtrain.train as dtrain


def main() -> None:
    """Train a line, with a checkpoint every 50 steps."""
    with dtrain.init(hparams={"lr": 0.05, "steps": 200}, device="cpu") as ctx:
        model: torch.nn.Module = torch.nn.Linear(4, 1)
        step = 0
        latest = ctx.latest_checkpoint()
        if latest is not None:
            model.load_state_dict(torch.load(latest.path / "model.pt", weights_only=True))
            step = 0 if latest.is_source else latest.step
        parallel = DistributedDataParallel(model) if ctx.distributed.size > 1 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=ctx.hparams["lr"])
        while step < ctx.hparams["steps"]:
            step += 1
            points = torch.randn(32, 4)
            loss = ((parallel(points) - points.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ctx.report(step, {"loss": loss.item()})
            stop = ctx.should_stop(step)
            if step % 50 == 0 or stop:
                ctx.report_validation(step, {"error": (model.weight - 1).abs().max().item()})
                with ctx.checkpoint(step) as folder:
                    if ctx.is_chief:
                        torch.save(model.state_dict(), folder / "model.pt")
            if stop or ctx.should_stop:
                break


if __name__ == "__main__":
    main()
