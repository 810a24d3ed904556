"""Storage of a trial's checkpoints: complete ones only, in a folder on this host or in a bucket."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from airflow_provider_dtrain.train.checkpoint import checkpoint_file, description, disk, retention
from airflow_provider_dtrain.train.checkpoint.description import METADATA, METADATA_LIMIT_BYTES, SavedCheckpoint
from airflow_provider_dtrain.train.checkpoint.found_checkpoints import Candidate, order
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError, DamagedCheckpointError
from airflow_provider_dtrain.train.files import open_place
from airflow_provider_dtrain.train.files.bucket import BucketPlace
from airflow_provider_dtrain.train.files.digests import describe
from airflow_provider_dtrain.train.files.file_systems import is_url
from airflow_provider_dtrain.train.files.place import Place

log = logging.getLogger(__name__)

#: Beginning of the name of a checkpoint.
_PREFIX = "step-"


class Storage:
    """Keeps the checkpoints of one trial. One process at a time uses it, in any of its threads.

    A checkpoint is a folder whose mark is ``metadata.json``, with the size and sha256 of each other file.

    :param has_earlier: whether older checkpoints in it belong to this trial
    """

    def __init__(self, place: Place, *, has_earlier: bool = True) -> None:
        self.place = place
        self._has_earlier = has_earlier
        self._taken: set[str] = set()
        self._is_listed = False

    def sweep(self) -> None:
        """Remove the unfinished data of killed processes.

        :raises CheckpointStorageError: the storage does not answer
        """
        try:
            self.place.sweep_folders(_PREFIX, METADATA)
        except OSError as error:
            raise self._unlisted(error) from error

    def reserve(self, step: int) -> Path | str:
        """Return the path or URL that the next checkpoint of this step will have."""
        # A bucket is listed once, because a listing for each save would delay training.
        if self.place.renames or not self._is_listed:
            self._taken.update(self._names())
            self._is_listed = True
        name = description.next_name(step, self._taken)
        self._taken.add(name)
        return self.place.locate(name)

    def begin(self, where: Path | str, step: int) -> Path | str:
        """Return the path or URL below which other ranks write their files of a checkpoint.

        :param where: return value of :meth:`reserve`
        """
        try:
            return self.place.begin(_name(where))
        except OSError as error:
            raise _rejected(step, where, error) from error

    def write(
        self,
        where: Path | str,
        step: int,
        contents: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        begun: Path | str | None = None,
        more: Callable[[], Mapping[str, Any]] | None = None,
    ) -> SavedCheckpoint:
        """Write a checkpoint. Return it once it is complete and durable.

        :param where: return value of :meth:`reserve`
        :param contents: file name -> bytes, a ``TensorFile``, or an object that ``torch.save`` writes
        :param facts: entries for the metadata
        :param begun: return value of :meth:`begin`, if other ranks write files too
        :param more: returns their names with size and sha256, once they are durable
        :raises CheckpointError: an object cannot be loaded without pickle, or the storage rejects the write; no older
            checkpoint is lost
        """
        begun = self.begin(where, step) if begun is None else begun
        with self._discarding(begun, where, step):
            files = {name: checkpoint_file.save(self.place, begun, name, value) for name, value in contents.items()}
            files.update(more() if more is not None else {})
            return self._complete(begun, where, step, facts, files)

    def stage(self, step: int) -> Path:
        """Return a new folder for files that :meth:`write_tree` makes a checkpoint. :meth:`sweep` removes it."""
        return self.place.stage(description.step_name(step))

    def write_tree(self, where: Path | str, step: int, folder: Path, facts: Mapping[str, Any]) -> SavedCheckpoint:
        """Make a subfolder of :meth:`stage` a checkpoint. Return it once it is complete and durable.

        :param where: return value of :meth:`reserve`
        :raises CheckpointError: the storage rejects it; no older checkpoint is lost
        """
        try:
            with self._discarding(folder, where, step):
                paths = sorted(path for path in folder.rglob("*") if path.is_file())
                files = {path.relative_to(folder).as_posix(): describe(path, is_durable=True) for path in paths}
                return self._complete(folder, where, step, facts, files)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)

    def _complete(
        self, begun: Path | str, where: Path | str, step: int, facts: Mapping[str, Any], files: Mapping[str, Any]
    ) -> SavedCheckpoint:
        text = description.metadata_text(step, facts, files)
        self.place.complete(begun, _name(where), METADATA, text)
        return _parse(text, where)

    @contextlib.contextmanager
    def _discarding(self, begun: Path | str, where: Path | str, step: int) -> Iterator[None]:
        """Discard a checkpoint that cannot be completed."""
        try:
            yield
        except BaseException as error:
            self.place.discard(begun, _name(where), METADATA)
            if isinstance(error, OSError):
                raise _rejected(step, where, error) from error
            raise

    def prune(self, policy: Mapping[str, Any]) -> list[Path | str]:
        """Delete the checkpoints that the policy does not keep. Return the deleted paths or URLs.

        :param policy: ``save_trial_best``, ``save_trial_latest``, ``metric``, ``smaller_is_better``
        """
        readable = {}
        for name in self._names():
            # One that cannot be read is kept.
            with contextlib.suppress(CheckpointError):
                readable[name] = self._read(name)
        kept = retention.keep(list(readable.values()), policy)
        unkept = [name for name, checkpoint in readable.items() if checkpoint not in kept]
        return [self.place.locate(name) for name in unkept if self.remove(name)]

    def remove(self, name: str) -> bool:
        """Delete a checkpoint. Return whether it is gone."""
        try:
            self.place.remove_folder(name, METADATA)
        except OSError as error:
            log.warning("Checkpoint %s is no longer needed but cannot be removed: %s", self.place.locate(name), error)
            return False
        return True

    def found(self) -> list[Candidate]:
        """Return every candidate for a restore."""
        return [self.candidate(name) for name in self._names()] if self._has_earlier else []

    def candidate(self, name: str) -> Candidate:
        """Return a checkpoint as a candidate for a restore."""
        where = self.place.locate(name)
        return order(where), str(where), partial(self.read_whole, name)

    def read_whole(self, name: str, scratch: Path) -> SavedCheckpoint:
        """Return a checkpoint after a check of its files. One in a bucket is copied.

        :param scratch: folder for the copy
        :raises DamagedCheckpointError: the checkpoint is incomplete or differs from what was written
        """
        where = self.place.locate(name)
        if isinstance(where, Path):
            return disk.whole(where)
        text = self._metadata(name)
        target = scratch / name
        target.mkdir(parents=True, exist_ok=True)
        for file, expected in _parse(text, where).files.items():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                copied = cast("BucketPlace", self.place).fetch(f"{name}/{file}", target / file)
            except FileNotFoundError as error:
                raise DamagedCheckpointError(f"{where}/{file} is missing") from error
            if copied != expected:
                raise DamagedCheckpointError(f"{where}: {file} differs from what was written")
        # Other ranks recognize the copy by it.
        (target / METADATA).write_bytes(text)
        return description.parse(text, target, where)

    def _read(self, name: str) -> SavedCheckpoint:
        return _parse(self._metadata(name), self.place.locate(name))

    def _metadata(self, name: str) -> bytes:
        where = self.place.locate(name)
        try:
            text = self.place.read(f"{name}/{METADATA}", METADATA_LIMIT_BYTES + 1)
        except OSError as error:
            raise CheckpointError(f"The checkpoint {where} cannot be read: {error}") from error
        if text is None:
            raise DamagedCheckpointError(f"{where} has no {METADATA}")
        return text

    def _names(self) -> list[str]:
        try:
            entries = self.place.entries()
        except OSError as error:
            raise self._unlisted(error) from error
        return [name for name, kind in entries.items() if kind == "directory" and name.startswith(_PREFIX)]

    def _unlisted(self, error: OSError) -> CheckpointStorageError:
        return CheckpointStorageError(f"The checkpoints at {self.place.location} cannot be listed: {error}")


def _rejected(step: int, where: Path | str, error: OSError) -> CheckpointStorageError:
    return CheckpointStorageError(f"The checkpoint of step {step} cannot be written to {where}: {error}")


def _parse(text: bytes, where: Path | str) -> SavedCheckpoint:
    if isinstance(where, Path):
        return description.parse(text, where)
    return description.parse(text, Path(_name(where)), where)


def _name(where: Path | str) -> str:
    return str(where).rstrip("/").rpartition("/")[2]


def open_storage(where: Path | str, config: Mapping[str, Any], *, has_earlier: bool = True) -> Storage:
    """Return the storage at a path or URL.

    :param config: ``checkpoint_storage`` of the configuration, for credentials
    """
    return Storage(open_place(where, config), has_earlier=has_earlier)


def candidates(storage: Storage | None, first: Path | str | None, config: Mapping[str, Any]) -> list[Candidate]:
    """Return the candidates for a restore: those in the storage, and those beside a checkpoint elsewhere.

    :param first: path or URL of the latest checkpoint that the control side knows, or a folder of checkpoints
    """
    found = storage.found() if storage is not None else []
    if isinstance(first, Path) and (first / METADATA).is_file():
        found.append(_parent(first, config).candidate(first.name))
    elif isinstance(first, Path):
        found += open_storage(first, config).found()
    if first is not None:
        found += _parent(first, config).found()
    return list({one[1]: one for one in found}.values())


def reader(where: Path | str, config: Mapping[str, Any]) -> Callable[[Path], SavedCheckpoint]:
    """Return a function that reads and checks the checkpoint at a path or URL. It takes a folder for copies."""
    if not is_url(where):
        return partial(_whole, Path(where))
    return partial(_parent(where, config).read_whole, _name(where))


def _whole(path: Path, _: Path) -> SavedCheckpoint:
    return disk.whole(path)


def _parent(where: Path | str, config: Mapping[str, Any]) -> Storage:
    return open_storage(where.parent if isinstance(where, Path) else where.rstrip("/").rpartition("/")[0], config)
