"""Candidates for a restore: their order, and the newest of them that is intact."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.description import METADATA, SavedCheckpoint
from airflow_provider_dtrain.train.checkpoint.disk import read
from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError

log = logging.getLogger(__name__)

#: Key that sorts by age, path or URL, and a function that reads and checks a checkpoint. It takes a folder for copies.
Candidate = tuple[Any, str, Callable[[Path], SavedCheckpoint]]


def newest(found: Sequence[Candidate], scratch: Path) -> SavedCheckpoint | None:
    """Return the newest undamaged checkpoint, or None. Log the damaged ones that are skipped.

    :param scratch: folder for copies
    """
    for _, name, read_whole in sorted(found, key=lambda one: one[0], reverse=True):
        try:
            return read_whole(scratch)
        except DamagedCheckpointError as error:
            log.warning("Checkpoint %s is damaged and is skipped: %s. The one before it is tried.", name, error)
    return None


def order(where: Path | str) -> tuple[int, int, float]:
    """Return a key that sorts by step, then by the count of equal steps, then by time of writing, on disk."""
    if not isinstance(where, Path):
        return *_age(where.rpartition("/")[2]), 0.0
    step, count = _age(where.name)
    try:
        written = (where / METADATA).stat().st_mtime
    except OSError:
        written = 0.0
    return (step if step >= 0 else _recorded_step(where)), count, written


def _age(name: str) -> tuple[int, int]:
    """Return the step and the count in a name. The step is -1 if the name has none."""
    digits, _, count = name.rpartition("step-")[2].partition(".")
    digits = digits.partition("-")[0]
    return (int(digits) if digits.isdigit() else -1), (int(count) if count.isdigit() else 1)


def _recorded_step(path: Path) -> int:
    try:
        return read(path).step
    except CheckpointError:
        return -1
