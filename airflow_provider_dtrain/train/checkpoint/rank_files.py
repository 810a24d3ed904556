"""Files of a checkpoint that ranks other than rank 0 contribute: written by themselves, or sent to rank 0."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import storage
from airflow_provider_dtrain.train.checkpoint.save_plan import file_name
from airflow_provider_dtrain.train.checkpoint.tensor_file import TensorFile
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError

#: Rank 0 waits for the files of the other ranks at most as long as for a large upload.
LIMIT_S = 6 * 3600
_POLL_S = 0.02
#: Files are sent in pieces of this size, after a piece with the number of bytes.
_PIECE_BYTES = 8 << 20
_LENGTH_BYTES = 8


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
        seeing = self._distributed.allgather(storage.is_url(place) or _inode(place) == inode)
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
            self._send(content)
            return
        place = begun.place if storage.is_url(begun.place) else Path(begun.place)
        try:
            answer = storage.write_rank_file(place, file_name(rank), content, self._config)
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"[:1000]
            self._distributed.post(_key(begun, rank), json.dumps({"error": words}))
            message = f"Rank {rank} cannot write its part of a checkpoint to {place}: {words}"
            raise CheckpointStorageError(message) from error
        self._distributed.post(_key(begun, rank), json.dumps(answer))

    def collect(self, begun: Begun, ranks: Sequence[int]) -> dict[str, Any]:
        """Return name, size and sha256 of the other ranks' files, once they are durable. Runs on rank 0.

        :param ranks: ranks with a file
        :raises CheckpointStorageError: a rank could not write its file
        """
        others = [rank for rank in ranks if rank]
        files = {file_name(rank): self._receive(begun, rank) for rank in others if not begun.seeing[rank]}
        files.update({file_name(rank): self._answer(begun, rank) for rank in others if begun.seeing[rank]})
        return files

    def _answer(self, begun: Begun, rank: int) -> dict[str, Any]:
        """Wait for what a rank posts about its file."""
        key = _key(begun, rank)
        # A blocking read would hold the connection that the training's own messages use.
        text = _wait(lambda: self._distributed.posted_or_none(key), f"Rank {rank} has not written its part")
        self._distributed.forget(key)
        answer = json.loads(text)
        if "error" in answer:
            raise CheckpointStorageError(f"Rank {rank} cannot write its part of the checkpoint: {answer['error']}")
        return dict(answer)

    def _send(self, content: TensorFile) -> None:
        pieces = _Pieces(lambda piece: self._distributed.send_from(piece, 0, self._group))
        pieces.write(content.size_bytes.to_bytes(_LENGTH_BYTES, "little"))
        pieces.flush()
        content.write(pieces)
        pieces.flush()

    def _receive(self, begun: Begun, rank: int) -> dict[str, Any]:
        """Write a file that a rank sends. A full disk does not end the sending, which would block the rank."""
        length = bytearray(_LENGTH_BYTES)
        self._distributed.receive_into(_bytes_tensor(length), rank, self._group)
        rest = size = int.from_bytes(length, "little")
        digest = hashlib.sha256()
        memory = bytearray(min(_PIECE_BYTES, size))
        file = _LenientFile(Path(begun.place) / file_name(rank))
        while rest:
            view = memoryview(memory)[: min(_PIECE_BYTES, rest)]
            self._distributed.receive_into(_bytes_tensor(view), rank, self._group)
            rest -= len(view)
            digest.update(view)
            file.write(view)
        file.close()
        return {"size_bytes": size, "sha256": digest.hexdigest()}


class _Pieces:
    """File object that sends what is written to it, in pieces of one size and a last one.

    :param send: gets each piece as a tensor of bytes
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        self._memory = bytearray(_PIECE_BYTES)
        self._held = 0

    def write(self, data: Any) -> int:
        """Take all of ``data``."""
        rest = memoryview(data).cast("B")
        size = rest.nbytes
        while rest.nbytes:
            count = min(rest.nbytes, _PIECE_BYTES - self._held)
            self._memory[self._held : self._held + count] = rest[:count]
            self._held += count
            rest = rest[count:]
            if self._held == _PIECE_BYTES:
                self.flush()
        return size

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            self._send(_bytes_tensor(memoryview(self._memory)[: self._held]))
            self._held = 0


class _LenientFile:
    """File that keeps its first error until it is closed."""

    def __init__(self, path: Path) -> None:
        self._error: OSError | None = None
        self._file: Any = None
        try:
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            self._error = error

    def write(self, view: memoryview) -> None:
        """Write all of a view, unless an earlier write failed."""
        rest = view
        try:
            while rest.nbytes and self._error is None:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._error = error

    def close(self) -> None:
        """Flush the file to the disk.

        :raises OSError: this or a write failed
        """
        if self._file is not None:
            with self._file:
                if self._error is None:
                    os.fsync(self._file.fileno())
        if self._error is not None:
            raise self._error


def _bytes_tensor(memory: Any) -> Any:
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8)


def _key(begun: Begun, rank: int) -> str:
    return f"checkpoint/{begun.number}/{rank}"


def _inode(place: Path | str | None) -> int | None:
    """Return what tells a folder from one of the same name on another host."""
    if place is None or storage.is_url(place):
        return None
    try:
        return os.stat(place).st_ino
    except OSError:
        return None


def _wait(look: Callable[[], str | None], words: str) -> str:
    deadline = time.monotonic() + LIMIT_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise CheckpointError(f"{words} within {LIMIT_S / 3600:.0f} hours. Check its log and its storage.")
        time.sleep(_POLL_S)
    return found
