"""Beginning and end of a batch inference as rank 0 reports them: progress, metrics, manifest."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence

from airflow_provider_dtrain.train.errors import BadShardError
from airflow_provider_dtrain.train.files.lease import Lease
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.inference import metrics
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Ledger, Skipped, manifest_event
from airflow_provider_dtrain.train.inference.run import BegunFolder, InferenceRun
from airflow_provider_dtrain.train.inference.shards import rows_of
from airflow_provider_dtrain.train.inference.work_queue import WorkQueue
from airflow_provider_dtrain.train.process.heartbeat import CHIEF, HERE
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Interval of the lines about progress in the log, seconds.
REPORT_EVERY_S = 10.0
#: Most characters of the list of finished shards in an event.
RANGES_CHARACTERS = 4096
WAITING = ("exchange", "the shards of other ranks")


class ProgressLog(threading.Thread):
    """Logs the progress of all ranks, from rank 0's counters.

    :param total: rows of the missing shards; None: unknown
    :param shards: number of missing shards
    """

    def __init__(self, queue: WorkQueue, shards: int, total: int | None) -> None:
        super().__init__(name="dtrain-inference-progress", daemon=True)
        self._queue = queue
        self._shards = shards
        self._total = total
        self._over = threading.Event()
        self._began = time.monotonic()

    def run(self) -> None:
        """Log until :meth:`end`."""
        while not self._over.wait(REPORT_EVERY_S):
            try:
                log.info("%s", self.text())
            except RuntimeError:
                # The key-value store ends with the gang.
                return

    def end(self) -> None:
        """Log the last line."""
        self._over.set()
        self.join()
        log.info("%s", self.text(is_over=True))

    def text(self, *, is_over: bool = False) -> str:
        """Return shards, rows, rows per second and the time that is left.

        :param is_over: no rank computes, so that no time is left, even if rows were left out
        """
        rows = self._queue.count_rows(0)
        ended = self._queue.ended
        passed_s = max(time.monotonic() - self._began, 1e-9)
        share = rows / self._total if self._total else ended / max(1, self._shards)
        shards = f"{ended:,} of {counted(self._shards, 'shard')}"
        if is_over:
            return f"{shards}, {counted(rows, 'row')}, {rows / passed_s:,.0f} rows/s"
        left = f", about {duration(passed_s * (1 - share) / share)} left" if 0 < share < 1 else ""
        return f"{shards}, {counted(rows, 'row')} ({min(share, 1):.0%}), {rows / passed_s:,.0f} rows/s{left}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 shard`` or ``2,000 shards``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a duration as ``2 h 05 min``, ``3 min 20 s`` or ``12 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def announce(
    run: InferenceRun, folder: Place, queue: WorkQueue, begun: BegunFolder, batch_size: int
) -> ProgressLog | None:
    """Report what is to be done, and return the running progress on rank 0, None if nothing is missing."""
    if not run.is_chief:
        return None
    missing = [begun.shards[index] for index in begun.missing]
    total = rows_of(begun.shards)
    done = sum(entry.rows_read for entry in begun.entries)
    bad = sum(entry.rows_bad for entry in begun.entries)
    if not missing:
        every = counted(len(begun.shards), "shard")
        log.info("%s of %s done in %s: nothing is left to compute", f"{len(begun.shards):,}", every, folder.location)
    elif begun.entries or begun.skipped:
        log.info(
            "%s of %s done in %s; computing the rest",
            f"{len(begun.entries):,}",
            counted(len(begun.shards), "shard"),
            folder.location,
        )
    run.ctx._writer.write(
        "shards",
        {
            "total": len(begun.shards),
            "missing": len(missing),
            "rows": total,
            "rows_done": done,
            "rows_bad": bad,
            "location": folder.location,
            "batch_size": batch_size,
            "resumed": bool(begun.entries),
            "finished": ranges(entry.shard for entry in begun.entries),
        },
        sync=True,
    )
    if not missing:
        return None
    progress = ProgressLog(queue, len(missing), rows_of(missing))
    progress.start()
    return progress


def ranges(numbers: Iterable[int]) -> str | None:
    """Return numbers in short form, such as ``0-17,20``, or None if that is longer than an event's text may be."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
    return text if len(text) <= RANGES_CHARACTERS else None


def end(
    run: InferenceRun, queue: WorkQueue, ledger: Ledger, owner: Lease | None, begun: BegunFolder, *, stopped: bool
) -> JsonObject | None:
    """Wait for all ranks and publish, if no shard is missing. Called by all ranks.

    :param stopped: this rank was asked to stop
    :return: the manifest on rank 0, None elsewhere and when a shard is missing
    """
    with HERE.at(WAITING):
        queue.leave()
        if not run.is_chief:
            queue.wait_for_chief()
            run.ctx._left_early = stopped
            return None
    manifest = None
    if queue.ended < len(begun.missing):
        run.ctx._left_early = True
    else:
        with HERE.at(CHIEF):
            manifest = _publish(run, queue, ledger, owner, begun)
    queue.chief_is_done()
    return manifest


def _publish(
    run: InferenceRun, queue: WorkQueue, ledger: Ledger, owner: Lease | None, begun: BegunFolder
) -> JsonObject:
    new, aside = queue.results()
    entries = [*begun.entries, *new]
    skipped = [*begun.skipped, *aside]
    _refuse_nothing(entries, skipped)
    if run.kind == "parquet" and run.collected_in is None:
        from airflow_provider_dtrain.train.inference.null_columns import with_types

        entries = with_types(ledger, entries)
    found = metrics.combined([entry.metrics for entry in sorted(entries, key=_number)])
    confirm = owner.confirm if owner is not None else bool
    safe = run.ctx._reporter.json_safe(found)
    manifest, digest = ledger.publish(entries, skipped, begun.facts, safe, confirm=confirm)
    rows = manifest["rows_read"]
    if found:
        run.ctx.report_validation(rows, found, average=False)
    if digest is not None:
        run.ctx._writer.write("manifest", manifest_event(manifest, digest, shards=len(begun.shards)), sync=True)
    rest = [f"{counted(len(skipped), 'shard')} set aside"] if skipped else []
    rest += [counted(bad, "bad row")] if (bad := manifest["rows_bad"]) else []
    log.info("%s in %s%s", counted(manifest["rows"], "row"), manifest["location"], "".join(f"; {one}" for one in rest))
    run.ctx.set_result({"metrics": dict(found), "rows": manifest["rows"], "location": manifest["location"]})
    return manifest


def _refuse_nothing(entries: Sequence[FinishedShard], skipped: Sequence[Skipped]) -> None:
    """Raise when every row of the input was set aside or left out.

    :raises BadShardError: names the first error
    """
    bad_rows = [error for entry in entries for _, _, error in entry.bad_rows]
    if any(entry.rows_read for entry in entries) or not (skipped or bad_rows):
        return
    first = f"{skipped[0].label}: {skipped[0].error}" if skipped else str(bad_rows[0])
    bad = sum(entry.rows_bad for entry in entries)
    counts = f"{counted(len(skipped), 'shard')} set aside, {counted(bad, 'bad row')}"
    raise BadShardError(
        f"No row of the input is left: {counts}. The first error: {first.rstrip('.')}. Mend the input or the processor."
    )


def _number(entry: FinishedShard) -> int:
    return entry.shard
