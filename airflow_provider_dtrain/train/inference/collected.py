"""Results that the Airflow machine fetches: each rank writes below its run's folder, on its own host.

::

    collect/_dtrain/known.json            what the ledger on the Airflow machine knows; sent to the host of rank 0
    collect/_dtrain/run.json, plan.json   what this run begins or continues, on the host of rank 0
    collect/_dtrain/shards/00012/         a shard that is done: its part and entry.json, on the host that computed it

The ledger stays on the Airflow machine, which adds an entry once its part has arrived there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Ledger, Skipped, decode, encode
from airflow_provider_dtrain.train.inference.output_folder import OWN, open_folder
from airflow_provider_dtrain.train.inference.shards import Shard
from airflow_provider_dtrain.train.values import JsonObject

#: Folder below the folder of a run.
FOLDER = "collect"
#: Name of the file that the control side sends, below :data:`OWN`.
KNOWN = "known.json"
ENTRY = "entry.json"


def shard_folder(shard: int) -> str:
    """Return the folder of a shard that is done."""
    return f"{OWN}/shards/{shard:05d}"


def collected_folder(run_dir: Path, location: str, run: str) -> Place:
    """Return the folder of one run on one host, from which the Airflow machine fetches.

    :param run_dir: folder of the run
    :param location: output folder on the Airflow machine, for messages
    :param run: name of the run
    """
    folder = open_folder(str(run_dir / FOLDER), {}, run)
    folder.location = os.path.normpath(location)
    return folder


class CollectedLedger(Ledger):
    """Ledger of a rank whose results are fetched. Done and skipped shards are those that the control side sent."""

    def open(self, facts: Mapping[str, Any], shards: Sequence[Shard], *, overwrite: bool) -> JsonObject:
        """Begin or continue the work, as on the Airflow machine. Return what its ledger knows of the run."""
        known = self._sent()
        if known.get("run") is not None:
            self.begin(known["run"], known["plan"])
        return super().open(facts, shards, overwrite=overwrite)

    def entries(self) -> dict[int, FinishedShard]:
        """Return the entry of each shard whose part is on the Airflow machine."""
        found = [FinishedShard(**item) for item in self._sent()["entries"]]
        return {one.shard: one for one in found}

    def skipped(self, done: Container[int] = ()) -> dict[int, Skipped]:
        """Return the shards that attempts of this task have set aside."""
        found = [Skipped(**item) for item in self._sent()["skipped"]]
        return {one.shard: one for one in found if one.shard not in done}

    def delivery_name(self, shard: int) -> str:
        """Return the place of this run's part of a shard."""
        return f"{shard_folder(shard)}/{self.part_name(shard)}"

    def add(self, entry: FinishedShard) -> None:
        """Record that a shard is done, beside its part."""
        self.folder.write(f"{shard_folder(entry.shard)}/{ENTRY}", encode(entry.__dict__))

    def publish(
        self,
        entries: Iterable[FinishedShard],
        skipped: Iterable[Skipped],
        facts: Mapping[str, Any],
        metrics: Mapping[str, Any],
        *,
        confirm: Callable[[], object] = bool,
    ) -> tuple[JsonObject, str | None]:
        """Return the manifest without writing it. The control side publishes when every part has arrived."""
        return self.manifest(sorted(entries, key=lambda entry: entry.shard), skipped, facts, metrics), None

    def _sent(self) -> JsonObject:
        content = self.folder.read(f"{OWN}/{KNOWN}")
        found = decode(content) if content is not None else None
        if not isinstance(found, dict):
            raise SetupError(
                "inference.collect is true, and the control side has sent no ledger to this host. Start the trial from "
                "Airflow, or remove inference.collect."
            )
        return found
