"""A small batch inference: its input, its processors, and the rows that a plain loop computes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch

ROWS = 1_000
#: Module with processors. Files of the folder above its own outlast an attempt.
PROCESSOR = '''
import os, signal, time
import torch
import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.inference import output_folder

class Model(dtrain.BatchProcessor):
    def setup(self, ctx):
        self.ctx = ctx
        torch.manual_seed(1)
        self.model = ctx.prepare_model(torch.nn.Linear(2, 3))
        print("the model is of type", type(self.model).__name__)

    def process_batch(self, batch, batch_idx):
        scores = self.model(torch.stack([batch["x"], batch["y"]], 1).float())
        self.ctx.add_metrics({"positive": (scores[:, 0] > 0).float().mean()})
        return {"label": scores.argmax(1), "score": scores.max(1).values}

class DiesOnce(Model):
    """Kills its process in the shard that holds row 450, once."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 450).any() and not os.path.exists("../died"):
            open("../died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process_batch(batch, batch_idx)

class Leaves(Model):
    """Ends its process with success in the shard that holds row 450."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 450).any():
            os._exit(0)
        return super().process_batch(batch, batch_idx)

class Poisoned(Model):
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 450).any():
            raise ValueError("row 450 is poison")
        return super().process_batch(batch, batch_idx)

class BadRows(Model):
    """Cannot compute rows 450 and 470, and changes its batch before that."""
    def process_batch(self, batch, batch_idx):
        self.ctx.add_metrics({"seen": len(batch["id"])}, reducer="sum")
        ids = batch["id"].clone()
        batch["x"] *= 1
        for bad in (450, 470):
            if (ids == bad).any():
                batch["x"] += 100
                raise ValueError(f"row {bad} is bad")
        return super().process_batch(batch, batch_idx)

class BadRowsDiesOnce(BadRows):
    """Kills its process in the shard that holds row 850, once, after the bad rows were tried."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 850).any() and not os.path.exists("../died"):
            open("../died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process_batch(batch, batch_idx)

class BadShard(Model):
    """Cannot compute any row of the shard that holds row 450."""
    def process_batch(self, batch, batch_idx):
        if ((batch["id"] >= 450) & (batch["id"] < 500)).any():
            raise ValueError("this shard is bad")
        return super().process_batch(batch, batch_idx)

class BadBatch(Model):
    """Cannot compute a batch of several rows, but each row alone."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 450).any() and len(batch["id"]) > 1:
            raise ValueError("too many rows")
        return super().process_batch(batch, batch_idx)

class Flaky(Model):
    """Fails once in the shard that holds row 450, after some of its batches."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 470).any() and not os.path.exists("../failed"):
            open("../failed", "w").close()
            raise ValueError("once")
        return super().process_batch(batch, batch_idx)

class Sparse(Model):
    """Returns a column that has a value in one shard only."""
    def process_batch(self, batch, batch_idx):
        return {"note": ["late" if i == 470 else None for i in batch["id"].tolist()]}

class Typo(Model):
    def process_batch(self, batch, batch_idx):
        return {"label": batch["lable"]}

class Stops(Model):
    """Asks its own run to stop, as its supervisor does, in the shard that holds row 150."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 150).any():
            open("stop_requested", "w").close()
        return super().process_batch(batch, batch_idx)

class Robbed(Model):
    """Finds in the shard that holds row 950 that another run has taken over the folder."""
    def process_batch(self, batch, batch_idx):
        if (batch["id"] == 950).any():
            thief = b'{"run": "thief", "key": "thief", "host": "gpu-9", "beat": 1}'
            folder = output_folder.open_folder(self.ctx.config["inference"]["outputs"]["path"], {}, "thief")
            folder.write("_dtrain/owner.json", thief)
        return super().process_batch(batch, batch_idx)

class Slow(Model):
    """Rank 0 takes far longer."""
    def process_batch(self, batch, batch_idx):
        time.sleep(0.2 if self.ctx.rank == 0 else 0)
        return super().process_batch(batch, batch_idx)

def double(batch):
    return {"twice": batch["x"] * 2}

def echo(batch):
    return {"n": [len(value) for value in batch["text"]]}

def short(batch):
    return {"twice": batch["x"][:-1]}
'''


def write_input(place: Path) -> None:
    """Write two Parquet files below ``in``, one with several row groups."""
    numbers = {"x": [float(i % 7) for i in range(ROWS)], "y": [i / ROWS for i in range(ROWS)]}
    table = pa.table({"id": range(ROWS), **numbers})
    (place / "in").mkdir()
    pq.write_table(table.slice(0, 600), place / "in" / "a.parquet", row_group_size=100)
    pq.write_table(table.slice(600), place / "in" / "b.parquet")


def rows(place: Path, folder: str = "out") -> list[dict[str, Any]]:
    """Return the published rows in the order of the input, after a check that nothing else is in the folder."""
    manifest = json.loads((place / folder / "_manifest.json").read_text())
    parts = [place / folder / one["name"] for one in manifest["objects"]]
    assert sorted(os.listdir(place / folder)) == sorted([*(part.name for part in parts), "_manifest.json", "_dtrain"])
    own = place / folder / "_dtrain"
    assert [path.name for path in [*own.glob("parts/*"), *own.glob("incomplete/*"), *own.glob("owner.json")]] == []
    table = pa.concat_tables([pq.read_table(part) for part in parts])
    assert manifest["rows"] == table.num_rows
    return table.sort_by("row").to_pylist()  # type: ignore[no-any-return]


def passed_through(
    path: Path, passed: list[str], *, kind: str = "parquet", batch_size: int = 7, **settings: Any
) -> tuple[list[Path], list[InputBatch]]:
    """Read an input as ranks do, write its columns without those of a processor, and return the parts and batches.

    :param kind: format of the output
    """
    from airflow_provider_dtrain.train.inference.inputs import open_input
    from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
    from airflow_provider_dtrain.train.inference.outputs.rows import to_rows
    from airflow_provider_dtrain.train.inference.outputs.writers import PartWriter
    from airflow_provider_dtrain.train.inference.shards import Shard

    skips = settings.pop("on_bad_row", None) == "skip"
    found = open_input(
        {"path": str(path), **settings},
        storage={},
        passed=passed,
        batch_size=batch_size,
        skips_bad_rows=skips,
        writes_json=kind == "jsonl",
    )
    options = OutputOptions(kind, tuple(passed), "row")
    parts, batches = [], []
    for shard in found.plan().shards:
        sent = Shard.from_dict(json.loads(json.dumps(shard.to_dict())))
        parts.append(path.parent / f"part-{shard.index:05}.{kind}")
        with parts[-1].open("wb") as file:
            writer = PartWriter(file, options)
            for batch in found.batches(sent, batch_size):
                batches.append(batch)
                if batch.rows:
                    writer.write(to_rows({"n": [0] * batch.rows}, batch, options))
            writer.close()
    return parts, batches


def rows_of_a_loop() -> list[dict[str, Any]]:
    """Return the rows that ``Model`` computes in a plain loop, with batches of 16 in shards of 50."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(2, 3).eval()
    found = []
    with torch.inference_mode():
        for first in range(0, ROWS, 50):
            for start in range(first, first + 50, 16):
                ids = range(start, min(start + 16, first + 50))
                x = torch.tensor([float(i % 7) for i in ids], dtype=torch.float64)
                y = torch.tensor([i / ROWS for i in ids], dtype=torch.float64)
                scores = model(torch.stack([x, y], 1).float())
                found += [
                    {"label": int(label), "score": float(score), "id": i, "row": i}
                    for i, label, score in zip(ids, scores.argmax(1), scores.max(1).values, strict=True)
                ]
    return found
