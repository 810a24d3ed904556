"""Checkpoints of arbitrary files, which a program of any framework writes itself."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, disk
from airflow_provider_dtrain.train.checkpoint.rank_transfer import RankTransfer
from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.distributed import PIECE_BYTES, Distributed
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.process.heartbeat import CHECKPOINT, HERE

#: Bytes of a file that are read at a time.
_READ_BYTES = 1 << 20
FILES_LIMIT = 10_000
METADATA_LIMIT_BYTES = 1 << 20
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


class FileCheckpoints:
    """Writes and reads checkpoints of files for all ranks. Rank 0 writes to the storage.

    A rank that sees rank 0's folder writes beside it. The files of any other rank are sent to rank 0.
    """

    def __init__(self, env: Environment, distributed: Distributed, saver: Saver) -> None:
        self._env = env
        self._distributed = distributed
        self._saver = saver
        self._scratch: Path | None = None

    # -- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def write(self, step: int, metadata: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Path]:
        """Yield this rank's folder. Its files are part of the checkpoint once the block has ended on all ranks.

        :param metadata: JSON values of the program
        :param facts: JSON values of the library
        """
        _check_metadata(metadata)
        with HERE.at(CHECKPOINT), tempfile.TemporaryDirectory(prefix="dtrain-part-", dir=self._run_dir()) as own:
            stage = self._begin(step)
            is_shared = stage is not None and (stage / _TREE).is_dir()
            folder = self._own_folder(stage) if stage is not None and is_shared else Path(own)
            try:
                yield folder
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
                known = {**facts, "kind": description.FILES, "user": dict(metadata)}
                self._saver.publish(step, stage / _TREE, known)

    def _begin(self, step: int) -> Path | None:
        """Return rank 0's folder, which this rank may not see. None if checkpoints are switched off."""
        where, problem = None, None
        if self._distributed.rank == 0:
            try:
                where = self._saver.stage(step)
                if where is not None:
                    (where / _TREE).mkdir(mode=0o700)
            except (OSError, CheckpointError) as error:
                problem = f"The checkpoint of step {step} cannot be written: {error}"
        answer = self._distributed.broadcast([str(where) if where else None, problem])
        if answer[1] is not None:
            raise CheckpointError(answer[1])
        return Path(answer[0]) if answer[0] else None

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
        failed = [(rank, words) for rank, words in enumerate(self._distributed.allgather(error)) if words]
        if failed:
            self._drop(stage)
        if failed and error is None:
            rank, words = failed[0]
            raise CheckpointError(f"No checkpoint was written, because rank {rank} failed in ctx.checkpoint: {words}")

    def _drop(self, stage: Path | None) -> None:
        if stage is not None and self._distributed.rank == 0:
            shutil.rmtree(stage, ignore_errors=True)

    def _collect(self, folder: Path, stage: Path | None, *, is_shared: bool) -> str | None:
        """Bring the files of all ranks into rank 0's tree. Return the reason if this rank cannot."""
        mine, problem = _listing(folder)
        parts = self._distributed.allgather([is_shared, mine, problem])
        for rank, (_, _, words) in enumerate(parts):
            if words:
                return f"rank {rank}: {words}"
        if stage is None:
            return None
        received = Path(tempfile.mkdtemp(prefix="dtrain-received-", dir=self._run_dir()))
        try:
            self._send(folder, parts, received)
            if self._distributed.rank != 0:
                return None
            for rank, (shared, names, _) in enumerate(parts):
                source = stage / f"rank-{rank}" if shared else received / str(rank)
                if rank and (words := _merge(source, stage / _TREE, [name for name, _ in names], rank)):
                    return words
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
        with HERE.at(CHECKPOINT):
            found, is_source, problem = None, False, None
            if self._distributed.rank == 0:
                try:
                    found, is_source = self._saver.find_files(self._scratch_folder(), start_over=start_over)
                except CheckpointError as error:
                    problem = str(error)
            shown = [str(found.path), found.where, found.sha256, dict(found.metadata)] if found is not None else None
            answer = self._distributed.broadcast([shown, is_source, problem])
            if answer[2] is not None:
                raise CheckpointError(answer[2])
            if answer[0] is None:
                return None
            path, where, sha256, metadata = answer[0]
            return SavedFiles(
                path=self._reachable(Path(path), sha256, metadata),
                step=int(metadata["step"]),
                metadata=metadata.get("user") or {},
                world_size=int(metadata.get("world_size") or 1),
                where=where,
                is_source=bool(answer[1]),
            )

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
        """Return this process's folder for copies, which is removed when the process ends."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="dtrain-files-", dir=self._run_dir()))
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return self._scratch


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
    if len(text) > METADATA_LIMIT_BYTES:
        raise CheckpointError(
            f"metadata of ctx.checkpoint must have at most {METADATA_LIMIT_BYTES:,} bytes as JSON, got {len(text):,}. "
            "Write it to a file in the folder."
        )
