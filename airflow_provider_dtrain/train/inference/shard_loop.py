"""Loop of one rank over shards: claims, retries, and shards that are set aside."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

from airflow_provider_dtrain.train.errors import (
    BadShardError,
    InputError,
    InputUnavailableError,
    OutputError,
    ResultRowsError,
    SchemaError,
    SetupError,
)
from airflow_provider_dtrain.train.files.lease import Lease
from airflow_provider_dtrain.train.inference.adapters import Processor
from airflow_provider_dtrain.train.inference.inputs import Input
from airflow_provider_dtrain.train.inference.ledger import ERROR_CHARACTERS, NULL, FinishedShard, Ledger, difference
from airflow_provider_dtrain.train.inference.metrics import ShardMetrics
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
from airflow_provider_dtrain.train.inference.pipeline import PartOutput, Pipeline, Work
from airflow_provider_dtrain.train.inference.preview import preview_of
from airflow_provider_dtrain.train.inference.processor import InferenceContext
from airflow_provider_dtrain.train.inference.run import InferenceRun
from airflow_provider_dtrain.train.inference.shards import Shard
from airflow_provider_dtrain.train.inference.work_queue import WorkQueue
from airflow_provider_dtrain.train.process.heartbeat import COMPUTE, DATA, HERE
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Failures after which a shard fails the run, or is set aside.
MOST_TRIES = 3
#: Bad rows of a shard that are reported, and characters of each name and error. The manifest has more.
BAD_ROWS_SHOWN, BAD_ROW_CHARACTERS = 3, 500


class ShardLoop:
    """One rank's way through the shards that it claims.

    A shard that has failed before is computed alone, with nothing read ahead or written behind. After an attempt that
    died in a shard, every shard is: the next death is then attributed to the right one.

    :param shards: all shards of the input, in their order
    :param owner: owner of the output folder; rank 0 only
    """

    def __init__(
        self,
        run: InferenceRun,
        queue: WorkQueue,
        ledger: Ledger,
        source: Input,
        processor: Processor,
        context: InferenceContext,
        options: OutputOptions,
        shards: Sequence[Shard],
        batch_size: int,
        owner: Lease | None,
    ) -> None:
        self._run = run
        self._ctx = run.ctx
        self._queue = queue
        self._ledger = ledger
        self._shards = shards
        self._batch_size = batch_size
        self._owner = owner
        self._options = options
        self._context = context
        self._skips = run.settings.get("on_bad_shard") == "skip"
        self._sets_rows_aside = (run.settings.get("on_bad_row") or "fail") != "fail"
        #: Failures per shard, in earlier attempts and in this one.
        self._tries = dict(run.ctx._env.shard_failures)
        #: An earlier attempt died in a shard that is not known for certain, so one shard at a time is on its way.
        self._is_careful = bool(self._tries)
        self._again: list[Shard] = []
        self._has_succeeded = False
        #: Rows of the preview that this rank may still report.
        self._previews = options.preview
        #: Column of the output -> its type in the first shard of the gang that has values in it.
        self._types: dict[str, str] = {}
        #: The run was asked to stop, so shards may be missing.
        self.stopped = False
        self._pipeline = Pipeline(
            source,
            self._new_output,
            processor.process,
            begin=self._begin,
            move=run.ctx.to_device,
            beat=self._beat,
            record=self._record,
            pins=getattr(run.ctx.device, "type", "cpu") == "cuda",
        )

    def work(self) -> None:
        """Compute shards until none is left, or the run is asked to stop.

        :raises BadShardError: a shard failed too often, and the configuration does not skip it
        """
        try:
            self._work()
        finally:
            self._pipeline.close()

    def _work(self) -> None:
        ahead: Work | None = None
        while not self._is_asked_to_stop():
            if ahead is not None:
                self._announce(ahead.shard)
            work = ahead or self._open_next()
            ahead = None
            if work is None:
                self._drain()
                if not self._again:
                    return
            elif self._is_suspect(work.shard):
                self._pipeline.compute(work, isolates=self._isolates(work.shard))
                self._drain()
            else:
                ahead = self._open_ahead()
                self._pipeline.compute(work)
                if self._has_succeeded:
                    self._settle()
                else:
                    # Until a shard has succeeded, the code may be wrong: its failure counts before the next shard.
                    self._drain()
        self.stopped = True
        if ahead is not None:
            ahead.reader.close()
        self._drain()

    # -- claims ----------------------------------------------------------------------------------------------------

    def _open_next(self) -> Work | None:
        while (shard := self._next()) is not None:
            if self._tries.get(shard.index, 0) >= MOST_TRIES:
                self._give_up(shard, f"it failed {self._tries[shard.index]} times in earlier attempts", None)
                continue
            if self._is_suspect(shard):
                self._drain()
            self._announce(shard)
            return self._pipeline.read(shard, self._batch_size)
        return None

    def _next(self) -> Shard | None:
        """Return the next shard. Failed ones come last, unless none has succeeded: then the code may be wrong."""
        if not self._has_succeeded and self._again:
            return self._again.pop(0)
        return self._claim() or self._next_again()

    def _open_ahead(self) -> Work | None:
        """Begin to read a shard while another one is computed."""
        if self._again and not self._has_succeeded:
            return None
        shard = self._claim()
        if shard is None:
            return None
        if self._is_suspect(shard):
            self._again.append(shard)
            return None
        return self._pipeline.read(shard, self._batch_size)

    def _claim(self) -> Shard | None:
        index = self._queue.claim()
        return None if index is None else self._shards[index]

    def _next_again(self) -> Shard | None:
        return self._again.pop(0) if self._again else None

    def _is_suspect(self, shard: Shard) -> bool:
        return self._is_careful or self._tries.get(shard.index, 0) > 0

    def _isolates(self, shard: Shard) -> bool:
        """Return whether rows that cannot be computed are bad rows: at the last try, because an error may pass."""
        return self._sets_rows_aside and self._tries.get(shard.index, 0) >= MOST_TRIES - 1

    def _is_asked_to_stop(self) -> bool:
        return self._ctx._is_stop_requested()

    def _announce(self, shard: Shard) -> None:
        """Record that a shard is being processed, on disk before any of it: a crash is then attributed to it."""
        tries = self._tries.get(shard.index, 0)
        self._event("shard_started", {"shard": shard.index, "label": shard.label, "tries": tries})

    # -- stages ----------------------------------------------------------------------------------------------------

    def _new_output(self) -> PartOutput:
        return PartOutput(self._ledger, self._options, self._previews)

    def _begin(self, metrics: ShardMetrics, rows: int) -> None:
        self._context._begin(metrics, rows)
        HERE.now = COMPUTE

    def _beat(self) -> None:
        """Record the progress of one batch."""
        ctx = self._ctx
        if not HERE.started:
            HERE.started = True
            ctx._writer.write("first_step", {})
        ctx._batches += 1
        HERE.now = DATA

    def _record(self, work: Work, entry: FinishedShard) -> None:
        """Record a complete shard. Runs in the writer's thread."""
        if self._owner is not None:
            self._owner.check()
        self._check_schema(entry)
        self._ledger.add(entry)
        self._queue.post(entry)
        self._queue.count_rows(entry.rows_read)
        self._has_succeeded = True
        bad_rows = entry.bad_rows[:BAD_ROWS_SHOWN]
        facts = {
            "rows": entry.rows,
            "rows_bad": entry.rows_bad,
            "bad_rows": [[row, name[:BAD_ROW_CHARACTERS], error[:BAD_ROW_CHARACTERS]] for row, name, error in bad_rows],
            "bytes": entry.size,
            "part": entry.part,
            "sha256": entry.sha256,
        }
        seconds = round(time.monotonic() - work.started_at, 3)
        self._event("shard_done", {"shard": entry.shard, **facts, "seconds": seconds})
        if entry.rows_bad:
            number, name, error = entry.bad_rows[0]
            log.warning(
                "Shard %d has %d bad rows, the first one is row %d (%s): %s",
                entry.shard,
                entry.rows_bad,
                number,
                name,
                error,
            )
        if self._previews and work.first_rows:
            self._preview(work)

    def _preview(self, work: Work) -> None:
        """Report the first rows of a shard, on the rank that is the first of the gang to have some."""
        rows, self._previews = self._previews, 0
        own = str(self._ctx.distributed.get_rank())
        if self._ctx.distributed.first_value("preview", own) == own:
            try:
                found = preview_of(work.first_rows, rows)
                self._event("results_preview", {"shard": work.shard.index, "label": work.shard.label, **found})
            except Exception:  # the results are complete without it
                log.warning("The first rows of shard %d cannot be shown", work.shard.index, exc_info=True)

    def _check_schema(self, entry: FinishedShard) -> None:
        """Raise when the shard's output has other columns or types than earlier ones of the gang.

        A column without any value gets its type when the results are published, unless another machine does that.

        :raises SchemaError: names the first column that differs
        """
        if not entry.schema:
            return
        first_value = self._ctx.distributed.first_value
        earlier = dict.fromkeys(json.loads(first_value("columns", json.dumps(list(entry.schema)))), NULL)
        for name, kind in entry.schema.items():
            if kind != NULL or self._run.collected_in is not None:
                if name not in self._types:
                    self._types[name] = first_value(f"type of {name}", kind)
                earlier[name] = self._types[name]
            elif name in earlier:
                earlier[name] = kind
        if earlier != dict(entry.schema):
            raise SchemaError(
                f"The output of shard {entry.shard} has other columns or types than that of an earlier shard: "
                f"{difference(earlier, dict(entry.schema))}. Declare inference.outputs.schema."
            )

    # -- failures --------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        self._pipeline.drain()
        self._settle()

    def _settle(self) -> None:
        """Decide about the shards that have failed: again, aside, or the end of the run."""
        for work in self._pipeline.failures():
            error = work.error
            assert error is not None
            if not _is_of_shard(error):
                raise error
            shard = work.shard
            self._tries[shard.index] = tries = self._tries.get(shard.index, 0) + 1
            message = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
            is_input = isinstance(error, InputError) and not isinstance(error, InputUnavailableError)
            # The input will be the same at the next try.
            is_final = is_input or tries >= MOST_TRIES
            facts = {"shard": shard.index, "label": shard.label, "error": message, "tries": tries, "is_final": is_final}
            self._event("shard_failed", facts)
            log.warning(
                "Shard %d (%s) failed%s: %s",
                shard.index,
                shard.label,
                "" if is_input else f", try {tries} of {MOST_TRIES}",
                message,
                # The traceback of a bad input shows the library alone.
                exc_info=error if tries == 1 and not is_input else None,
            )
            if is_final:
                self._give_up(shard, message, error)
            else:
                self._again.append(shard)

    def _give_up(self, shard: Shard, message: str, error: BaseException | None) -> None:
        """Set a shard aside, or end the run.

        :raises BadShardError: the configuration does not skip shards
        """
        if not self._skips:
            tries = self._tries[shard.index]
            times = "failed" if tries == 1 else f"failed {tries} times; the last error"
            raise BadShardError(
                f"Shard {shard.index} ({shard.label}) {times}: {message.rstrip('.')}. Mend the input or the processor, "
                "or set inference.on_bad_shard: skip."
            ) from error
        skipped = self._ledger.set_aside(shard, message)
        self._queue.post(skipped)
        self._event("shard_skipped", {"shard": shard.index, "label": shard.label, "error": skipped.error})
        log.warning("Shard %d (%s) is set aside: its rows are missing in the output", shard.index, shard.label)

    def _event(self, kind: str, fields: JsonObject) -> None:
        self._ctx._writer.write(kind, fields, sync=True)


def _is_of_shard(error: BaseException) -> bool:
    """Return False for a full disk, a folder that is gone, a missing library, or a stop of the interpreter."""
    if isinstance(error, OutputError):
        return isinstance(error, (ResultRowsError, SchemaError))
    return isinstance(error, Exception) and not isinstance(error, SetupError)
