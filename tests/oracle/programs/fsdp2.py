"""The pattern of PyTorch's tutorial of FSDP2: sharded layers, a clipped norm, and its own sharded checkpoint."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(3)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
random = torch.Generator().manual_seed(dist.get_rank())
losses = []


def train(steps):
    for _ in range(steps):
        points = torch.randn(8, 16, generator=random)
        loss = (model(points) - points.flip(1)).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item().hex(), norm.item().hex()))


train(4)
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=sys.argv[1])
train(2)
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optimizer": moments}
dcp.load(state, checkpoint_id=sys.argv[1])
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
train(2)
report(losses=losses)
dist.destroy_process_group()
