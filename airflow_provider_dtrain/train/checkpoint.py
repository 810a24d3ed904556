"""Checkpoints on disk: complete or not there at all.

A checkpoint is a folder ``step-<step>`` with ``state.pt``, ``rng.pt`` and ``metadata.json``. It is written under a
name that starts with a dot, fsynced and renamed. ``metadata.json`` carries size and sha256 of each file and a
checksum of itself. Files are loaded with ``weights_only=True``: no pickle of a checkpoint is ever run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError

log = logging.getLogger(__name__)

FORMAT = 1
METADATA = "metadata.json"
STATE = "state.pt"
RNG = "rng.pt"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    path: Path
    step: int
    #: sha256 of ``metadata.json``, which holds the digests of the other files.
    sha256: str
    size_bytes: int
    metadata: Mapping[str, Any]

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Validation metrics at this step; empty when there are none."""
        return self.metadata.get("metrics") or {}


def write(folder: Path, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint, once it is whole and on the disk.

    :param folder: where checkpoints of this trial are kept
    :param contents: file name -> what ``torch.save`` is to write
    :param facts: goes into the metadata
    :raises CheckpointError: something cannot be loaded without pickle, or the disk refuses
    """
    temporary = folder / f".step-{step}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
        files = {name: _save(temporary / name, value) for name, value in contents.items()}
        metadata = {"format": FORMAT, "step": step, **facts, "files": files}
        metadata["checksum"] = _checksum(metadata)
        _write_synced(temporary / METADATA, json.dumps(metadata, indent=1).encode())
        _sync_folder(temporary)
        final = _free_name(folder, step)
        temporary.rename(final)
        _sync_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"The checkpoint of step {step} cannot be written below {folder}: {error}") from error
    except CheckpointError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return read(final)


def read(path: Path) -> Checkpoint:
    """Return a checkpoint's description; its files are not looked at.

    :raises DamagedCheckpointError: the metadata is missing or not what was written
    """
    try:
        text = (path / METADATA).read_bytes()
        metadata = json.loads(text)
        checksum, files = metadata.pop("checksum"), metadata["files"]
        step, size = int(metadata["step"]), sum(int(file["size_bytes"]) for file in files.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({error})") from error
    if checksum != _checksum(metadata):
        raise DamagedCheckpointError(f"{path.name}: {METADATA} does not match its own checksum")
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {metadata.get('format')}; this version reads format {FORMAT}.")
    return Checkpoint(path, step, hashlib.sha256(text).hexdigest(), size + len(text), metadata)


def verify(checkpoint: Checkpoint) -> None:
    """Check every file against its digest.

    :raises DamagedCheckpointError: a file is missing, shorter, or different
    """
    for name, expected in checkpoint.metadata["files"].items():
        try:
            found = _describe(checkpoint.path / name)
        except OSError as error:
            raise DamagedCheckpointError(f"{checkpoint.path.name}: {name} cannot be read ({error})") from error
        if found != expected:
            what = next(key for key in expected if found.get(key) != expected[key])
            raise DamagedCheckpointError(
                f"{checkpoint.path.name}: {what} of {name} is {found.get(what)}, but {expected[what]} was written"
            )


def find_whole(folders: Iterable[Path], first: Path | None = None) -> Checkpoint | None:
    """Return the newest checkpoint that is undamaged; says which ones were passed over.

    :param folders: where to look
    :param first: a checkpoint, or a folder of checkpoints, to look at as well
    """
    candidates = list(_candidates([*folders, *([first, first.parent] if first else [])]))
    for path in sorted(candidates, key=_order, reverse=True):
        try:
            checkpoint = read(path)
            verify(checkpoint)
        except DamagedCheckpointError as error:
            log.warning("Checkpoint %s is damaged and is passed over: %s. Going back to the one before.", path, error)
            continue
        return checkpoint
    if candidates:
        log.warning("None of %d checkpoints is whole: training starts from step 0.", len(candidates))
    return None


def prune(folder: Path, policy: Mapping[str, Any]) -> list[Path]:
    """Delete the checkpoints that the policy does not keep; return what went.

    :param policy: ``save_trial_best``, ``save_trial_latest``, ``metric``, ``smaller_is_better``
    """
    whole: list[Checkpoint] = []
    for path in _candidates([folder]):
        try:
            whole.append(read(path))
        except CheckpointError:
            log.debug("Checkpoint %s cannot be read; it is left where it is.", path)
    kept = {checkpoint.path for checkpoint in keep(whole, policy)}
    gone = [checkpoint.path for checkpoint in whole if checkpoint.path not in kept]
    for path in gone:
        # A half deleted checkpoint must not look whole.
        hidden = path.with_name(f".{path.name}.deleted")
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    return gone


def keep(checkpoints: Sequence[Checkpoint], policy: Mapping[str, Any]) -> list[Checkpoint]:
    """Return the checkpoints among the best of the trial or among its latest.

    A checkpoint without the metric, or with one that is not finite, is never among the best.
    """
    newest_first = sorted(checkpoints, key=lambda c: _order(c.path), reverse=True)
    metric = policy.get("metric") or ""
    ranked = [c for c in newest_first if isinstance(c.metrics.get(metric), (int, float))]
    ranked.sort(key=lambda c: c.metrics[metric], reverse=not policy.get("smaller_is_better", True))
    best, latest = ranked[: policy.get("save_trial_best", 1)], newest_first[: policy.get("save_trial_latest", 1)]
    return [c for c in newest_first if c in best or c in latest]


def _candidates(folders: Iterable[Path]) -> Iterable[Path]:
    found: dict[Path, None] = {}
    for folder in folders:
        if (folder / METADATA).is_file():
            found[folder] = None
        elif folder.is_dir():
            found.update((path, None) for path in folder.glob("step-*") if path.is_dir())
    return found


def _order(path: Path) -> tuple[int, float]:
    """Return a key that sorts by step, then by time of writing."""
    digits = path.name.rpartition("step-")[2].partition(".")[0].partition("-")[0]
    try:
        written = (path / METADATA).stat().st_mtime
    except OSError:
        written = 0.0
    return (int(digits) if digits.isdigit() else _recorded_step(path)), written


def _recorded_step(path: Path) -> int:
    try:
        return read(path).step
    except CheckpointError:
        return -1


def _free_name(folder: Path, step: int) -> Path:
    name, count = folder / f"step-{step:08d}", 1
    while name.exists():
        count += 1
        name = folder / f"step-{step:08d}.{count}"
    return name


def _save(path: Path, value: Any) -> dict[str, Any]:
    import torch

    with open(path, "xb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    find_unsafe = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    unsafe = find_unsafe(str(path)) if find_unsafe else []
    if unsafe:
        raise CheckpointError(
            f"The state of a prepared object holds {', '.join(sorted(unsafe))}, which a checkpoint may not hold: it "
            "could not be loaded without running a pickle. Keep tensors, numbers, texts, lists and dicts in it."
        )
    return _describe(path)


def _describe(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"size_bytes": size, "sha256": digest.hexdigest()}


def _checksum(metadata: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in metadata.items() if k != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
