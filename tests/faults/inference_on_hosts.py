"""A batch inference on the hosts of a world: its input, its trials, and the rows that one process computes."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.world import OVER, World

SHARD_ROWS, BATCH = 2_000, 500


class HostedInference:
    """One input and output folder that all hosts see.

    :param rows: rows of the input
    """

    def __init__(self, world: World, name: str, rows: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.world, self.rows = world, rows
        self.place = world.shared / name
        self.out = self.place / "out"
        (self.place / "in").mkdir(parents=True)
        numbers = {"x": [float(i % 7) for i in range(rows)], "y": [i / rows for i in range(rows)]}
        pq.write_table(
            pa.table({"id": range(rows), **numbers}), self.place / "in" / "rows.parquet", row_group_size=10_000
        )
        self.trials: list[int] = []
        self.allow(10**9)

    @property
    def shards(self) -> int:
        return -(-self.rows // SHARD_ROWS)

    def allow(self, shards: int) -> None:
        """Let the ranks complete about this many shards, and hold them in the next ones."""
        new = self.place / "limit.new"
        new.write_text(str(shards))
        os.replace(new, self.place / "limit")

    def submit(self, slots: int, *, ends: tuple[str, ...] = ("completed",), collect: bool = False, **more: Any) -> int:
        """Submit a trial that computes what is missing, and return its id.

        :param collect: the follower fetches the results, although the hosts could write them themselves
        """
        section = {
            "processor": "batches:Model",
            "inputs": {"path": str(self.place / "in"), "shard_rows": SHARD_ROWS},
            "outputs": {"path": str(self.out), "columns": ["id"], "row_id": "row"},
            "batch_size": BATCH,
            "collect": collect,
        }
        trial = self.world.infer(section, slots, ends=ends, **more)
        self.trials.append(trial)
        return trial

    def done(self) -> int:
        """Return the number of shards that the ledger has."""
        try:
            return len(os.listdir(self.out / "_dtrain" / "done"))
        except FileNotFoundError:
            return 0

    def reach(self, shards: int) -> None:
        """Wait until the ranks have completed as many shards as they may, and hold in the next ones."""
        self.allow(shards)
        self.world.until(lambda: self.has(shards), f"{shards} shards", 120)

    def has(self, shards: int) -> bool:
        """Return whether so many shards are done.

        :raises AssertionError: the latest trial has ended, so that waiting is in vain
        """
        view = self.world.trial(self.trials[-1])
        if self.done() >= shards:
            return True
        assert view.state not in OVER, f"trial {view.trial_id} ended {view.state}: {view.failure}"
        return False

    # -- the end -------------------------------------------------------------------------------
    def violations(self) -> list[str]:
        """Return what differs between the folder, its manifest, and the rows of one process."""
        manifest = json.loads((self.out / "_manifest.json").read_text())
        names = sorted(one["name"] for one in manifest["objects"])
        there = sorted(os.listdir(self.out))
        found = [] if there == sorted([*names, "_manifest.json", "_dtrain"]) else [f"{there} instead of {names}"]
        own = self.out / "_dtrain"
        left = [path.name for path in [*own.glob("parts/*"), *own.glob("incomplete/*"), *own.glob("owner.json")]]
        found += [f"{name} is left" for name in left]
        if not self._table(names).equals(self.expected()):
            found.append("the rows are not those of one process")
        twice = {shard: count for shard, count in self.computed(*self.trials).items() if count > 1}
        return found + ([f"shards were computed again after their end: {twice}"] if twice else [])

    def computed(self, *trials: int) -> Counter[int]:
        """Return how often each shard was completed, in all attempts of the trials.

        The store may lack the last events of a trial that a user killed.
        """
        counts: Counter[int] = Counter()
        for trial in trials:
            for view in self.world.store.attempts.of_trial(trial):
                events = self.world.store.events.of_attempt(view.attempt_id, kinds=("shard_done",))
                counts.update(event.body["shard"] for event in events)
        return counts

    def _table(self, names: list[str]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        parts = [pq.read_table(Path(self.out, name)) for name in names]
        return pa.concat_tables(parts).sort_by("row").combine_chunks().select(["row", "id", "label", "score"])

    def expected(self) -> Any:
        """Return the rows that a plain loop computes, with the same batches."""
        import pyarrow as pa
        import torch

        torch.manual_seed(1)
        model = torch.nn.Linear(2, 3).eval()
        labels, scores = [], []
        with torch.inference_mode():
            for first in range(0, self.rows, BATCH):
                ids = torch.arange(first, min(first + BATCH, self.rows))
                inputs = torch.stack([(ids % 7).double(), ids.double() / self.rows], 1)
                found = model(inputs.float())
                labels.append(found.argmax(1))
                scores.append(found.max(1).values)
        numbers = pa.array(range(self.rows), pa.int64())
        columns = {"label": torch.cat(labels).numpy(), "score": torch.cat(scores).numpy()}
        return pa.table({"row": numbers, "id": numbers, **columns})
