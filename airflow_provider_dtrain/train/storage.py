"""Where the checkpoints of a trial are kept: a folder here, or a bucket elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_dtrain.train import checkpoint as disk
from airflow_provider_dtrain.train import pruning
from airflow_provider_dtrain.train.checkpoint import Checkpoint


class Storage(Protocol):
    """Keeps checkpoints whole or not at all. Used by one process at a time, in any of its threads."""

    def sweep(self) -> None:
        """Remove what a killed process left unfinished."""

    def reserve(self, step: int) -> Any:
        """Return the path or URL that the next checkpoint of this step will have."""

    def write(self, where: Any, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint once it is whole and durable.

        :param where: what :meth:`reserve` returned
        :param contents: file name -> what ``torch.save`` is to write
        :raises CheckpointError: the storage refuses; nothing older is lost
        """

    def prune(self, policy: Mapping[str, Any]) -> list[Any]:
        """Delete what the policy does not keep; return the paths or URLs that are gone."""

    def found(self, first: Any = None) -> list[tuple[Any, str, Callable[[Path], Checkpoint]]]:
        """Return every candidate for a restore; its last part takes a folder for copies.

        :param first: a checkpoint elsewhere to look at as well
        """


class FolderStorage:
    """A folder that this process can write to.

    :param look: whether older checkpoints in it belong to this trial
    """

    def __init__(self, folder: Path, *, look: bool = True) -> None:
        self.folder, self._look = folder, look

    def sweep(self) -> None:
        """Remove what a killed process left unfinished."""
        pruning.sweep(self.folder)

    def reserve(self, step: int) -> Path:
        """Return the path that the next checkpoint of this step will have."""
        return disk.free_name(self.folder, step)

    def write(self, where: Path, step: int, contents: Mapping[str, Any], facts: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint once it is whole and on the disk."""
        return disk.write(self.folder, step, contents, facts, final=where)

    def prune(self, policy: Mapping[str, Any]) -> list[Path]:
        """Delete what the policy does not keep; return the folders that are gone."""
        return pruning.prune(self.folder, policy)

    def found(self, first: Path | None = None) -> list[tuple[Any, str, Callable[[Path], Checkpoint]]]:
        """Return every candidate for a restore."""
        paths = disk.around([self.folder] if self._look else [], first)
        return [(disk.order(path), str(path), partial(_whole, path)) for path in paths]


def _whole(path: Path, _: Path) -> Checkpoint:
    return disk.whole(path)


def is_url(text: Any) -> bool:
    """Return whether a text names something that is reached through fsspec."""
    return isinstance(text, str) and "://" in text


def open_storage(where: Path | str, config: Mapping[str, Any], *, look: bool) -> Storage:
    """Return the storage at a path or URL.

    :param config: ``checkpoint_storage`` of the configuration, for credentials
    """
    if not is_url(where):
        return FolderStorage(Path(where), look=look)
    from airflow_provider_dtrain.train.storage_remote import RemoteStorage

    return RemoteStorage(str(where), config, look=look)


def candidates(storage: Storage, first: Path | str | None, config: Mapping[str, Any]) -> list[Any]:
    """Return what a restore may choose from: what the storage has, and one checkpoint elsewhere.

    :param first: path or URL of the latest checkpoint that the control side knows
    """
    if isinstance(storage, FolderStorage) and not is_url(first):
        return storage.found(Path(first) if first is not None else None)
    return [*storage.found(), *(elsewhere(first, config) if first is not None else [])]


def elsewhere(first: Path | str, config: Mapping[str, Any]) -> list[Any]:
    """Return a checkpoint and its neighbours, which may stand in for it."""
    if not is_url(first):
        return FolderStorage(Path(first).parent, look=False).found(Path(first))
    return open_storage(str(first).rstrip("/").rpartition("/")[0], config, look=True).found()


def reader(where: Path | str, config: Mapping[str, Any]) -> Callable[[Path], Checkpoint]:
    """Return what reads and checks the checkpoint at a path or URL; it takes a folder for copies."""
    if not is_url(where):
        return partial(_whole, Path(where))
    from airflow_provider_dtrain.train.storage_remote import RemoteStorage

    url = str(where).rstrip("/")
    return partial(RemoteStorage(url.rpartition("/")[0], config).fetch, url)
