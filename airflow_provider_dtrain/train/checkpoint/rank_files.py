"""Files of a checkpoint that ranks other than rank 0 contribute: written by themselves, or sent to rank 0."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import checkpoint_file
from airflow_provider_dtrain.train.checkpoint.rank_transfer import RankTransfer
from airflow_provider_dtrain.train.checkpoint.save_plan import file_name
from airflow_provider_dtrain.train.checkpoint.tensor_file import TensorFile
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError
from airflow_provider_dtrain.train.files import open_place
from airflow_provider_dtrain.train.files.digests import Hashing
from airflow_provider_dtrain.train.files.file_systems import is_url
from airflow_provider_dtrain.train.values import FileFacts

#: Rank 0 waits for the files of the other ranks at most as long as for a large upload.
LIMIT_S = 6 * 3600
_POLL_S = 0.02


@dataclass(frozen=True)
class Begun:
    """A checkpoint that rank 0 began, as one rank sees it."""

    #: Return value of ``Storage.begin`` as text.
    place: str
    #: Number of the save in this program.
    number: int
    #: For each rank: it sees the place, and writes its file itself.
    seeing: Sequence[bool]


class RankFiles:
    """Exchange of the ranks' files in the background of training.

    :param config: ``checkpoint_storage`` of the configuration, for credentials
    """

    def __init__(self, distributed: Distributed, config: Mapping[str, Any]) -> None:
        self._distributed = distributed
        self._config = config
        self._number = 0
        self._group: Any = None

    def begin(self, begun: Path | str | None) -> Begun | None:
        """Agree on who sees the place of a new checkpoint. Called by all ranks.

        :param begun: return value of ``Storage.begin``, on rank 0; None there: the storage rejects the checkpoint
        :return: None if the storage rejects the checkpoint
        """
        place, inode = self._distributed.broadcast((None if begun is None else str(begun), _inode(begun)))
        if place is None:
            return None
        seeing = self._distributed.allgather(is_url(place) or _inode(place) == inode)
        if not all(seeing) and self._group is None:
            self._group = self._distributed.new_group()
        self._number += 1
        return Begun(place, self._number, seeing)

    def deliver(self, begun: Begun, content: TensorFile) -> None:
        """Write this rank's file, or send it to rank 0. Runs in the background of a rank other than 0.

        :raises CheckpointStorageError: it cannot be written
        """
        rank = self._distributed.get_rank()
        if not begun.seeing[rank]:
            RankTransfer(self._distributed, self._group).send(content.size_bytes, content.write)
            return
        place = begun.place if is_url(begun.place) else Path(begun.place)
        try:
            answer = checkpoint_file.save(open_place(place, self._config), place, file_name(rank), content)
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"[:1000]
            self._distributed.post(_key(begun, rank), json.dumps({"error": message}))
            message = f"Rank {rank} cannot write its part of a checkpoint to {place}: {message}"
            raise CheckpointStorageError(message) from error
        self._distributed.post(_key(begun, rank), json.dumps(answer))

    def collect(self, begun: Begun, ranks: Sequence[int]) -> dict[str, FileFacts]:
        """Return name, size and sha256 of the other ranks' files, once they are durable. Runs on rank 0.

        :param ranks: ranks with a file
        :raises CheckpointStorageError: a rank could not write its file
        """
        other_ranks = [rank for rank in ranks if rank]
        sent = {
            rank: _LenientFile(Path(begun.place) / file_name(rank)) for rank in other_ranks if not begun.seeing[rank]
        }
        RankTransfer(self._distributed, self._group).receive(sent)
        files = {file_name(rank): file.close() for rank, file in sent.items()}
        files.update({file_name(rank): self._answer(begun, rank) for rank in other_ranks if begun.seeing[rank]})
        return files

    def _answer(self, begun: Begun, rank: int) -> FileFacts:
        """Wait for what a rank posts about its file."""
        key = _key(begun, rank)
        # A blocking read would hold the connection that the training's own messages use.
        text = _wait(lambda: self._distributed.posted_or_none(key), f"Rank {rank} has not written its part")
        self._distributed.forget(key)
        answer = json.loads(text)
        if "error" in answer:
            raise CheckpointStorageError(f"Rank {rank} cannot write its part of the checkpoint: {answer['error']}")
        facts: FileFacts = answer
        return facts


class _LenientFile:
    """File that keeps its first error until it is closed, because an error would leave the sending rank waiting."""

    def __init__(self, path: Path) -> None:
        self._error: OSError | None = None
        self._file: Any = None
        try:
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            self._error = error
        self._hashing = Hashing(self._file)

    def write(self, view: memoryview) -> None:
        """Write all of a view, unless an earlier write failed."""
        if self._error is not None:
            return
        try:
            self._hashing.write(view)
        except OSError as error:
            self._error = error

    def close(self) -> FileFacts:
        """Flush the file to the disk. Return its size and sha256.

        :raises OSError: this or a write failed
        """
        if self._file is not None:
            with self._file:
                if self._error is None:
                    os.fsync(self._file.fileno())
        if self._error is not None:
            raise self._error
        return self._hashing.description()


def _key(begun: Begun, rank: int) -> str:
    return f"checkpoint/{begun.number}/{rank}"


def _inode(place: Path | str | None) -> int | None:
    """Return what tells a folder from one of the same name on another host."""
    if place is None or is_url(place):
        return None
    try:
        return os.stat(place).st_ino
    except OSError:
        return None


def _wait(poll: Callable[[], str | None], message: str) -> str:
    deadline = time.monotonic() + LIMIT_S
    while (found := poll()) is None:
        if time.monotonic() > deadline:
            raise CheckpointError(f"{message} within {LIMIT_S / 3600:.0f} hours. Check its log and its storage.")
        time.sleep(_POLL_S)
    return found
