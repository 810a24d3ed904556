"""Checkpoints of files under the names of ``determined.core.CheckpointContext``."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.files import SavedFiles
from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.determined.refusals import refuse, refuse_worker
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.values import JsonObject

#: File with the metadata of the script in the folder that it reads.
METADATA = "metadata.json"
#: Item of the metadata with the step of the checkpoint.
STEP = "steps_completed"

_INSTEAD = {
    "delete": (
        "The fields save_trial_latest, save_trial_best and save_experiment_best of checkpoint_storage decide what is "
        "kept. 'airflow dtrain gc' deletes files of trials that have ended."
    ),
}

Selector = Callable[[str], bool]


class DownloadMode(enum.Enum):
    """Ranks that read a checkpoint."""

    #: All ranks, in step. Each host gets one copy.
    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    #: This rank, without the other ranks.
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Checkpoints of files. Their ids are paths or URLs.

    A checkpoint is written in the background, after its block or call has ended.
    """

    def __init__(self, ctx: CoreContext) -> None:
        self._ctx = ctx

    @contextlib.contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder whose files become a checkpoint, and the id of the checkpoint.

        :param metadata: JSON values, with ``steps_completed``
        :param shard: called by all ranks, whose files and metadata are united; False: by rank 0 alone
        :raises CheckpointError: ``steps_completed`` is missing, metadata differ between the ranks, or the files cannot
            be saved
        """
        if not shard:
            refuse_worker(self._ctx.rank, "checkpoint.store_path(shard=False)")
            merged = dict(metadata or {})
        else:
            merged = _merged(self._ctx.distributed.allgather(dict(metadata or {})))
        step = _step(merged)
        with self._ctx.new_files(step, metadata=merged, alone=not shard) as files:
            yield files.path, files.where
            # As in Determined, the file is that of the metadata.
            (files.path / METADATA).unlink(missing_ok=True)

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
    ) -> str:
        """Copy a folder into a checkpoint and return its id.

        :param ckpt_dir: None only with ``shard``, for a rank without files
        :param shard: called by all ranks, whose files together are the checkpoint; False: by rank 0 alone
        :raises CheckpointError: no rank gives a folder, or the files cannot be saved
        """
        given = [ckpt_dir is not None]
        if shard:
            given = self._ctx.distributed.allgather(ckpt_dir is not None)
        if not any(given):
            raise CheckpointError("checkpoint.upload needs ckpt_dir, with shard=True on at least one rank, got None.")
        with self.store_path(metadata, shard=shard) as (path, storage_id):
            if ckpt_dir is not None:
                shutil.copytree(ckpt_dir, path, dirs_exist_ok=True)
        return storage_id

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Yield a folder with the files of a checkpoint, and its metadata in ``metadata.json``.

        :param storage_id: ``latest_checkpoint`` of ``get_cluster_info()``, or the id of a checkpoint that the script
            wrote and ``checkpoint_storage`` has kept
        :param selector: takes the path of a file; the folder may have further files
        :raises CheckpointError: the checkpoint is damaged or was removed
        """
        found = self._read(storage_id, download_mode)
        with tempfile.TemporaryDirectory(prefix="dtrain-restored-") as folder:
            for name in _names(found.path):
                place = Path(folder, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to((found.path / name).absolute())
            Path(folder, METADATA).write_text(json.dumps(dict(found.metadata), indent=2))
            yield Path(folder)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy the files of a checkpoint, and its metadata as ``metadata.json``, into a folder.

        With ``LocalWorkersShareDownload``, local rank 0 of each host copies the files that any of its ranks selects.

        :param storage_id: as for :meth:`restore_path`
        :param ckpt_dir: is created if it does not exist
        :param selector: takes the path of a file; returns whether to copy it
        :raises CheckpointError: the checkpoint is damaged or was removed
        """
        mode = DownloadMode(download_mode)
        found = self._read(storage_id, mode)
        names = [name for name in _names(found.path) if selector is None or selector(name)]
        if mode is DownloadMode.NoSharedDownload:
            _copy(found, names, Path(ckpt_dir))
            return
        chosen = self._ctx.distributed.allgather_local(names)
        if self._ctx.local_rank == 0:
            _copy(found, sorted({name for one in chosen for name in one}), Path(ckpt_dir))
        self._ctx.barrier()

    def get_metadata(self, storage_id: str) -> JsonObject:
        """Return the metadata of a checkpoint that this rank's host has.

        :raises CheckpointError: it is damaged, was removed, or is on another host
        """
        return dict(self._ctx.files.read_alone(storage_id).metadata)

    def __getattr__(self, name: str) -> Any:
        refuse("'CheckpointContext' object", "core_context.checkpoint", name, _INSTEAD)

    def _read(self, storage_id: str, mode: DownloadMode) -> SavedFiles:
        return self._ctx.read_checkpoint(storage_id, alone=DownloadMode(mode) is DownloadMode.NoSharedDownload)


def _step(metadata: Mapping[str, Any]) -> int:
    """Return the step that the metadata of a checkpoint gives.

    :raises CheckpointError: it is missing, or no whole number
    """
    step = metadata.get(STEP)
    if type(step) is not int:
        raise CheckpointError(
            f"metadata of a checkpoint must have {STEP!r} with a whole number, e.g. {{{STEP!r}: 100}}, got {step!r}."
        )
    return step


def _merged(parts: Sequence[Mapping[str, Any]], path: str = "") -> JsonObject:
    """Return the metadata of all ranks together. Maps under the same key are merged.

    :raises CheckpointError: two ranks give different values for a key
    """
    merged: JsonObject = {}
    for name in {name: None for part in parts for name in part}:
        values = [part[name] for part in parts if name in part]
        if all(isinstance(value, Mapping) for value in values):
            merged[name] = _merged(values, f"{path}{name}.")
        elif all(value == values[0] for value in values):
            merged[name] = values[0]
        else:
            raise CheckpointError(
                f"metadata of a checkpoint must not differ between the ranks, but {path}{name} is "
                f"{' and '.join(sorted({repr(value) for value in values}))}. Give it on one rank, or under a name of "
                "each rank."
            )
    return merged


def _names(folder: Path) -> list[str]:
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != METADATA)


def _copy(found: SavedFiles, names: Sequence[str], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found.path / name, place)
    (target / METADATA).write_text(json.dumps(dict(found.metadata), indent=2))
