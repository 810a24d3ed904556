"""Two ranks over DistributedDataParallel, of which rank 1 takes longer in each forward pass."""

import time

import torch

from airflow_provider_dtrain import train as dtrain

#: At least 40 s, in which an exchange is measured every 5 s.
STEPS, SLEEP_S = 1000, 0.04


class Net(torch.nn.Module):
    def __init__(self, sleep_s):
        super().__init__()
        self.layer, self.sleep_s = torch.nn.Linear(8, 1), sleep_s

    def forward(self, inputs):
        time.sleep(self.sleep_s)
        return self.layer(inputs)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS * 8

    def __getitem__(self, index):
        return torch.full((8,), float(index % 7)), torch.tensor([1.0])


with dtrain.init() as ctx:
    model = Net(SLEEP_S if ctx.rank == 1 else 0.0)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    for _ in ctx.epochs(1):
        for batch in ctx.loader(Data()):
            inputs, targets = ctx.to_device(batch)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            ctx.backward(loss)
            ctx.step(optimizer)
