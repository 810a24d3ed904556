"""The pattern of scripts for DeepSpeed and older launchers: ``--local_rank``, else the variable of the same name."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()
if args.local_rank == -1:
    args.local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo", init_method="env://")
on_this_host = [None] * dist.get_world_size()
dist.all_gather_object(on_this_host, (int(os.environ["GROUP_RANK"]), args.local_rank))
assert len(set(on_this_host)) == dist.get_world_size(), on_this_host
torch.manual_seed(args.local_rank)
weight = torch.zeros(8, requires_grad=True)
losses = []
for _ in range(8):
    points = torch.randn(16, 8)
    loss = ((points @ weight - points.sum(1)) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    dist.all_reduce(gradient, dist.ReduceOp.SUM)
    with torch.no_grad():
        weight -= args.lr * gradient / dist.get_world_size()
    losses.append(loss.item().hex())
report(losses=losses, ranks=on_this_host)
dist.destroy_process_group()
