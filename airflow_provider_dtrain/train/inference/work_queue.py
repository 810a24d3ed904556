"""Queue of missing shards that the ranks of a gang share: each shard goes to the first rank that is free."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Skipped

#: Interval at which ranks that are done look for the others, seconds.
POLL_S = 0.1


class WorkQueue:
    """Claims of shards, their entries, and the end of the ranks.

    A counter in rank 0's key-value store hands out the shards in order. A failed rank ends its gang, so a claim needs
    no lease.

    :param missing: numbers of the missing shards, the same on all ranks
    """

    def __init__(self, distributed: Distributed, missing: Sequence[int]) -> None:
        self._distributed = distributed
        self._missing = missing

    def claim(self) -> int | None:
        """Return the number of the next shard, or None when every shard is claimed."""
        place = self._distributed.count("shards") - 1
        return self._missing[place] if place < len(self._missing) else None

    def post(self, result: FinishedShard | Skipped) -> None:
        """Tell rank 0 how a shard ended."""
        kind = "entry" if isinstance(result, FinishedShard) else "skipped"
        self._distributed.post(f"shard/{result.shard}", json.dumps([kind, result.__dict__]))
        self._distributed.count("ended")

    def count_rows(self, rows: int) -> int:
        """Add to the rows that all ranks have computed, and return their number."""
        return self._distributed.count("rows", rows)

    @property
    def ended(self) -> int:
        """Number of shards that have ended."""
        return self._distributed.count("ended", 0)

    def results(self) -> tuple[list[FinishedShard], list[Skipped]]:
        """Return how the shards of this run ended, if all of them have. Only rank 0 calls it."""
        texts = [json.loads(self._distributed.posted(f"shard/{shard}")) for shard in self._missing]
        entries = [FinishedShard(**value) for kind, value in texts if kind == "entry"]
        skipped = [Skipped(**value) for kind, value in texts if kind == "skipped"]
        return entries, skipped

    def leave(self) -> None:
        """Return once every rank has come here. A slow rank may take any time."""
        self._distributed.count("left")
        while self._distributed.count("left", 0) < self._distributed.get_size():
            time.sleep(POLL_S)

    def wait_for_chief(self) -> None:
        """Return once rank 0 has called :meth:`chief_is_done`."""
        while not self._distributed.count("published", 0):
            time.sleep(POLL_S)

    def chief_is_done(self) -> None:
        """Let the other ranks end."""
        self._distributed.count("published")
