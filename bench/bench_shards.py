"""Peak memory and time of a save and a restore of a 1 GiB state, beside bare torch.distributed.checkpoint.

Each rank is a process over gloo on the CPU, and the model is sharded by ``fully_shard``. The state is a model and
AdamW, which is built and has taken a step before each measurement. Memory: highest resident memory during the call,
above that before it, of the rank that needs most. A save is the second one of its program, and measured until its files
are complete; "blocked" is the time for which training waits.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row

#: With 21 layers 1 GiB of state, the largest tensor having 16 MiB.
WIDTH, LAYERS = 2048, int(os.environ.get("BENCH_LAYERS", "21"))
MIB = 1 << 20


def build():
    """Return a sharded model and its optimizer."""
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def step(model, optimizer):
    import torch

    model(torch.randn(2, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


class Measured:
    """Resident memory and time of a block."""

    def __enter__(self):
        import torch

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


def rank_main(kind, folder):
    """Run one rank and print its figures."""
    import airflow_provider_dtrain.train as dtrain

    with dtrain.init(hparams={"global_batch_size": 8}, device="cpu", checkpoint_dir=folder / "ours") as ctx:
        model, optimizer = build()
        if kind == "ours":
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


def figures_of(kind, size, layers, folder):
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
        "BENCH_LAYERS": str(layers),
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    command = [sys.executable, "-m", "bench.bench_shards", kind, str(folder)]
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


def measure(run: Run) -> None:
    layers = run.size(21, 4)
    run.note(f"{layers} layers of {WIDTH} x {WIDTH}.")
    for size in SIZES:

        def figures(kind: str, size: int = size) -> dict[str, float]:
            folder = Path(tempfile.mkdtemp(dir=run.folder))
            try:
                share, *values = figures_of(kind, size, layers, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            rows = dict(zip((f"{name}, {size} ranks" for name in FIGURES), values, strict=True))
            return {**rows, f"restore of share, {size} ranks": values[3] / share}

        run.turns({side: partial(figures, side) for side in SIDES})


SIZES, SIDES = (2, 4), {"ours": OURS, "bare": PEER}
#: In the order in which a rank prints them.
FIGURES = {
    "save, memory": "MiB",
    "save": "s",
    "blocked": "s",
    "restore, memory": "MiB",
    "restore": "s",
}
BENCH = Bench(
    what="A sharded state of 1 GiB, beside torch.distributed.checkpoint",
    rows=tuple(
        row
        for size in SIZES
        for row in (
            *(
                Row(name=f"{name}, {size} ranks", what="Of the rank with most", unit=unit, sides=SIDES, base="bare")
                for name, unit in FIGURES.items()
            ),
            Row(
                name=f"restore of share, {size} ranks",
                what="Memory of a restore, in units of the rank's share",
                unit="shares",
                sides=SIDES,
                base="bare",
                goals=(Goal(side="ours", at_most=0.25),),
            ),
        )
    ),
    measure=measure,
    rounds=(3, 1),
)


if __name__ == "__main__":
    rank_main(sys.argv[1], Path(sys.argv[2]))
