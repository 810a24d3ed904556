"""Batch inferences of a fuzz run: the input, gangs of forked ranks, and what the output must be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.processes import stat_of
from tests.support.event_lines import lines_of
from tests.support.ranks import ROOT, free_port
from tests.support.warm_ranks import AT_IMPORT, Order, WarmRanks

IMPORTS = "numpy pandas pyarrow.parquet pyarrow.json airflow_provider_dtrain.train"
#: Longest duration of a gang, seconds.
DEADLINE_S = 120.0
SCRIPT = """
import sys
from tests.faults.rank_faults import arm
from airflow_provider_dtrain.train.inference.__main__ import main
arm()
sys.exit(main([]))
"""
#: ``noise`` differs each time a row is computed: a part of one run is never that of another.
PROCESSOR = """
import torch
import airflow_provider_dtrain.train as dtrain
from tests.faults.rank_faults import at_rows

class Model(dtrain.BatchProcessor):
    def setup(self, ctx):
        self.ctx = ctx
        torch.seed()

    def process_batch(self, batch, batch_idx):
        ids = batch["id"]
        at_rows(ids.tolist())
        self.ctx.add_metrics({"total": ids.sum(), "count": len(ids)}, reducer="sum")
        score = batch["x"] * 3.5 + self.ctx.hparams["factor"]
        return {"score": score, "noise": torch.randint(10**17, 2 * 10**17, (len(ids),))}
"""


@dataclass
class Place:
    """One output folder with its input.

    :param kind: format of the output
    """

    folder: Path
    rows: int
    shard_rows: int
    batch_size: int
    kind: str
    #: A row that no gang can compute, which sets its shard aside.
    poison: int | None
    #: Results depend on it, so another value needs ``overwrite``.
    factor: int = 1
    gangs: list[Gang] = field(default_factory=list)

    def __post_init__(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        (self.folder / "in").mkdir(parents=True)
        table = pa.table({"id": range(self.rows), "x": [i / 8 for i in range(self.rows)]})
        pq.write_table(table, self.folder / "in" / "data.parquet", row_group_size=self.shard_rows)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def section(self, *, overwrite: bool) -> dict[str, Any]:
        """Return the section ``inference`` of the configuration."""
        outputs = {"path": str(self.out), "columns": ["id"], "row_id": "row", "format": self.kind}
        return {
            "processor": "processors:Model",
            "inputs": {"path": str(self.folder / "in"), "shard_rows": self.shard_rows},
            "outputs": {**outputs, **({"overwrite": True} if overwrite else {})},
            "batch_size": self.batch_size,
            "on_bad_shard": "fail" if self.poison is None else "skip",
        }

    def expected(self, skipped: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """Return the score of each row that the output must have."""
        lost: set[int] = set()
        if self.poison is not None and skipped:
            first = self.poison // self.shard_rows * self.shard_rows
            lost = set(range(first, min(first + self.shard_rows, self.rows)))
        return {row: row / 8 * 3.5 + self.factor for row in range(self.rows) if row not in lost}

    @property
    def has_rows(self) -> bool:
        """True when some shard can be computed. Else a gang fails instead of publishing nothing."""
        return bool(self.expected([{}]))


class Gang:
    """The ranks of one attempt. As under a supervisor, the failure of one ends all.

    :param task: number of the trial; its attempts share the output folder
    :param faults: fault of each rank, see :mod:`tests.faults.rank_faults`
    :param blamed: shard -> failures that earlier attempts are blamed for
    """

    def __init__(
        self, place: Place, ranks: WarmRanks, *, task: int, size: int, faults: Mapping[int, str] | None = None,
        overwrite: bool = False, blamed: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        place.gangs.append(self)
        self.number, self.task, self.size, self.overwrite = len(place.gangs), task, size, overwrite
        self.factor = place.factor
        self._has_rows = place.has_rows
        self.folder = place.folder / f"gang-{self.number}"
        self.folder.mkdir()
        self.done_before = done_shards(place)
        self._ranks = ranks
        self._faults = dict(faults or {})
        if place.poison is not None:
            self._faults = {rank: f"{self._faults.get(rank, '')};poison {place.poison}" for rank in range(size)}
        self._write(place, dict(blamed or {}))
        self.pids = ranks.begin([self._order(rank) for rank in range(size)], together=True)
        self._codes: list[int] | None = None

    def _write(self, place: Place, blamed: dict[str, int]) -> None:
        (self.folder / "script.py").write_text(SCRIPT)
        (self.folder / "processors.py").write_text(PROCESSOR)
        config = {"inference": place.section(overwrite=self.overwrite)}
        context = {
            "trial_id": self.task, "attempt": self.number, "hparams": {"factor": self.factor}, "seed": 0,
            "config": config, "shard_failures": blamed,
        }  # fmt: skip
        (self.folder / "context.json").write_text(json.dumps(context))
        self._port = free_port()

    def _order(self, rank: int) -> Order:
        folder = self.folder / f"rank{rank}"
        folder.mkdir()
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "PYTHONPATH": str(ROOT), **AT_IMPORT,
            "DTRAIN_TEST_IMPORTS": IMPORTS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port),
            "WORLD_SIZE": str(self.size), "LOCAL_WORLD_SIZE": str(self.size), "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo",
            "DTRAIN_RUN": f"store-t{self.task}.{self.number}.1", "DTRAIN_RUN_DIR": str(self.folder),
            "DTRAIN_CONTEXT": str(self.folder / "context.json"), "DTRAIN_EVENTS": str(folder / "events"),
            "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
            "DTRAIN_FUZZ_FAULT": self._faults.get(rank, ""),
        }  # fmt: skip
        return Order(str(self.folder / "script.py"), str(self.folder), environment, str(folder / "output"))

    # -- its life ------------------------------------------------------------------------------
    def ended(self, timeout_s: float = 0.0) -> bool:
        """Wait, and return whether all ranks have ended."""
        if self._codes is None and self._ranks.has_ended(timeout_s):
            self._codes = self._ranks.codes()
        return self._codes is not None

    def codes(self) -> list[int]:
        """Return the exit codes at the end.

        :raises TimeoutError: the gang does not end; its ranks are killed
        """
        if not self.ended(DEADLINE_S):
            self.kill()
            self.ended(DEADLINE_S)
            raise TimeoutError(f"gang {self.number} did not end within {DEADLINE_S:.0f} s\n{self.output()}")
        assert self._codes is not None
        return self._codes

    @property
    def is_well(self) -> bool:
        """True when all ranks have ended without an error."""
        return not any(self.codes())

    @property
    def has_refused(self) -> bool:
        """True when the gang has failed as it must: no row of its input can be computed."""
        return not self.is_well and not self._has_rows and "No row of the input is left" in self.output()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank, unless its gang has ended."""
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def kill(self) -> None:
        """Kill all ranks at once, as the crash of their hosts does."""
        for rank in range(self.size):
            self.signal(rank, signal.SIGKILL)

    def stop(self) -> None:
        """Ask the gang to end between shards, as a pause does."""
        (self.folder / "stop_requested").touch()

    def is_stopped(self) -> bool:
        """Return whether a rank has received SIGSTOP."""
        return any((found := stat_of(pid)) is not None and found.state == "T" for pid in self.pids)

    # -- its traces ----------------------------------------------------------------------------
    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind of all ranks."""
        found = []
        for rank in range(self.size):
            with contextlib.suppress(FileNotFoundError):
                found += [event for event in lines_of(self.folder / f"rank{rank}" / "events") if event["kind"] == kind]
        return found

    def shards(self, kind: str) -> set[int]:
        """Return the shards of the events of a kind."""
        return {event["shard"] for event in self.events(kind)}

    def output(self) -> str:
        """Return the end of each rank's output."""
        paths = sorted(self.folder.glob("rank*/output"))
        return "\n".join(f"--- {path.parent.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)


def done_shards(place: Place) -> set[int]:
    """Return the shards that the ledger of the output folder has as done."""
    from airflow_provider_dtrain.train.inference.ledger import Ledger
    from airflow_provider_dtrain.train.inference.output_folder import open_folder

    return set(
        Ledger(open_folder(str(place.out), {}, "verdict"), run="verdict", key="verdict", suffix=place.kind).entries()
    )
