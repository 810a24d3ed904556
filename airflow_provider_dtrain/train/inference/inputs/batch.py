"""The interface of an input: a plan, and the batches of a shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_dtrain.train.inference.shards import InputPlan, Shard

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class BadRow:
    """A row of the input that could not be read or computed."""

    row_id: int
    #: File or line, for messages.
    name: str
    error: str


@dataclass
class InputBatch:
    """Rows of one shard, as the processor gets them."""

    #: On the CPU. Tables: column -> tensor or list. Files: ``path`` and ``bytes``. Images: ``path`` and ``image``.
    #: Data sets: the return value of the collate function.
    data: Any
    rows: int
    #: The input columns that are passed through to the output; None without such columns.
    passed: pyarrow.RecordBatch | None
    #: Row id of the first row. Without ``row_ids``, the ids of the other rows follow it without gaps.
    first_row: int
    #: Row ids of all rows, if rows between them were left out.
    row_ids: Sequence[int] | None = None
    #: Rows that were left out before or between these. A batch may have no other ones.
    bad_rows: Sequence[BadRow] = ()
    #: ``data`` is a map of columns, so that some of the rows are a batch as well.
    has_columns: bool = True
    #: Column of the input with maps -> its type, which Python's values do not tell.
    maps: Mapping[str, pyarrow.DataType] = field(default_factory=dict)

    @property
    def ids(self) -> Sequence[int]:
        """Row ids of all rows."""
        return range(self.first_row, self.first_row + self.rows) if self.row_ids is None else self.row_ids


class Input(Protocol):
    """A source of batches. One thread at a time uses it, and one iterator of :meth:`batches` at a time is open."""

    def plan(self) -> InputPlan:
        """Return the division into shards. Only rank 0 calls it.

        :raises InputError: the input is empty, a file cannot be read, or the columns of two files differ
        """

    def prepare(self, shards: Sequence[Shard]) -> None:
        """Import what the shards need, before threads read them. Each rank calls it."""
        return

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a shard in order. Only the last one may be smaller.

        :raises InputError: the source cannot be read, or is not the one that was planned
        """
