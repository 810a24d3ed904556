"""Ranks on a real GPU that are forked from a warm parent."""

from __future__ import annotations

import os

import pytest

from tests.support.nvidia_smi import uuid
from tests.support.supervisor_host import Host
from tests.support.warm_launches import Launches, line, parents, uses

pytestmark = pytest.mark.gpu

TRAIN = """
import os, time
import torch
import torch.distributed as dist
print("FORK", torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
print("FREE", torch.rand(1).item(), torch.cuda.initial_seed())
dist.init_process_group("nccl")
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
data = torch.utils.data.TensorDataset(torch.rand(64, 16))
for _ in range(3):
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True):
        loss = model(batch.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.cuda.synchronize()
print("STEP", time.time())
weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
print("BITS", [value.hex() for value in weights.tolist()], loss.item().hex())
dist.destroy_process_group()
"""


def test_a_forked_training_on_a_gpu_has_the_bits_of_an_executed_one(one_host: Host) -> None:
    one_host.warm_starts = False
    launches = Launches(one_host, {"train.py": TRAIN})
    found = [launches.run(devices=[uuid()], cpu_slots=False) for _ in range(4)]
    assert [one["reason"] for one in found] == ["completed"] * 4, found[-1]["log"]
    assert [one["forked"] for one in found] == [False, True, True, True]
    assert {line(one, "BITS") for one in found} == {line(found[0], "BITS")}
    assert {line(one, "FORK") for one in found} == {"FORK False False"}
    parent = parents(one_host)[0]
    assert uses(parent, "libtorch")
    targets = [os.readlink(f"/proc/{parent}/fd/{name}") for name in os.listdir(f"/proc/{parent}/fd")]
    assert not [target for target in targets if "nvidia" in target]
    for one in found:
        print(
            "start to last step", round(float(line(one, "STEP").split()[1]) - one["at"], 3), "s, forked", one["forked"]
        )
