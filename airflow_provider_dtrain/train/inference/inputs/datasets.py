"""Data sets from code as input: map-style, iterable, or iterable with shards of their own."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.batch import Input, InputBatch
from airflow_provider_dtrain.train.inference.shards import (
    DATASET,
    SOURCE_ROWS,
    InputPlan,
    Shard,
    default_shard_rows,
)

log = logging.getLogger(__name__)

#: Limits of the default size of a shard, samples.
LEAST_SAMPLES, MOST_SAMPLES = 8, 1024

Collate = Callable[[list[Any]], Any]


class MapDataset(Input):
    """Samples of a data set with a length, by their indices.

    :param shard_rows: most samples of a shard; None: by the length
    """

    def __init__(self, dataset: Any, collate: Collate, shard_rows: int | None, batch_size: int | None = None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._shard_rows = shard_rows
        self._batch_size = batch_size

    def plan(self) -> InputPlan:
        """Return shards of index ranges."""
        return _ranges_plan(self._dataset, len(self._dataset), self._shard_rows, self._batch_size)

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the samples of an index range."""
        if shard.stop > len(self._dataset):
            raise InputError(
                f"The data set {_name(self._dataset)} has {len(self._dataset)} samples on this rank, and {shard.stop} "
                "or more on rank 0. Build the same data set on all ranks."
            )
        for start in range(shard.start, shard.stop, batch_size):
            indices = list(range(start, min(start + batch_size, shard.stop)))
            yield InputBatch(self._collate(self._samples(indices)), len(indices), None, start, has_columns=False)

    def _samples(self, indices: list[int]) -> list[Any]:
        """Return samples the way torch's loaders fetch them."""
        if callable(getattr(self._dataset, "__getitems__", None)):
            return list(self._dataset.__getitems__(indices))
        return [self._dataset[index] for index in indices]


class IterableDataset(Input):
    """Samples of a data set without a length: every rank iterates all, and keeps those of its shards.

    Each iteration must yield the same samples in the same order.
    """

    def __init__(self, dataset: Any, collate: Collate, shard_rows: int | None, batch_size: int | None = None) -> None:
        self._dataset = dataset
        self._collate = collate
        self._shard_rows = shard_rows
        self._batch_size = batch_size
        self._iterator: Iterator[Any] = iter(())
        self._position: int | None = None

    def plan(self) -> InputPlan:
        """Return shards of ranges, whose number one pass through the samples finds."""
        log.info(
            "The data set %s has no length and no shards(): rank 0 iterates it once to count its samples, and each "
            "rank iterates all samples. Give it shards() and open_shard(shard) if its samples are costly.",
            _name(self._dataset),
        )
        return _ranges_plan(self._dataset, sum(1 for _ in self._dataset), self._shard_rows, self._batch_size)

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the samples of a range. A range behind the last one costs only the samples in between."""
        if self._position is None or shard.start < self._position:
            self._iterator, self._position = iter(self._dataset), 0
        while self._position < shard.start:
            self._take(shard.start - self._position, keep=False)
        while self._position < shard.stop:
            start = self._position
            samples = self._take(min(batch_size, shard.stop - start), keep=True)
            yield InputBatch(self._collate(samples), len(samples), None, start, has_columns=False)

    def _take(self, count: int, *, keep: bool) -> list[Any]:
        assert self._position is not None
        before = self._position
        # Unknown while the data set works: an exception in it ends the iterator.
        self._position = None
        samples = list(islice(self._iterator, count)) if keep else []
        found = len(samples) if keep else sum(1 for _ in islice(self._iterator, count))
        if found < count:
            raise InputError(
                f"The data set {_name(self._dataset)} ended after {before + found} samples, the plan has more. "
                "Each iteration must yield the same samples."
            )
        self._position = before + count
        return samples


class ShardedDataset(Input):
    """Samples of a data set that names its shards: ``shards()``, and ``open_shard(shard)`` iterates one."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset = dataset
        self._collate = collate
        self._shards: Sequence[Any] | None = None

    def plan(self) -> InputPlan:
        """Return a shard for each descriptor."""
        descriptors = self._descriptors()
        if not descriptors:
            raise InputError(f"The data set {_name(self._dataset)} is empty: shards() returned none.")
        identity = {"dataset": _name(self._dataset), "shards": len(descriptors), "descriptors": _digest(descriptors)}
        shards = [
            Shard(index, DATASET, 0, 0, None, index * SOURCE_ROWS, {"version": _digest([one])})
            for index, one in enumerate(descriptors)
        ]
        return InputPlan(tuple(shards), identity)

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the samples of a descriptor."""
        descriptors = self._descriptors()
        if shard.index >= len(descriptors) or _digest([descriptors[shard.index]]) != shard.details["version"]:
            raise InputError(
                f"shards() of {_name(self._dataset)} returned other shards than on rank 0 ({shard.label}). "
                "It must return the same list each time."
            )
        samples = iter(self._dataset.open_shard(descriptors[shard.index]))
        first_row = shard.first_row
        while chosen := list(islice(samples, batch_size)):
            yield InputBatch(self._collate(chosen), len(chosen), None, first_row, has_columns=False)
            first_row += len(chosen)

    def _descriptors(self) -> Sequence[Any]:
        if self._shards is None:
            self._shards = list(self._dataset.shards())
        return self._shards


def open_dataset(dataset: Any, collate: Collate | None, shard_rows: int | None, batch_size: int | None = None) -> Any:
    """Return the input of a data set, or of the data set of a torch ``DataLoader``.

    :raises InputError: the object is no data set
    """
    if hasattr(dataset, "dataset") and hasattr(dataset, "collate_fn"):
        collate, dataset = collate or dataset.collate_fn, dataset.dataset
    if collate is None:
        from torch.utils.data import default_collate as collate
    assert collate is not None
    if callable(getattr(dataset, "shards", None)) and callable(getattr(dataset, "open_shard", None)):
        return ShardedDataset(dataset, collate)
    if _is_map(dataset):
        return MapDataset(dataset, collate, shard_rows, batch_size)
    if hasattr(dataset, "__iter__") and not isinstance(dataset, Iterator):
        return IterableDataset(dataset, collate, shard_rows, batch_size)
    raise InputError(
        f"The input must be a data set with __getitem__ and __len__, or one that can be iterated repeatedly, got "
        f"{_name(dataset)}."
    )


def _is_map(dataset: Any) -> bool:
    from torch.utils import data

    return (
        hasattr(dataset, "__getitem__")
        and hasattr(dataset, "__len__")
        and not isinstance(dataset, data.IterableDataset)
    )


def _ranges_plan(dataset: Any, total: int, shard_rows: int | None, batch_size: int | None) -> InputPlan:
    if not total:
        raise InputError(f"The data set {_name(dataset)} is empty.")
    size = shard_rows or default_shard_rows(total, batch_size, least=LEAST_SAMPLES, most=MOST_SAMPLES)
    starts = range(0, total, size)
    stops = [min(start + size, total) for start in starts]
    shards = [Shard(i, DATASET, start, stop, stop - start, start) for i, (start, stop) in enumerate(zip(starts, stops))]
    return InputPlan(tuple(shards), {"dataset": _name(dataset), "rows": total, "shard_rows": shard_rows})


def _name(dataset: Any) -> str:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def _digest(descriptors: Sequence[Any]) -> str:
    """Return a checksum of the descriptors' texts, or their number if a text has a memory address."""
    text = repr(list(descriptors))
    return str(len(descriptors)) if " at 0x" in text else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
