"""A line through noisy points, fitted by a loop with Hugging Face Accelerate. Downloads nothing."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.integrations.accelerate import DtrainTracker


def points(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """Return inputs of shape (count, 8) and their sums with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=generator))


def main() -> None:
    """Train to the end, or to the step at which the trial must stop."""
    with dtrain.init(hparams={"lr": 0.05, "epochs": 4}) as ctx:
        # With this sampler, an epoch with a pause continues in the order in which it began.
        order = DataLoaderConfiguration(use_seedable_sampler=True)
        accelerator = Accelerator(
            log_with=DtrainTracker(ctx), cpu=not torch.cuda.is_available(), dataloader_config=order
        )
        accelerator.init_trackers("line")
        torch.manual_seed(ctx.seed)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.Adam(model.parameters(), ctx.hparams["lr"])
        data = torch.utils.data.DataLoader(points(512, 0), batch_size=16, shuffle=True)
        held_out = torch.utils.data.DataLoader(points(128, 1), batch_size=16)
        model, optimizer, data, held_out = accelerator.prepare(model, optimizer, data, held_out)
        latest = ctx.latest_checkpoint()
        if latest is not None:
            accelerator.load_state(latest.path)
        step = latest.step if latest is not None else 0

        def save() -> None:
            with ctx.checkpoint(step) as folder:
                accelerator.save_state(folder)

        for epoch in range(step // len(data), ctx.hparams["epochs"]):
            data.set_epoch(epoch)
            rest = accelerator.skip_first_batches(data, step - epoch * len(data))
            for inputs, targets in rest:
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                accelerator.log({"loss": loss.item()}, step=step)
                if ctx.should_stop(step):
                    save()
                    return
            with torch.no_grad():
                errors = [torch.nn.functional.mse_loss(model(inputs), targets) for inputs, targets in held_out]
            answer = ctx.report_validation(step, {"error": torch.stack(errors).mean().item()}, epoch=epoch + 1)
            save()
            if answer == "stop":
                return


if __name__ == "__main__":
    main()
