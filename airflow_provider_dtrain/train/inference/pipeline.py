"""Pipeline of one rank: reads ahead, computes, and writes in the background, shard by shard."""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.files.digests import describe
from airflow_provider_dtrain.train.inference.bad_rows import copied_columns, isolated
from airflow_provider_dtrain.train.inference.inputs import BadRow, Input, InputBatch
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Ledger
from airflow_provider_dtrain.train.inference.metrics import ShardMetrics
from airflow_provider_dtrain.train.inference.output_folder import explained
from airflow_provider_dtrain.train.inference.outputs.marks import ERROR_CHARACTERS, marked
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
from airflow_provider_dtrain.train.inference.outputs.result_copy import copied
from airflow_provider_dtrain.train.inference.outputs.rows import to_rows
from airflow_provider_dtrain.train.inference.outputs.writers import PartWriter
from airflow_provider_dtrain.train.inference.shards import Shard

if TYPE_CHECKING:
    import pyarrow

#: Batches that are read ahead, and batches that wait for the writer.
READ_AHEAD = 4
WRITE_BEHIND = 4
#: Bad rows of a shard that its entry names.
BAD_ROWS_MOST = 20
_END = object()


class ShardReader(threading.Thread):
    """Reads the batches of one shard ahead of their computation.

    :param after: reader of the shard before, which must have ended because one thread at a time uses the input
    :param pins: copy tensors to page-locked memory, from which the GPU fetches them in the background
    """

    def __init__(
        self, source: Input, shard: Shard, batch_size: int, *, pins: bool, after: threading.Thread | None = None
    ) -> None:
        super().__init__(name=f"dtrain-read-{shard.index}", daemon=True)
        self._source = source
        self._after = after
        self._shard = shard
        self._batch_size = batch_size
        self._pins = pins
        self._batches: queue.Queue[Any] = queue.Queue(maxsize=READ_AHEAD)
        self._left = threading.Event()
        self.start()

    def __iter__(self) -> Iterator[InputBatch]:
        """Yield the batches. Raises what reading raised."""
        while True:
            item = self._batches.get()
            if item is _END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading."""
        self._left.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._batches.get_nowait()
        self.join()

    def run(self) -> None:
        """Read to the end of the shard, or until :meth:`close`."""
        try:
            if self._after is not None:
                self._after.join()
                self._after = None
            for batch in self._source.batches(self._shard, self._batch_size):
                if self._pins:
                    batch = pinned(batch)
                if not self._put(batch):
                    return
            self._put(_END)
        except BaseException as error:  # raised where the batches are used
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._left.is_set():
            try:
                self._batches.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False


def pinned(batch: InputBatch) -> InputBatch:
    """Return a batch whose tensors are in page-locked memory."""
    from torch.utils.data._utils.pin_memory import pin_memory

    batch.data = pin_memory(batch.data)
    return batch


@dataclass
class Work:
    """A shard on its way through the pipeline."""

    shard: Shard
    reader: ShardReader
    metrics: ShardMetrics = field(default_factory=ShardMetrics)
    started_at: float = field(default_factory=time.monotonic)
    rows: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)
    #: First rows of the output, if they were asked for.
    first_rows: list[pyarrow.RecordBatch] = field(default_factory=list)
    #: First error of any stage. The shard's output is discarded.
    error: BaseException | None = None


class PartOutput:
    """The part of one shard, written by the writer's thread.

    :param previews: number of first rows that are kept
    """

    def __init__(self, ledger: Ledger, options: OutputOptions, previews: int = 0) -> None:
        self._ledger = ledger
        self._options = options
        self._previews = previews
        #: Bad rows that wait for the next rows, and no rows with the columns of the last ones.
        self._bad_rows: list[BadRow] = []
        self._none: pyarrow.RecordBatch | None = None
        self._first: list[pyarrow.RecordBatch] = []
        self._open: contextlib.ExitStack | None = None
        self._path: Any = None
        self._file: Any = None
        self._writer: PartWriter | None = None

    def write(self, result: Any, batch: InputBatch) -> None:
        """Append the rows of one batch."""
        rows = to_rows(result, batch, self._options)
        if rows is None:
            return
        self._write(marked(rows, batch.ids, self._bad_rows, self._options))
        self._bad_rows.clear()

    def mark(self, bad_rows: Sequence[BadRow]) -> None:
        """Append rows for bad rows, with the next batch or at the end: before, the columns may not be known."""
        if self._options.marks:
            self._bad_rows += bad_rows

    def _write(self, rows: pyarrow.RecordBatch) -> None:
        self._none = rows.slice(0, 0)
        if self._previews > 0:
            self._first.append(rows.slice(0, self._previews))
            self._previews -= rows.num_rows
        if self._writer is None:
            self._open = contextlib.ExitStack()
            self._path = self._open.enter_context(self._ledger.folder.scratch())
            with explained(self._ledger.folder.location):
                self._file = self._open.enter_context(self._path.open("wb"))
            self._writer = PartWriter(self._file, self._options)
        self._writer.write(rows)

    def finish(self, work: Work) -> FinishedShard:
        """Deliver the part to the output folder and return its entry, which is not recorded yet.

        :raises InputError: bad rows are marked in the output, and the shard has no other ones
        """
        if self._bad_rows and self._none is not None:
            self._write(marked(self._none, (), self._bad_rows, self._options))
        elif self._bad_rows and not work.rows:
            raise InputError(_no_row(work))
        work.first_rows = self._first
        bad_rows = sorted(work.bad_rows, key=lambda row: row.row_id)
        entry = FinishedShard(
            shard=work.shard.index,
            run=self._ledger.run,
            part=None,
            rows=0,
            size=0,
            sha256="",
            metrics=work.metrics.parts(),
            rows_read=work.rows,
            rows_bad=len(work.bad_rows),
            bad_rows=[[row.row_id, row.name, row.error[:ERROR_CHARACTERS]] for row in bad_rows[:BAD_ROWS_MOST]],
        )
        if self._writer is None or self._open is None:
            return entry
        # Leaving the block closes the file, which a full disk refuses: no fault of the shard, which would be set aside.
        with explained(self._ledger.folder.location), self._open:
            info = self._writer.close()
            self._file.close()
            written = describe(self._path)
            self._ledger.folder.deliver(self._path, self._ledger.delivery_name(work.shard.index))
        part = self._ledger.part_name(work.shard.index)
        return replace(
            entry,
            part=part,
            rows=info.rows,
            size=written["size_bytes"],
            sha256=written["sha256"],
            schema=info.schema,
        )

    def discard(self) -> None:
        """Remove the incomplete part."""
        if self._open is not None:
            # Closing flushes, which a full disk refuses again.
            with contextlib.suppress(OSError):
                self._open.close()


def _no_row(work: Work) -> str:
    first = work.bad_rows[0]
    return f"No row of the shard can be read or computed. The first error, of {first.name}: {first.error}"


class Pipeline:
    """Takes shards from reading to their entries. The computation runs in the caller's thread.

    :param process: batch and its index in the shard -> rows
    :param begin: called before each batch with the shard's metrics and the rows of the batch
    :param move: moves a batch to the device
    :param beat: called after each batch
    :param record: called by the writer's thread with the entry of a complete shard
    """

    def __init__(
        self,
        source: Input,
        new_output: Callable[[], PartOutput],
        process: Callable[[Any, int], Any],
        *,
        begin: Callable[[ShardMetrics, int], None],
        move: Callable[[Any], Any],
        beat: Callable[[], None],
        record: Callable[[Work, FinishedShard], None],
        pins: bool,
    ) -> None:
        self._source = source
        self._new_output = new_output
        self._process = process
        self._begin = begin
        self._move = move
        self._beat = beat
        self._record = record
        self._pins = pins
        if pins:
            # In this thread: readers would import it at the same time as the processor imports other parts of torch.
            importlib.import_module("torch.utils.data._utils.pin_memory")
        self._reader: ShardReader | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dtrain-write")
        self._behind = threading.BoundedSemaphore(WRITE_BEHIND)
        self._failed: queue.SimpleQueue[Work] = queue.SimpleQueue()

    def read(self, shard: Shard, batch_size: int) -> Work:
        """Begin to read a shard."""
        self._reader = ShardReader(self._source, shard, batch_size, pins=self._pins, after=self._reader)
        return Work(shard, self._reader)

    def compute(self, work: Work, *, isolates: bool = False) -> None:
        """Compute a shard. Its last rows are written and its entry is recorded in the background.

        :param isolates: rows that cannot be computed are bad rows, as long as others of the shard can
        """
        output = self._new_output()
        are_computed = False
        try:
            index = 0
            for batch in work.reader:
                if work.error is not None:
                    break
                if batch.bad_rows:
                    self._mark(work, output, batch)
                if not batch.rows:
                    continue
                for part, result in self._results(work, batch, index, isolates=isolates):
                    if part.rows:
                        work.rows += part.rows
                        self._submit(work, output.write, result, part)
                    else:
                        are_computed = True
                        self._mark(work, output, part)
                index += 1
                self._beat()
            if are_computed and not work.rows:
                raise InputError(_no_row(work))
        except Exception as error:
            work.error = work.error or error
        except SystemExit as error:
            work.error = work.error or RuntimeError(f"The processor called sys.exit({error.code!r}).")
        finally:
            work.reader.close()
        self._submit(work, self._finish, work, output, always=True)

    def _mark(self, work: Work, output: PartOutput, batch: InputBatch) -> None:
        work.bad_rows += batch.bad_rows
        self._submit(work, output.mark, batch.bad_rows)

    def _results(
        self, work: Work, batch: InputBatch, index: int, *, isolates: bool
    ) -> Iterator[tuple[InputBatch, Any]]:
        """Yield the batch with its result, or its parts if some of its rows cannot be computed."""
        if not isolates:
            self._begin(work.metrics, batch.rows)
            yield batch, copied(self._process(self._move(batch.data), index))
            return

        def process(part: InputBatch) -> Any:
            metrics = work.metrics.copy()
            self._begin(metrics, part.rows)
            result = copied(self._process(self._move(copied_columns(part.data)), index))
            # Metrics that were added before an exception do not count.
            work.metrics = metrics
            return result

        yield from isolated(batch, process, work.shard.label)

    def failures(self) -> Iterator[Work]:
        """Yield the shards that have failed in any stage since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._failed.get_nowait()

    def drain(self) -> None:
        """Wait until the writer has nothing left to do."""
        self._writer.submit(int).result()

    def close(self) -> None:
        """End the writer's thread."""
        self._writer.shutdown(wait=True)

    def _submit(self, work: Work, function: Callable[..., Any], *arguments: Any, always: bool = False) -> None:
        self._behind.acquire()
        try:
            self._writer.submit(self._run, work, function, arguments, always)
        except BaseException:
            self._behind.release()
            raise

    def _run(self, work: Work, function: Callable[..., Any], arguments: tuple[Any, ...], always: bool) -> None:
        try:
            if always or work.error is None:
                function(*arguments)
        except BaseException as error:  # of this shard alone; the rank decides what follows
            work.error = work.error or error
        finally:
            self._behind.release()

    def _finish(self, work: Work, output: PartOutput) -> None:
        if work.error is None:
            try:
                self._record(work, output.finish(work))
            except BaseException as error:
                work.error = error
        if work.error is not None:
            output.discard()
            self._failed.put(work)
