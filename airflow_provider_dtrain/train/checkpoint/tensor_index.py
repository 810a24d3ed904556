"""Index of the tensors of a checkpoint: the parts that each was saved in, and their places in files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES, count
from airflow_provider_dtrain.train.errors import DamagedCheckpointError
from airflow_provider_dtrain.train.values import JsonObject

#: Name of the file.
INDEX = "tensors.json"
#: Most dimensions of a tensor in torch.
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class Box:
    """Part of a tensor: its first index and its length in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def overlap(self, other: Box) -> Box | None:
        """Return the part that both have, or None."""
        starts = tuple(max(a, b) for a, b in zip(self.offsets, other.offsets))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.offsets, self.sizes, other.offsets, other.sizes))
        sizes = tuple(end - start for start, end in zip(starts, ends))
        return Box(starts, sizes) if all(size > 0 for size in sizes) else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the slices that select this part from a tensor that holds another one."""
        return tuple(slice(a - b, a - b + n) for a, b, n in zip(self.offsets, outer.offsets, self.sizes))


@dataclass(frozen=True)
class Chunk:
    """A saved part of a tensor."""

    box: Box
    #: Name of the file, and position of the first byte in it.
    file: str
    position: int


@dataclass(frozen=True)
class SavedTensor:
    """A saved tensor."""

    #: Name in the format of the files, e.g. ``F32``.
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    #: True if the ranks that saved it held parts of it.
    is_sharded: bool
    #: Strides of a plain tensor whose numbers are not row by row in memory.
    strides: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return count(self.shape) * DTYPES.size_bytes(self.dtype)


class TensorIndex(Mapping[str, SavedTensor]):
    """Saved tensors by key."""

    def __init__(self, entries: Mapping[str, SavedTensor]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, key: str) -> SavedTensor:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def text(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({key: _document(entry) for key, entry in self.items()}, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, text: bytes, files: Mapping[str, Any]) -> TensorIndex:
        """Return the index in a file. Nothing that it says is trusted.

        :param files: files of the checkpoint's metadata, with their sizes
        :raises DamagedCheckpointError: an entry is not as :meth:`text` writes it, or a part is missing
        """
        sizes = {name: file["size_bytes"] for name, file in files.items()}
        key = ""
        try:
            entries = {}
            for key, document in json.loads(text).items():
                entries[key] = _entry(document, sizes)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpointError(f"{INDEX} cannot be read: {key[:200]}: {str(error)[:200]}") from error
        # A small file must not become a large tensor.
        if sum(entry.size_bytes for entry in entries.values()) > sum(sizes.values()):
            raise DamagedCheckpointError(f"{INDEX} describes more bytes than the files of the checkpoint have")
        return cls(entries)


def _document(entry: SavedTensor) -> JsonObject:
    chunks = [[c.file, c.position, list(c.box.offsets), list(c.box.sizes)] for c in entry.chunks]
    strides = {} if entry.strides is None else {"strides": list(entry.strides)}
    return {"dtype": entry.dtype, "shape": list(entry.shape), **strides, "sharded": entry.is_sharded, "chunks": chunks}


def _entry(document: Any, sizes: Mapping[str, int]) -> SavedTensor:
    """Return an entry of the file.

    :raises ValueError: a value is out of its range
    """
    dtype = document["dtype"]
    shape = _numbers(document["shape"])
    if dtype not in DTYPES.by_name:
        raise ValueError(f"dtype {dtype!r} is not known to this version of torch")
    if type(document["sharded"]) is not bool:
        raise ValueError("sharded must be true or false")
    chunks = tuple(_chunk(one, shape, dtype, sizes) for one in document["chunks"])
    refuse_gaps(shape, [chunk.box for chunk in chunks])
    strides = _strides(document["strides"], shape) if "strides" in document else None
    return SavedTensor(dtype, shape, chunks, document["sharded"], strides)


def _chunk(document: Any, shape: tuple[int, ...], dtype: str, sizes: Mapping[str, int]) -> Chunk:
    file, position, offsets, lengths = document
    box = Box(_numbers(offsets), _numbers(lengths))
    if not len(box.offsets) == len(box.sizes) == len(shape):
        raise ValueError("a part has another number of dimensions than its tensor")
    if any(a + n > size for a, n, size in zip(box.offsets, box.sizes, shape)):
        raise ValueError(f"the part at {list(box.offsets)} exceeds the shape {list(shape)}")
    if _numbers([position])[0] + count(box.sizes) * DTYPES.size_bytes(dtype) > sizes[file]:
        raise ValueError(f"the part at {list(box.offsets)} exceeds the file {file}")
    return Chunk(box, file, position)


def _strides(values: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances of a tensor's numbers, which must lie in memory without gaps."""
    strides = _numbers(values)
    if len(strides) != len(shape):
        raise ValueError("the strides have another number of dimensions than their tensor")
    end = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size != 1):
        if stride != end:
            raise ValueError(f"the strides {list(strides)} leave gaps in the shape {list(shape)}")
        end *= size
    return strides


def _numbers(values: Any) -> tuple[int, ...]:
    if type(values) is not list or len(values) > _MOST_DIMENSIONS:
        raise ValueError(f"a list of at most {_MOST_DIMENSIONS} whole numbers is expected")
    if any(type(value) is not int or not 0 <= value < 1 << 62 for value in values):
        raise ValueError("whole numbers from 0 are expected")
    return tuple(values)


def refuse_gaps(shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Raise unless the parts cover a tensor exactly once.

    :raises ValueError: parts are missing, or two overlap
    """
    if sum(count(box.sizes) for box in boxes) != count(shape):
        raise ValueError(f"the parts do not add up to the shape {list(shape)}")
    # Ranks shard along few dimensions: parts that begin later than all before them end overlap none of them.
    ordered = sorted(boxes, key=lambda box: box.offsets)
    active: list[Box] = []
    for box in ordered:
        first = box.offsets[0] if box.offsets else 0
        active = [one for one in active if not one.offsets or one.offsets[0] + one.sizes[0] > first]
        if any(one.overlap(box) for one in active):
            raise ValueError(f"two parts overlap at {list(box.offsets)}")
        active.append(box)
