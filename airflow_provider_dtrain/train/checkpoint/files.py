"""Checkpoints of arbitrary files, which a program of any framework writes itself."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, disk
from airflow_provider_dtrain.train.checkpoint.description import SavedCheckpoint
from airflow_provider_dtrain.train.checkpoint.rank_transfer import RankTransfer
from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.distributed import PIECE_BYTES, Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, DamagedCheckpointError, SetupError
from airflow_provider_dtrain.train.process.heartbeat import CHECKPOINT, HERE

#: Bytes of a file that are read at a time.
_READ_BYTES = 1 << 20
FILES_LIMIT = 10_000
#: Bytes of the metadata that a script gives, which the metadata of the checkpoint contain.
SCRIPT_METADATA_LIMIT_BYTES = 1 << 20
#: Subfolder of the temporary folder that becomes the checkpoint.
_TREE = "files"


@dataclass(frozen=True)
class SavedFiles:
    """A checkpoint that ``ctx.checkpoint`` wrote, readable by this rank. Its files must not be changed."""

    #: Folder with the files of all ranks.
    path: Path
    step: int
    #: Metadata that the program gave to ``ctx.checkpoint``.
    metadata: Mapping[str, Any]
    #: Number of ranks that wrote it.
    world_size: int
    #: Path or URL of the checkpoint in its storage.
    where: str
    #: It is ``searcher.source_checkpoint`` of another trial: take its weights, and start at step 0.
    is_source: bool = False

    def __fspath__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class NewFiles:
    """A checkpoint that is being written."""

    #: This rank's folder.
    path: Path
    #: Path or URL that the checkpoint will have; empty if checkpoints are switched off.
    where: str


class FileCheckpoints:
    """Writes and reads checkpoints of files for all ranks. Rank 0 writes to the storage.

    A rank that sees rank 0's folder writes beside it. The files of any other rank are sent to rank 0.
    """

    def __init__(self, env: RankEnvironment, distributed: Distributed, saver: Saver) -> None:
        self._env = env
        self._distributed = distributed
        self._saver = saver
        self._scratch: Path | None = None

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(
        self, step: int, metadata: Mapping[str, Any], facts: Mapping[str, Any], *, alone: bool = False
    ) -> contextlib.AbstractContextManager[NewFiles]:
        """Return a context manager that yields this rank's folder.

        Its files are part of the checkpoint once the block has ended on all ranks.

        :param metadata: JSON values of the program
        :param facts: JSON values of the library
        :param alone: rank 0 calls it, without the other ranks
        :raises SetupError: another rank than rank 0 calls it with ``alone``
        """
        if alone and self._distributed.rank != 0:
            raise SetupError(
                f"ctx.checkpoint(alone=True) is for rank 0, and rank {self._distributed.rank} called it. Call it on "
                "rank 0 alone, or without alone=True on all ranks."
            )
        _check_metadata(metadata)
        known = {**facts, "kind": description.FILES, "user": dict(metadata)}
        return self._write_alone(step, known) if alone else self._write(step, known)

    @contextlib.contextmanager
    def _write_alone(self, step: int, facts: Mapping[str, Any]) -> Iterator[NewFiles]:
        with HERE.at(CHECKPOINT), tempfile.TemporaryDirectory(prefix="dtrain-part-", dir=self._run_dir()) as own:
            stage = self._stage(step)
            folder = stage / _TREE if stage is not None else Path(own)
            where = self._saver.reserve(step) if stage is not None else ""
            try:
                yield NewFiles(folder, where)
                _, problem = _listing(folder)
                if problem is not None:
                    raise CheckpointError(f"The checkpoint of step {step} was not written: {problem}")
            except BaseException:
                self._drop(stage)
                raise
            if stage is not None:
                self._saver.publish(step, where, folder, facts)

    @contextlib.contextmanager
    def _write(self, step: int, facts: Mapping[str, Any]) -> Iterator[NewFiles]:
        with HERE.at(CHECKPOINT), tempfile.TemporaryDirectory(prefix="dtrain-part-", dir=self._run_dir()) as own:
            stage, where = self._begin(step)
            is_shared = stage is not None and (stage / _TREE).is_dir()
            folder = self._own_folder(stage) if stage is not None and is_shared else Path(own)
            try:
                yield NewFiles(folder, where)
            except Exception as error:
                self._agree(f"{type(error).__name__}: {error}", stage)
                raise
            except BaseException:
                self._drop(stage)
                raise
            self._agree(None, stage)
            problem = self._collect(folder, stage, is_shared=is_shared)
            problem = next(filter(None, self._distributed.allgather(problem)), None)
            if problem is not None:
                self._drop(stage)
                raise CheckpointError(f"The checkpoint of step {step} was not written: {problem}")
            if self._distributed.rank == 0 and stage is not None:
                self._saver.publish(step, where, stage / _TREE, facts)

    def _begin(self, step: int) -> tuple[Path | None, str]:
        """Return rank 0's folder, which this rank may not see, and the checkpoint's path or URL.

        None if checkpoints are switched off.
        """
        stage, where, problem = None, "", None
        if self._distributed.rank == 0:
            try:
                stage = self._stage(step)
                where = self._saver.reserve(step) if stage is not None else ""
            except CheckpointError as error:
                problem = str(error)
        answer = self._distributed.broadcast([str(stage) if stage else None, where, problem])
        if answer[2] is not None:
            raise CheckpointError(answer[2])
        return Path(answer[0]) if answer[0] else None, answer[1]

    def _stage(self, step: int) -> Path | None:
        """Return a new folder, None if checkpoints are switched off. Called by rank 0.

        :raises CheckpointError: the disk rejects it
        """
        try:
            stage = self._saver.stage(step)
            if stage is not None:
                (stage / _TREE).mkdir(mode=0o700)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"The checkpoint of step {step} cannot be written: {error}") from error
        return stage

    def _own_folder(self, stage: Path) -> Path:
        if self._distributed.rank == 0:
            return stage / _TREE
        own = stage / f"rank-{self._distributed.rank}"
        own.mkdir(mode=0o700)
        return own

    def _agree(self, error: str | None, stage: Path | None) -> None:
        """Learn whether the block has failed on another rank.

        :raises CheckpointError: it has
        """
        failed = [(rank, message) for rank, message in enumerate(self._distributed.allgather(error)) if message]
        if failed:
            self._drop(stage)
        if failed and error is None:
            rank, message = failed[0]
            raise CheckpointError(f"No checkpoint was written, because rank {rank} failed in ctx.checkpoint: {message}")

    def _drop(self, stage: Path | None) -> None:
        if stage is not None and self._distributed.rank == 0:
            shutil.rmtree(stage, ignore_errors=True)

    def _collect(self, folder: Path, stage: Path | None, *, is_shared: bool) -> str | None:
        """Bring the files of all ranks into rank 0's tree. Return the reason if this rank cannot."""
        mine, problem = _listing(folder)
        parts = self._distributed.allgather([is_shared, mine, problem])
        for rank, (_, _, message) in enumerate(parts):
            if message:
                return f"rank {rank}: {message}"
        if stage is None:
            return None
        received = Path(tempfile.mkdtemp(prefix="dtrain-received-", dir=self._run_dir()))
        try:
            self._send(folder, parts, received)
            if self._distributed.rank != 0:
                return None
            for rank, (shared, names, _) in enumerate(parts):
                source = stage / f"rank-{rank}" if shared else received / str(rank)
                if rank and (message := _merge(source, stage / _TREE, [name for name, _ in names], rank)):
                    return message
        except (OSError, CheckpointError) as error:
            return str(error)
        finally:
            shutil.rmtree(received, ignore_errors=True)
        return None

    def _send(self, folder: Path, parts: Sequence[Any], received: Path) -> None:
        """Send the files of ranks that do not see rank 0's folder to another folder of rank 0."""
        remote = {rank: names for rank, (shared, names, _) in enumerate(parts) if not shared}
        transfer = RankTransfer(self._distributed)
        if self._distributed.rank == 0:
            writers = {rank: _Receiver(received / str(rank), names) for rank, names in remote.items()}
            transfer.receive(writers)
            for writer in writers.values():
                writer.finish()
        elif self._distributed.rank in remote:
            mine = remote[self._distributed.rank]
            transfer.send(sum(size for _, size in mine), partial(_write_files, folder, mine))

    # -- reading ---------------------------------------------------------------------------------------------------

    def latest(self, *, start_over: bool = False) -> SavedFiles | None:
        """Return the newest intact checkpoint of files, or None. Called by all ranks.

        :param start_over: return None when every checkpoint is damaged
        :raises CheckpointError: the newest checkpoint was written by ``save_checkpoint``
        """
        return self._everywhere(lambda scratch: self._saver.find_files(scratch, start_over=start_over))

    def read(self, where: str) -> SavedFiles:
        """Return the checkpoint of files at a path or URL. Called by all ranks.

        The latest checkpoint of the trial may be replaced by the one before it, if it is damaged.

        :param where: path or URL, as rank 0 sees it
        :raises CheckpointError: it is damaged, was removed, or was written by ``save_checkpoint``
        """
        found = self._everywhere(lambda scratch: self._find(where, scratch))
        assert found is not None
        return found

    def read_alone(self, where: str) -> SavedFiles:
        """Return the checkpoint of files at a path or URL, without the other ranks.

        :param where: path or URL, as this rank sees it
        :raises CheckpointError: it is damaged or was removed, or this rank's host does not have it
        """
        with HERE.at(CHECKPOINT):
            found, is_source = self._find(where, self._scratch_folder(), alone=True)
            assert found is not None
            return _saved(found.path, found.where, found.metadata, is_source=is_source)

    def _find(self, where: str, scratch: Path, *, alone: bool = False) -> tuple[SavedCheckpoint | None, bool]:
        """Return a checkpoint, and whether it is ``searcher.source_checkpoint``."""
        is_latest = where == str(self._env.latest_checkpoint)
        try:
            return self._saver.read_files(where, scratch), not is_latest and where == str(self._env.source_checkpoint)
        except DamagedCheckpointError as error:
            if is_latest and not alone:
                return self._saver.find_files(scratch)
            raise CheckpointError(
                f"The checkpoint {where} cannot be read on the host of rank {self._distributed.rank}: {error}. It is "
                "damaged, checkpoint_storage has removed it, or it is on the host of rank 0: let all ranks read it "
                "together."
            ) from error

    def _everywhere(self, find: Callable[[Path], tuple[SavedCheckpoint | None, bool]]) -> SavedFiles | None:
        """Return what rank 0 finds, on all ranks.

        :param find: takes a folder for copies; returns a checkpoint, and whether it is the source checkpoint
        """
        with HERE.at(CHECKPOINT):
            found, is_source, problem = None, False, None
            if self._distributed.rank == 0:
                try:
                    found, is_source = find(self._scratch_folder())
                except CheckpointError as error:
                    problem = str(error)
            shown = [str(found.path), found.where, found.sha256, dict(found.metadata)] if found is not None else None
            answer = self._distributed.broadcast([shown, is_source, problem])
            if answer[2] is not None:
                raise CheckpointError(answer[2])
            if answer[0] is None:
                return None
            path, where, sha256, metadata = answer[0]
            return _saved(self._reachable(Path(path), sha256, metadata), where, metadata, is_source=bool(answer[1]))

    def _reachable(self, path: Path, sha256: str, metadata: Mapping[str, Any]) -> Path:
        """Return a folder with the files that this rank can read: rank 0's, or a copy that its host's ranks share."""
        sees = _is_same(path, sha256)
        hosts = self._distributed.allgather([self._env.group_rank, sees])
        if all(each for _, each in hosts):
            return path
        leaders = {host: rank for rank, (host, each) in reversed(list(enumerate(hosts))) if not each}
        leads = leaders.get(self._env.group_rank) == self._distributed.rank
        target = self._scratch_folder() / path.name if leads else None
        for name in (description.METADATA, *metadata["files"]):
            self._copy(path / name, target / name if target is not None else None)
        copies = self._distributed.allgather(str(target) if target is not None else None)
        if sees:
            return path
        return Path(copies[leaders[self._env.group_rank]])

    def _copy(self, source: Path, target: Path | None) -> None:
        """Send one file from rank 0 to the ranks with a target, in pieces."""
        is_chief = self._distributed.rank == 0
        size = int(self._distributed.broadcast(source.stat().st_size if is_chief else None))
        with contextlib.ExitStack() as stack:
            reads = stack.enter_context(open(source, "rb")) if is_chief else None
            writes = None
            if target is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                writes = stack.enter_context(open(target, "wb"))
            for _ in range(0, size, PIECE_BYTES):
                piece = self._distributed.broadcast_bytes(reads.read(PIECE_BYTES) if reads is not None else None)
                if writes is not None:
                    writes.write(piece)

    def _run_dir(self) -> str | None:
        return str(self._env.run_dir) if self._env.run_dir is not None else None

    def _scratch_folder(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="dtrain-files-", dir=self._run_dir()))
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return self._scratch


def _saved(path: Path, where: str, metadata: Mapping[str, Any], *, is_source: bool) -> SavedFiles:
    return SavedFiles(
        path=path,
        step=int(metadata["step"]),
        metadata=metadata.get("user") or {},
        world_size=int(metadata.get("world_size") or 1),
        where=where,
        is_source=is_source,
    )


class _Receiver:
    """Writes the files of one rank from pieces that do not end where files end."""

    def __init__(self, folder: Path, names: Sequence[Any]) -> None:
        self._folder = folder
        self._left = [(str(name), int(size)) for name, size in names]
        self._error: OSError | None = None

    def write(self, view: memoryview) -> None:
        """Append a piece, unless an earlier one could not be written."""
        while view.nbytes and self._left:
            name, size = self._left[0]
            part, view = view[:size], view[size:]
            self._append(name, part)
            self._left[0] = (name, size - len(part))
            if size == len(part):
                self._left.pop(0)

    def finish(self) -> None:
        """Create the empty files at the end.

        :raises OSError: this or a write failed
        """
        for name, _ in self._left:
            self._append(name, memoryview(b""))
        if self._error is not None:
            raise self._error

    def _append(self, name: str, part: memoryview) -> None:
        if self._error is not None:
            return
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(part)
        except OSError as error:
            self._error = error


def _write_files(folder: Path, names: Sequence[Any], out: Any) -> None:
    """Write some files one after the other, each with the size that was announced.

    :raises CheckpointError: a file has become shorter since. Rank 0 got zeros in the place of the rest
    """
    short = None
    for name, size in names:
        rest = int(size)
        with open(folder / name, "rb") as file:
            while rest:
                part = file.read(min(rest, _READ_BYTES))
                if not part:
                    short, part = name, bytes(min(rest, _READ_BYTES))
                out.write(part)
                rest -= len(part)
    if short is not None:
        raise CheckpointError(
            f"{short} became shorter after the block of ctx.checkpoint. Close files inside the block."
        )


def _listing(folder: Path) -> tuple[list[list[Any]], str | None]:
    """Return names and sizes of the files below a folder, and the reason if they cannot be a checkpoint."""
    found: list[list[Any]] = []
    for base, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(base, name)
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file():
                return [], f"{shown} is not a plain file. Copy the file that it links to."
            if not description.is_plain_name(shown):
                return [], f"{shown!r} cannot be the name of a file in a checkpoint. Use another name."
            found.append([shown, path.stat().st_size])
    if len(found) > FILES_LIMIT:
        return [], f"a checkpoint may have at most {FILES_LIMIT:,} files, got {len(found):,}. Pack them into fewer."
    return found, None


def _merge(source: Path, target: Path, names: Sequence[str], rank: int) -> str | None:
    """Move one rank's files into the tree. Return the reason if a file is there with another content."""
    for name in names:
        place = target / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(str(source / name), str(place))
        elif not filecmp.cmp(source / name, place, shallow=False):
            return (
                f"rank {rank} and a lower rank wrote {name} with different contents. Write it on rank 0 alone, or put "
                f'the rank into its name: folder / f"part-{{ctx.rank}}".'
            )
    return None


def _is_same(path: Path, sha256: str) -> bool:
    """Return whether this rank sees a checkpoint, and not another one of the same path on its own disk."""
    try:
        return disk.read(path).sha256 == sha256 and all((path / name).is_file() for name in disk.read(path).files)
    except CheckpointError:
        return False


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"metadata of ctx.checkpoint must be a dict of JSON values: {error}") from error
    if len(text) > SCRIPT_METADATA_LIMIT_BYTES:
        raise CheckpointError(
            f"metadata of ctx.checkpoint must have at most {SCRIPT_METADATA_LIMIT_BYTES:,} bytes as JSON, "
            f"got {len(text):,}. Write it to a file in the folder."
        )
