"""Measures peak memory and time of a save and a restore of a 1 GiB state, beside bare torch.distributed.checkpoint.

    OMP_NUM_THREADS=1 python bench/bench_shards.py [--ranks 2 4] [--folder DIR] [--layout fsdp]

Each rank is a process over gloo on the CPU. ``fsdp``: the model is sharded by ``fully_shard``. ``ddp``: each rank has
the whole model. The state is a model and AdamW, which is built and has taken a step before each measurement. Memory:
highest resident memory during the call, above that before it, of the rank that needs most. A save is the second one of
its program, and measured until its files are complete; ``blocked`` is the time for which training waits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import airflow_provider_dtrain.train as dtrain

WIDTH, LAYERS = 2048, 21
MIB = 1 << 20


def build(layout):
    """Return a model and an optimizer with about 1 GiB of state in total, the largest tensor having 16 MiB."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    if layout == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def step(model, optimizer):
    model(torch.randn(2, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


class Measured:
    """Resident memory and time of a block."""

    def __enter__(self):
        torch.distributed.barrier()
        Path("/proc/self/clear_refs").write_text("5")
        self.before, self.started = memory("VmRSS"), time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.started
        self.mib = (memory("VmHWM") - self.before) / MIB


def memory(name):
    """Return a figure of this process in bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":")]
    return int(line.split()[1]) * 1024


def ours(ctx, model, optimizer):
    # The first save imports what it needs. Later ones use the memory of earlier ones again.
    ctx.save_checkpoint(1)
    ctx._saver.finish()
    ctx._saver._snapshots._buffers.clear()
    with Measured() as save:
        started = time.perf_counter()
        ctx.save_checkpoint(2)
        blocked = time.perf_counter() - started
        ctx._saver.finish()
        ctx.distributed.barrier()
    step(model, optimizer)
    ctx._saver._snapshots._buffers.clear()
    with Measured() as restore:
        ctx.restore_checkpoint()
    return save, blocked, restore


def bare(folder, model, optimizer):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    dcp.save({"model": get_state_dict(model, optimizer)[0]}, checkpoint_id=folder / "first")
    with Measured() as save:
        states = get_state_dict(model, optimizer)
        dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=folder)
    step(model, optimizer)
    with Measured() as restore:
        states = get_state_dict(model, optimizer)
        dcp.load({"model": states[0], "optimizer": states[1]}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1])
    return save, save.seconds, restore


def rank_main(kind, layout, folder):
    """Run one rank and print its figures."""
    with dtrain.init(hparams={"global_batch_size": 8}, device="cpu", checkpoint_dir=folder / "ours") as ctx:
        model, optimizer = build(layout)
        if layout == "ddp" or kind == "ours":
            prepared = ctx.prepare(model, optimizer)
            model = prepared[0]
        step(model, optimizer)
        own = sum(
            (value.to_local() if hasattr(value, "to_local") else value).nbytes
            for group in (model.state_dict(), *optimizer.state_dict()["state"].values())
            for value in group.values()
        )
        save, blocked, restore = (
            ours(ctx, model, optimizer) if kind == "ours" else bare(folder / "bare", model, optimizer)
        )
        figures = [own / MIB, save.mib, save.seconds, blocked, restore.mib, restore.seconds]
        print("figures", json.dumps(figures), flush=True)


def measure(kind, layout, size, folder):
    """Return the largest figures of all ranks."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    common = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    command = [sys.executable, __file__, "--rank", kind, "--layout", layout, "--folder", str(folder)]
    ranks = [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    lines = [line for output in outputs for line in output.splitlines() if line.startswith("figures")]
    assert len(lines) == size, outputs
    return [max(column) for column in zip(*(json.loads(line.partition(" ")[2]) for line in lines), strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--layout", choices=["fsdp", "ddp"], default="fsdp")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rank", choices=["ours", "bare"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args.rank, args.layout, args.folder)
        return
    print("ranks  program  share MiB  save MiB  save s  blocked s  restore MiB  restore s  restore / share")
    for size in args.ranks:
        for kind in ("ours", "bare"):
            folder = Path(tempfile.mkdtemp(prefix="bench-shards-", dir=args.folder))
            try:
                own, save, save_s, blocked, restore, restore_s = measure(kind, args.layout, size, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(
                f"{size:5}  {kind:7}  {own:9.0f}  {save:8.0f}  {save_s:6.1f}  {blocked:9.2f}  {restore:11.0f}  "
                f"{restore_s:9.1f}  {restore / own:15.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
