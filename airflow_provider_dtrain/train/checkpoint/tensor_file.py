"""Tensor files: the safetensors format, written tensor by tensor and without a copy of the whole.

Source: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import ctypes
import functools
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.train.values import JsonObject

#: Name in a file -> (name in torch, bytes of one number). Older versions of torch lack some.
_NAMES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "C64": ("complex64", 8),
}
#: The header is padded, so that numbers begin at a multiple of this.
_ALIGNMENT_BYTES = 8


class _Dtypes:
    """Types of numbers that a file holds. torch is imported at the first use."""

    @functools.cached_property
    def by_name(self) -> Mapping[str, Any]:
        """Name in a file -> ``torch.dtype``."""
        import torch

        known = {name: getattr(torch, torch_name, None) for name, (torch_name, _) in _NAMES.items()}
        return {name: dtype for name, dtype in known.items() if dtype is not None}

    @functools.cached_property
    def by_dtype(self) -> Mapping[Any, str]:
        """``torch.dtype`` -> name in a file."""
        return {dtype: name for name, dtype in self.by_name.items()}

    @staticmethod
    def size_bytes(name: str) -> int:
        """Return the bytes of one number."""
        return _NAMES[name][1]


DTYPES = _Dtypes()


@dataclass(frozen=True)
class TensorSlot:
    """Place of one tensor in a file."""

    name: str
    #: Name in the file's format, e.g. ``F32``.
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return count(self.shape) * DTYPES.size_bytes(self.dtype)


def count(shape: Iterable[int]) -> int:
    """Return the number of elements of a shape. Python's whole numbers do not overflow."""
    product = 1
    for size in shape:
        product *= size
    return product


def row_by_row(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose numbers are row by row in memory: those of ``Tensor.contiguous``."""
    return tuple(count(max(1, size) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def header(slots: Sequence[TensorSlot], facts: Mapping[str, str] | None = None) -> tuple[bytes, list[int]]:
    """Return the beginning of a file, and the position of each tensor in the file.

    :param facts: free text for the entry ``__metadata__``
    """
    entries: JsonObject = {"__metadata__": {"format": "pt", **(facts or {})}}
    starts = []
    position = 0
    for slot in slots:
        end = position + slot.size_bytes
        entries[slot.name] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": [position, end]}
        starts.append(position)
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    begin = struct.pack("<Q", len(text)) + text
    return begin, [len(begin) + start for start in starts]


class TensorFile:
    """Content of a tensor file whose tensors are in memory.

    :param tensors: one for each slot, on the CPU
    """

    def __init__(self, slots: Sequence[TensorSlot], tensors: Sequence[Any]) -> None:
        self._slots = slots
        self._tensors = tensors

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(header(self._slots)[0]) + sum(slot.size_bytes for slot in self._slots)

    @property
    def named(self) -> list[tuple[str, Any]]:
        """The tensors with their names in the file."""
        return [(slot.name, tensor) for slot, tensor in zip(self._slots, self._tensors)]

    def write(self, file: Any) -> None:
        """Write everything to a file object.

        :raises OSError: the file rejects a write
        """
        file.write(header(self._slots)[0])
        for tensor in self._tensors:
            file.write(memory(tensor.contiguous()))


def memory(tensor: Any) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU without a copy. The view keeps the tensor alive."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    # Works without numpy and for every type of number.
    array = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    array._tensor = tensor
    return memoryview(array).cast("B")
