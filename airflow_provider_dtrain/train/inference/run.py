"""One attempt at a batch inference: its names and settings, and what rank 0 found in the output folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Skipped, merged_schema
from airflow_provider_dtrain.train.inference.shards import Shard


@dataclass(frozen=True)
class InferenceRun:
    """One attempt at a batch inference, on one rank."""

    ctx: Context
    #: The section ``inference`` of the configuration.
    settings: Mapping[str, Any]
    #: Name of the attempt, the same on all ranks; part of the names of its files.
    name: str
    #: Name that all attempts of one trial share.
    key: str

    @classmethod
    def of(cls, ctx: Context, settings: Mapping[str, Any]) -> InferenceRun:
        """Return the run of a rank. Called by all ranks.

        :raises SetupError: the section names no output
        """
        if not (settings.get("outputs") or {}).get("path"):
            raise SetupError("inference.outputs.path must name the folder or URL of the results.")
        run = ctx._env.run
        name = ctx.distributed.broadcast(run or f"{socket.gethostname()}-{os.getpid()}")
        return cls(ctx, settings, name, name.partition(".")[0] if run else name)

    @property
    def is_chief(self) -> bool:
        """True on rank 0."""
        return self.ctx.distributed.get_rank() == 0

    @property
    def collected_in(self) -> Path | None:
        """Folder of the run on this host, or None unless the Airflow machine fetches the results."""
        return self.ctx._env.run_dir if self.settings.get("collect") and self.ctx._env.on_cluster else None

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The settings of the output."""
        return self.settings["outputs"]  # type: ignore[no-any-return]

    @property
    def storage(self) -> Mapping[str, Any]:
        """``checkpoint_storage`` of the configuration, for credentials."""
        return self.ctx.config.get("checkpoint_storage") or {}

    @property
    def kind(self) -> str:
        """Format of the output."""
        return str(self.outputs.get("format") or "parquet")


@dataclass(frozen=True)
class BegunFolder:
    """State of the output folder at the start, the same on all ranks."""

    facts: Mapping[str, Any]
    #: Batch size of earlier runs into the folder, or None.
    batch_size: int | None
    shards: tuple[Shard, ...]
    #: Shards that are done or set aside already.
    entries: tuple[FinishedShard, ...]
    skipped: tuple[Skipped, ...]
    missing: tuple[int, ...]

    @property
    def schema(self) -> Mapping[str, str] | None:
        """Columns and types of the output so far, or None."""
        return merged_schema(self.entries) or None
