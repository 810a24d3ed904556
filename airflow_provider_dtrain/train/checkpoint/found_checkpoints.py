"""Candidates for a restore: the checkpoints in some folders, and the newest of them that is intact."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.description import METADATA, Checkpoint
from airflow_provider_dtrain.train.checkpoint.disk import read, whole
from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError

log = logging.getLogger(__name__)


def find_whole(folders: Iterable[Path], first: Path | None = None) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None. Log the damaged ones that are skipped.

    :param folders: folders with checkpoints
    :param first: a further checkpoint, or folder of checkpoints
    """
    return newest([(order(path), str(path), partial(whole, path)) for path in around(folders, first)])


def around(folders: Iterable[Path], first: Path | None) -> list[Path]:
    """Return the checkpoints in some folders, and one checkpoint with its neighbours."""
    return list(candidates([*folders, *([first, first.parent] if first else [])]))


def newest(found: Sequence[tuple[Any, str, Callable[[], Checkpoint]]]) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None. Log the damaged ones that are skipped.

    :param found: for each candidate: a key that sorts by age, its name, and a function that reads and checks it
    """
    for _, name, read_whole in sorted(found, key=lambda one: one[0], reverse=True):
        try:
            return read_whole()
        except DamagedCheckpointError as error:
            log.warning("Checkpoint %s is damaged and is skipped: %s. The one before it is tried.", name, error)
    return None


def candidates(folders: Iterable[Path]) -> Iterable[Path]:
    """Return the folders with the names or metadata of checkpoints, each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        if (folder / METADATA).is_file():
            found[folder] = None
        elif folder.is_dir():
            found.update((path, None) for path in folder.glob("step-*") if path.is_dir())
    return found


def age(name: str) -> tuple[int, int]:
    """Return the step and the count in a name. The step is -1 if the name has none."""
    digits, _, count = name.rpartition("step-")[2].partition(".")
    digits = digits.partition("-")[0]
    return (int(digits) if digits.isdigit() else -1), (int(count) if count.isdigit() else 1)


def order(path: Path) -> tuple[int, int, float]:
    """Return a key that sorts by step, then by the count of equal steps, then by time of writing."""
    step, count = age(path.name)
    try:
        written = (path / METADATA).stat().st_mtime
    except OSError:
        written = 0.0
    return (step if step >= 0 else _recorded_step(path)), count, written


def _recorded_step(path: Path) -> int:
    try:
        return read(path).step
    except CheckpointError:
        return -1
