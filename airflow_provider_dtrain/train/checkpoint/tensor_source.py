"""Source of a checkpoint's tensors: its files, read block by block."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES, count, row_by_row
from airflow_provider_dtrain.train.checkpoint.tensor_index import Box, Chunk, SavedTensor, TensorIndex
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.sharded_tensors import held_part, is_dtensor

#: Largest block that is read at once: the memory that a restore needs beside the tensors themselves.
BLOCK_BYTES = 8 << 20


class TensorSource:
    """Tensors in files. A rank that does not see the folder gets its blocks from rank 0.

    All ranks create it at the same time.

    :param folder: folder of the checkpoint; None: this rank does not see it
    """

    def __init__(self, index: TensorIndex, folder: Path | None, distributed: Distributed) -> None:
        self._seeing = distributed.allgather(folder is not None)
        self._index = index
        self._folder = folder
        self._distributed = distributed

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._index[key].shape

    def dtype(self, key: str) -> Any:
        """Return the ``torch.dtype`` of a tensor."""
        return DTYPES.by_name[self._index[key].dtype]

    def is_sharded(self, key: str) -> bool:
        """Return whether the ranks that saved a tensor held parts of it."""
        return self._index[key].is_sharded

    def strides(self, key: str) -> tuple[int, ...]:
        """Return the strides that a plain tensor had in memory."""
        entry = self._index[key]
        return row_by_row(entry.shape) if entry.strides is None else entry.strides

    def load(self, wanted: Sequence[tuple[str, Any]]) -> None:
        """Copy saved numbers into tensors. Called by all ranks, unless all of them see the folder.

        :param wanted: keys, and this rank's tensors for them, sharded in any way
        :raises CheckpointError: a file ends too early
        """
        blocks = (block for key, target in wanted for block in blocks_for(self._index[key], target))
        if all(self._seeing):
            self._read(blocks)
        else:
            self._read_or_receive(list(blocks))

    def pieces(self, key: str) -> Iterator[Any]:
        """Yield runs of whole rows of a tensor, each of about the size of a block."""
        import torch

        entry = self._index[key]
        for box in _runs(entry):
            piece = torch.empty(box.sizes, dtype=self.dtype(key))
            common = [(chunk, chunk.box.overlap(box)) for chunk in entry.chunks]
            self._read(
                block
                for chunk, part in common
                if part is not None
                for block in _blocks(entry.dtype, chunk, part, piece[part.within(box)])
            )
            yield piece

    def _read(self, blocks: Iterator[Block]) -> None:
        assert self._folder is not None
        with _Files(self._folder) as files:
            buffer = _Buffer()
            for block in blocks:
                files.read(block.file, block.position, buffer.of(block.size_bytes))
                block.put(buffer)

    def _read_or_receive(self, blocks: list[Block]) -> None:
        mine = None if self._folder is not None else [(b.file, b.position, b.size_bytes) for b in blocks]
        requests = self._distributed.gather(mine)
        buffer = _Buffer()
        if self._folder is None:
            for block in blocks:
                self._distributed.receive_into(buffer.tensor(block.size_bytes), 0)
                block.put(buffer)
            return
        if requests is not None:
            self._serve([(rank, request) for rank, request in enumerate(requests) if request is not None])
        self._read(iter(blocks))

    def _serve(self, requests: list[tuple[int, list[tuple[str, int, int]]]]) -> None:
        """Send the blocks that ranks requested, one of each rank in turn."""
        assert self._folder is not None
        buffer = _Buffer()
        longest = max(len(request) for _, request in requests)
        with _Files(self._folder) as files:
            for number in range(longest):
                for rank, request in requests:
                    if number < len(request):
                        file, position, size = request[number]
                        files.read(file, position, buffer.of(size))
                        self._distributed.send_from(buffer.tensor(size), rank)


@dataclass(frozen=True)
class Block:
    """Consecutive bytes of a file, and the part of a tensor that gets numbers from them."""

    file: str
    position: int
    dtype: str
    #: Shape of all numbers of the block, and the part of them that is wanted.
    shape: tuple[int, ...]
    taken: tuple[slice, ...]
    target: Any

    @property
    def size_bytes(self) -> int:
        """Bytes of the block."""
        return count(self.shape) * DTYPES.size_bytes(self.dtype)

    def put(self, buffer: _Buffer) -> None:
        """Copy the wanted numbers from the buffer that holds the block."""
        numbers = buffer.tensor(self.size_bytes).view(DTYPES.by_name[self.dtype]).view(self.shape)
        self.target.copy_(numbers[self.taken])


def blocks_for(entry: SavedTensor, target: Any) -> Iterator[Block]:
    """Yield the blocks of a saved tensor that fill this rank's part of a tensor."""
    for box, part in _held(target):
        for chunk in entry.chunks:
            common = chunk.box.overlap(box)
            if common is not None:
                yield from _blocks(entry.dtype, chunk, common, part[common.within(box)] if common.sizes else part)


def _runs(entry: SavedTensor) -> Iterator[Box]:
    """Yield consecutive parts of a tensor: runs of rows, a row being what follows the first fitting dimension."""
    shape = entry.shape
    width = DTYPES.size_bytes(entry.dtype)
    strides = [count(shape[dim + 1 :]) * width for dim in range(len(shape))]
    level = next((dim for dim, stride in enumerate(strides) if stride <= BLOCK_BYTES), None)
    if level is None:
        yield Box((), ())
        return
    rows = max(1, BLOCK_BYTES // max(1, strides[level]))
    inner = shape[level + 1 :]
    for outer in itertools.product(*(range(n) for n in shape[:level])):
        for first in range(0, shape[level], rows):
            number = min(rows, shape[level] - first)
            yield Box((*outer, first, *(0 for _ in inner)), (*(1 for _ in outer), number, *inner))


def _blocks(dtype: str, chunk: Chunk, wanted: Box, target: Any) -> Iterator[Block]:
    """Yield blocks of whole rows of a chunk.

    A row is what follows the first dimension in which the chunk's rows fit into a block. Rows are read as a whole, so
    a column of the chunk costs the bytes of all columns, but the same memory.
    """
    width = DTYPES.size_bytes(dtype)
    sizes = chunk.box.sizes
    if not sizes:
        yield Block(chunk.file, chunk.position, dtype, (), (), target)
        return
    starts = [a - b for a, b in zip(wanted.offsets, chunk.box.offsets)]
    strides = [count(sizes[dim + 1 :]) * width for dim in range(len(sizes))]
    level = next(dim for dim, stride in enumerate(strides) if stride <= BLOCK_BYTES)
    rows = max(1, BLOCK_BYTES // strides[level])
    inner = tuple(slice(a, a + n) for a, n in zip(starts[level + 1 :], wanted.sizes[level + 1 :]))
    for outer in itertools.product(*(range(n) for n in wanted.sizes[:level])):
        base = chunk.position + sum((start + i) * s for start, i, s in zip(starts, outer, strides))
        for first in range(0, wanted.sizes[level], rows):
            number = min(rows, wanted.sizes[level] - first)
            position = base + (starts[level] + first) * strides[level]
            part = target[(*outer, slice(first, first + number))]
            yield Block(chunk.file, position, dtype, (number, *sizes[level + 1 :]), (slice(None), *inner), part)


def _held(target: Any) -> list[tuple[Box, Any]]:
    """Return this rank's part of a tensor and its place in the whole, if it holds numbers."""
    if not is_dtensor(target):
        shape = tuple(target.shape)
        return [(Box((0,) * len(shape), shape), target.detach())]
    held = held_part(target)
    return [] if held is None else [(Box(held[0], held[1]), held[2])]


class _Buffer:
    """Memory for one block, used again for the next."""

    def __init__(self) -> None:
        self._memory = bytearray(0)

    def of(self, size: int) -> memoryview:
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]

    def tensor(self, size: int) -> Any:
        """Return the same room as a tensor of bytes."""
        import torch

        return torch.frombuffer(self.of(size), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)


class _Files:
    """Files of one folder, each opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def read(self, name: str, position: int, view: memoryview) -> None:
        """Fill a view with the bytes from a position on.

        :raises CheckpointError: the file ends earlier or cannot be read
        """
        try:
            if name not in self._open:
                self._open[name] = os.open(self._folder / name, os.O_RDONLY)
            done = 0
            while done < len(view):
                read = os.preadv(self._open[name], [view[done:]], position + done)
                if read == 0:
                    raise OSError("the file ends too early")
                done += read
        except OSError as error:
            raise CheckpointError(f"{self._folder / name} cannot be read: {error}") from error


def visible_folder(folder: Path | None, distributed: Distributed, name: str) -> Path | None:
    """Return rank 0's folder on a rank that sees the same folder, and None elsewhere. Called by all ranks.

    :param folder: the folder, on rank 0
    :param name: a file in it
    """
    mark = _mark(folder / name) if folder is not None else None
    place, mark = distributed.broadcast((str(folder.absolute()), mark) if folder is not None else None)
    return Path(place) if mark is not None and _mark(Path(place) / name) == mark else None


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from a copy of it on another host."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
