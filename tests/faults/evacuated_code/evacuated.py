"""A small training whose steps depend on all that a resumed one must restore: order, dropout, moments, open groups."""

import sys
import time

import airflow_provider_dtrain.train as dtrain


def data():
    import torch

    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randn(240, 8, generator=numbers)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def main():
    import torch

    pause_s = float(sys.argv[1])
    with dtrain.init() as ctx:
        model = network()
        model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
        step = ctx.restore_checkpoint()
        for _ in ctx.epochs(ctx.hparams["epochs"]):
            for inputs, targets in ctx.loader(data()):
                ctx.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                ctx.step(optimizer)
                step += 1
                time.sleep(pause_s)
            ctx.save_checkpoint(step)
            if ctx.should_stop:
                break


if __name__ == "__main__":
    main()
