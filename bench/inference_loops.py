"""Programs that ``bench_inference`` compares with a batch inference: the same model over the same Parquet file.

Each prints one line of JSON: the rows, and the seconds from its first batch to its last write. Programs that prepare
something first, a process group or Ray's actors, say when their first batch began.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

WIDTH = 64


def model(hidden: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, 10),
    ).eval()  # fmt: skip


def predict(net: torch.nn.Module, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    scores = net(pixels)
    return {"label": scores.argmax(1), "score": scores.max(1).values}


def slow_down(rank: int, began: float) -> None:
    """Make rank 0 as slow as ``BENCH_SLOW`` says: 4 takes four times as long."""
    factor = float(os.environ.get("BENCH_SLOW", "1"))
    if rank == 0 and factor > 1:
        time.sleep((factor - 1) * (time.perf_counter() - began))


def bare(options: argparse.Namespace) -> tuple[int, float]:
    """Compute all rows in one process, without anything around it."""
    net = model(options.hidden)
    found = []
    began = time.perf_counter()
    with torch.inference_mode():
        for batch in pq.ParquetFile(options.input).iter_batches(batch_size=options.batch):
            pixels = np.asarray(batch["pixels"].flatten()).reshape(-1, WIDTH)
            result = predict(net, torch.from_numpy(pixels.copy()))
            found.append(pa.record_batch({"id": batch["id"], **{k: v.numpy() for k, v in result.items()}}))
    table = pa.Table.from_batches(found)
    pq.write_table(table, options.output)
    return table.num_rows, time.perf_counter() - began


def static(options: argparse.Namespace) -> tuple[int, float]:
    """Compute this rank's share of a DistributedSampler, and write it as one file. All ranks wait for the last one.

    :returns: the rows of all ranks, 0 on all but rank 0, and the seconds until the last rank has written.
    """
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = model(options.hidden)
    dist.barrier()
    started = time.perf_counter()
    table = pq.read_table(options.input)
    pixels = np.asarray(table["pixels"].combine_chunks().flatten()).reshape(-1, WIDTH)
    dataset = TensorDataset(torch.from_numpy(table["id"].to_numpy().copy()), torch.from_numpy(pixels.copy()))
    loader = DataLoader(dataset, batch_size=options.batch, sampler=DistributedSampler(dataset, shuffle=False))
    found = []
    with torch.inference_mode():
        for ids, part in loader:
            began = time.perf_counter()
            result = predict(net, part)
            slow_down(rank, began)
            found.append(pa.record_batch({"id": ids.numpy(), **{k: v.numpy() for k, v in result.items()}}))
    pq.write_table(pa.Table.from_batches(found), f"{options.output}.{rank}")
    dist.barrier()
    return (table.num_rows if rank == 0 else 0), time.perf_counter() - started


def ray_data(options: argparse.Namespace) -> tuple[int, float]:
    """Compute all rows with Ray Data's ``map_batches`` and one actor per slot.

    A column with the time of each batch tells when the first one began, after Ray and its actors had started.
    """
    import ray

    ray.init(num_cpus=options.slots + 1, include_dashboard=False, log_to_driver=False)

    class Predictor:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.net = model(options.hidden)

        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            began = np.full(len(batch["id"]), time.time())
            with torch.inference_mode():
                result = predict(self.net, torch.from_numpy(np.stack(batch["pixels"]).astype(np.float32)))
            return {"id": batch["id"], "began": began, **{name: value.numpy() for name, value in result.items()}}

    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.read_parquet(options.input)
    strategy = ray.data.ActorPoolStrategy(size=options.slots)
    rows.map_batches(Predictor, batch_size=options.batch, compute=strategy).write_parquet(options.output)
    ended = time.time()
    began = pq.read_table(options.output, columns=["began"])["began"]
    return len(began), ended - pc.min(began).as_py()


KINDS = {"bare": bare, "static": static, "ray": ray_data}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--slots", type=int, default=1)
    options = parser.parse_args()
    options.input, options.output = str(options.input), str(options.output)
    torch.set_num_threads(1)
    rows, seconds = KINDS[options.kind](options)
    if rows:
        print(json.dumps({"rows": rows, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
