"""Checkpoints in a folder, written and found as rank 0 does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import found_checkpoints, storage
from airflow_provider_dtrain.train.checkpoint.description import SavedCheckpoint


def write(folder: Path, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any]) -> SavedCheckpoint:
    """Write a checkpoint."""
    kept = storage.open_storage(folder, {})
    return kept.write(kept.reserve(step), step, contents, facts)


def newest(folder: Path | None, first: Path | None = None) -> SavedCheckpoint | None:
    """Return the newest undamaged checkpoint in a folder, and beside another one."""
    kept = storage.open_storage(folder, {}) if folder is not None else None
    return found_checkpoints.newest(storage.candidates(kept, first, {}), Path("/nowhere"))
