"""The pattern of PyTorch's tutorial of DistributedDataParallel with torchrun: a trainer class with snapshots."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup() -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")


class Trainer:
    def __init__(self, model, data, optimizer, save_every, path):
        self.global_rank, self.local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        on_gpu = torch.cuda.is_available()
        self.model = DistributedDataParallel(model, device_ids=[self.local_rank] if on_gpu else None)
        self.data, self.optimizer, self.save_every, self.path = data, optimizer, save_every, path
        self.losses = []

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for source, targets in self.data:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item().hex())

    def train(self, epochs):
        for epoch in range(epochs):
            self.run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, self.path)
        dist.barrier()
        snapshot = torch.load(self.path, weights_only=True)
        self.model.module.load_state_dict(snapshot["MODEL_STATE"])
        self.run_epoch(epochs)


def main(epochs=3, batch_size=8):
    setup()
    torch.manual_seed(0)
    points = torch.randn(128, 20)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    loader = DataLoader(data, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(data))
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), 2, sys.argv[1])
    trainer.train(epochs)
    report(losses=trainer.losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
