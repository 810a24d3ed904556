"""The interface of an input: a plan, and the batches of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_dtrain.train.inference.shards import InputPlan, Shard

if TYPE_CHECKING:
    import pyarrow


@dataclass
class InputBatch:
    """Rows of one shard, as the processor gets them."""

    #: On the CPU. Tables: column -> tensor or list. Files: ``path`` and ``bytes``. Images: ``path`` and ``image``.
    #: Data sets: the return value of the collate function.
    data: Any
    rows: int
    #: The input columns that are passed through to the output; None without such columns.
    passed: pyarrow.RecordBatch | None
    #: Row id of the first row. The ids of the other rows follow it without gaps.
    first_row: int


class Input(Protocol):
    """A source of batches. One thread at a time uses it, and one iterator of :meth:`batches` at a time is open."""

    def plan(self) -> InputPlan:
        """Return the division into shards. Only rank 0 calls it.

        :raises InputError: the input is empty, a file cannot be read, or the columns of two files differ
        """

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a shard in order. Only the last one may be smaller.

        :raises InputError: the source cannot be read, or is not the one that was planned
        """
