"""Storage of a trial's checkpoints: a folder on this host, or a bucket."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_dtrain.train.checkpoint import checkpoint_file, disk, found_checkpoints, retention
from airflow_provider_dtrain.train.checkpoint.description import Checkpoint
from airflow_provider_dtrain.train.checkpoint.folder_lock import LockObject

#: Returns files that other ranks have written: name -> size and sha256.
More = Callable[[], Mapping[str, Any]]


class Storage(Protocol):
    """Keeps complete checkpoints only. One process at a time uses it, in any of its threads."""

    def sweep(self) -> None:
        """Remove the unfinished data of a killed process."""

    def lock_place(self) -> Path | LockObject:
        """Return where the lock of the one run that writes is kept."""

    def reserve(self, step: int) -> Any:
        """Return the path or URL that the next checkpoint of this step will have."""

    def begin(self, where: Any, step: int) -> Any:
        """Return the path or URL below which other ranks write their files of a checkpoint.

        :param where: return value of :meth:`reserve`
        """

    def write(
        self,
        where: Any,
        step: int,
        contents: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        begun: Any = None,
        more: More | None = None,
    ) -> Checkpoint:
        """Write a checkpoint. Return it once it is complete and durable.

        :param where: return value of :meth:`reserve`
        :param contents: file name -> bytes, a ``TensorFile``, or an object that ``torch.save`` writes
        :param begun: return value of :meth:`begin`, if other ranks write files too
        :param more: returns their names with size and sha256, once they are durable
        :raises CheckpointError: the storage rejects the write; no older checkpoint is lost
        """

    def stage(self, step: int) -> Path:
        """Return a new folder for files that :meth:`write_tree` makes a checkpoint. :meth:`sweep` removes it."""

    def write_tree(self, where: Any, step: int, folder: Path, facts: Mapping[str, Any]) -> Checkpoint:
        """Make a subfolder of :meth:`stage` a checkpoint. Return it once it is complete and durable.

        :param where: return value of :meth:`reserve`
        :raises CheckpointError: the storage rejects it; no older checkpoint is lost
        """

    def prune(self, policy: Mapping[str, Any]) -> list[Any]:
        """Delete the checkpoints that the policy does not keep. Return the deleted paths or URLs."""

    def found(self, first: Any = None) -> list[tuple[Any, str, Callable[[Path], Checkpoint]]]:
        """Return every candidate for a restore: sort key, name, and a function that reads and checks it.

        The function takes a folder for copies.

        :param first: a checkpoint elsewhere that is a candidate too
        """


class FolderStorage:
    """A folder that this process can write to.

    :param look: whether older checkpoints in it belong to this trial
    """

    def __init__(self, folder: Path, *, look: bool = True) -> None:
        self.folder = folder
        self._look = look

    def lock_place(self) -> Path:
        """Return the folder, which holds the lock as a file."""
        return self.folder

    def sweep(self) -> None:
        """Remove the unfinished data of a killed process."""
        retention.sweep(self.folder)

    def reserve(self, step: int) -> Path:
        """Return the path that the next checkpoint of this step will have."""
        return disk.free_name(self.folder, step)

    def begin(self, where: Path, step: int) -> Path:
        """Return the folder that is renamed to the checkpoint once it is complete."""
        return disk.begin(self.folder, step)

    def write(
        self,
        where: Path,
        step: int,
        contents: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        begun: Path | None = None,
        more: More | None = None,
    ) -> Checkpoint:
        """Write a checkpoint. Return it once it is complete and on disk."""
        return disk.write(self.folder, step, contents, facts, final=where, temporary=begun, more=more)

    def stage(self, step: int) -> Path:
        """Return a new folder for files that :meth:`write_tree` makes a checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = self.folder / f".step-{step}.files.{os.getpid()}{disk.TEMPORARY}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def write_tree(self, where: Path, step: int, folder: Path, facts: Mapping[str, Any]) -> Checkpoint:
        """Make a subfolder of :meth:`stage` a checkpoint. Return it once it is complete and on disk."""
        try:
            return disk.write_tree(folder, step, facts, where)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)

    def prune(self, policy: Mapping[str, Any]) -> list[Path]:
        """Delete the checkpoints that the policy does not keep. Return the deleted folders."""
        return retention.prune(self.folder, policy)

    def found(self, first: Path | None = None) -> list[tuple[Any, str, Callable[[Path], Checkpoint]]]:
        """Return every candidate for a restore."""
        paths = found_checkpoints.around([self.folder] if self._look else [], first)
        return [(found_checkpoints.order(path), str(path), partial(_whole, path)) for path in paths]


def _whole(path: Path, _: Path) -> Checkpoint:
    return disk.whole(path)


def is_url(text: Any) -> bool:
    """Return whether a text is a URL, which fsspec reaches."""
    return isinstance(text, str) and "://" in text


def open_storage(where: Path | str, config: Mapping[str, Any], *, look: bool) -> Storage:
    """Return the storage at a path or URL.

    :param config: ``checkpoint_storage`` of the configuration, for credentials
    """
    if not is_url(where):
        return FolderStorage(Path(where), look=look)
    from airflow_provider_dtrain.train.checkpoint.bucket import RemoteStorage

    return RemoteStorage(str(where), config, look=look)


def candidates(storage: Storage, first: Path | str | None, config: Mapping[str, Any]) -> list[Any]:
    """Return the candidates for a restore: those in the storage, and those beside a checkpoint elsewhere.

    :param first: path or URL of the latest checkpoint that the control side knows
    """
    if isinstance(storage, FolderStorage) and not is_url(first):
        return storage.found(Path(first) if first is not None else None)
    return [*storage.found(), *(elsewhere(first, config) if first is not None else [])]


def elsewhere(first: Path | str, config: Mapping[str, Any]) -> list[Any]:
    """Return a checkpoint and its neighbours, which may replace it."""
    if not is_url(first):
        return FolderStorage(Path(first).parent, look=False).found(Path(first))
    return open_storage(str(first).rstrip("/").rpartition("/")[0], config, look=True).found()


def reader(where: Path | str, config: Mapping[str, Any]) -> Callable[[Path], Checkpoint]:
    """Return a function that reads and checks the checkpoint at a path or URL. It takes a folder for copies."""
    if not is_url(where):
        return partial(_whole, Path(where))
    from airflow_provider_dtrain.train.checkpoint.bucket import RemoteStorage

    url = str(where).rstrip("/")
    return partial(RemoteStorage(url.rpartition("/")[0], config).fetch, url)


def write_rank_file(begun: Path | str, name: str, content: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Write one file of a checkpoint that rank 0 began. Return its size and sha256 once it is durable.

    :param begun: return value of :meth:`Storage.begin`
    :raises OSError: the disk rejects the write
    """
    if not is_url(begun):
        return checkpoint_file.save_file(Path(begun) / name, content)
    from airflow_provider_dtrain.train.checkpoint.bucket import RemoteStorage

    return RemoteStorage(str(begun), config).upload(f"{begun}/{name}", content)
