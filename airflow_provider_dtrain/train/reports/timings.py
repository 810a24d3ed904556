"""Timings: duration of each part of a batch.

All times are taken on the host. On a GPU, work that was only queued counts where the program waits for it
(``from_device``, or the next synchronization), not where it was started.

Once per batch: ``dataloader_next``, ``to_device``, ``train_batch`` (from the batch handed out until its last ``step``
returns), ``backward``, ``step_optimizer``, ``step_lr_schedulers``. When metrics are read and exchanged:
``from_device``, ``reduce_metrics``. When training waits for a checkpoint: ``checkpoint``. ``gradient_exchange`` comes
from the clock of DistributedDataParallel, which measures one batch in about five seconds, and overlaps ``backward``.

Three files get them: single values go to the samples, sums per second to the seconds, and summaries to the events. The
seconds also have ``forward``, the rest of ``train_batch``, and ``step`` where only the ends of batches are known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.samples import SampleFile
from airflow_provider_dtrain.train.reports.seconds import SecondsFile, Sums

#: Interval between two writes of measurements, seconds.
FLUSH_S = 1.0
#: Interval between two summaries in the events, seconds: of rank 0, and of the other ranks, which share one store.
SUMMARY_S, RANKS_SUMMARY_S = 10.0, 60.0
#: Interval between two lines of the sums, seconds: at first, and after the first minutes. Each line costs the control
#: side a tenth of a millisecond, and a page shows a few hundred intervals.
LINE_S, LATER_LINE_S = 1.0, 5.0
#: Lines after which they are written less often.
EARLY_LINES = 300
#: DistributedDataParallel measures every n-th exchange, which synchronizes the device. These numbers divide each other,
#: so ranks that choose different ones measure common steps. The longest time between two measurements, seconds.
EXCHANGE_RATES, EXCHANGE_S = (1, 5, 10, 50, 100), 5.0
#: Timings inside ``train_batch``: always, and in the loop of a script.
_INSIDE, _INSIDE_SCRIPT = ("backward", "step_optimizer"), ("to_device", "step_lr_schedulers")


class RankTimings:
    """Durations of one rank, cheap enough for every batch.

    Without a writer, it measures nothing and costs only calls of empty functions.

    :param writer: for the summaries; None switches everything off
    :param samples: for the single values; None keeps none
    :param seconds: for the sums per second; None keeps none
    :param summary_s: seconds between two summaries
    """

    def __init__(
        self,
        writer: EventWriter | None = None,
        samples: SampleFile | None = None,
        seconds: SecondsFile | None = None,
        *,
        summary_s: float = SUMMARY_S,
    ) -> None:
        self._writer = writer
        self._samples = samples
        self._seconds = seconds
        self._summary_s = summary_s
        #: Whether anything is measured. Code that takes a time by hand checks it first.
        self.enabled = writer is not None
        #: Clock of all times. float() is 0.0 and costs less than half of perf_counter where nothing is measured.
        self.clock: Callable[[], float] = perf_counter if self.enabled else float
        self._values: dict[str, list[float]] = {}
        #: name -> count, total, longest; since the last summary.
        self._sums: dict[str, tuple[int, float, float]] = {}
        #: DistributedDataParallel models, with the iteration whose exchange was counted last.
        self._models: list[list[Any]] = []
        #: Rate at which they measure exchanges, 0: PyTorch's own.
        self._rate = 0
        #: perf_counter at the end of the latest step, and of the latest step in a line of the sums.
        self._ended = self._written = 0.0
        #: Sums since the latest line, the number of its first batch, and of lines so far.
        self._line: dict[str, Sums] = {}
        self._line_first = self._lines = 0
        self._next_line = 0.0
        #: A loader counts the batches. Otherwise, every step is a batch.
        self._loading = False
        #: The loop of a script moves batches and advances schedulers inside ``train_batch``.
        self._is_script = False
        #: Number of batches so far, and of those that were written.
        self._batches = self._first = 0
        #: Called after each batch with the number of batches and the time. Lines are then written at the end only.
        self.on_batch: Callable[[int, float], None] | None = None
        self._next_flush = self._next_summary = 0.0
        #: perf_counter at the latest flush; 0: there was none.
        self._flushed = 0.0
        if not self.enabled:
            self.add = _drop_named  # type: ignore[method-assign]
            self.batch_done = _nothing  # type: ignore[method-assign]
            self.batches = _as_it_is  # type: ignore[method-assign]

    def add(self, name: str, duration_s: float) -> None:
        """Record one duration.

        :param name: ``dataloader_next``, ``to_device``, ``train_batch``, ``backward``, ...
        """
        try:
            self._values[name].append(duration_s)
        except KeyError:
            self._values[name] = [duration_s]

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Record the duration of the block, for rare operations."""
        before = self.clock()
        yield
        self.add(name, self.clock() - before)

    def adder(self, name: str) -> Callable[[float], None]:
        """Return a function that records durations of one name at the lowest cost."""
        if not self.enabled:
            # Takes a number and costs less than any function written in Python.
            return float  # type: ignore[return-value]
        # The list is never replaced, so its bound method stays valid.
        return self._values.setdefault(name, []).append

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Yield the loader's batches, timed: ``dataloader_next``, and ``train_batch`` up to the last step of each."""
        add = self.adder("dataloader_next")
        add_whole = self.adder("train_batch")
        clock = self.clock
        iterator = iter(loader)
        end = object()
        began = 0.0
        self._loading = self._is_script = True
        try:
            while True:
                before = clock()
                batch = next(iterator, end)
                if self._ended > began > 0:
                    add_whole(self._ended - began)
                    self._batches += 1
                    if before >= self._next_flush:
                        self._check(before)
                if batch is end:
                    return
                began = clock()
                add(began - before)
                yield batch
        finally:
            self._loading = False

    def batch_done(self, now: float) -> None:
        """Record the end of a step. The last step of a batch is the end of the batch.

        :param now: time by :attr:`clock`
        """
        self._ended = now
        if not self._loading:
            self._batches += 1
            if now >= self._next_flush:
                self._check(now)

    def watch_model(self, model: Any) -> None:
        """Take ``gradient_exchange`` from the clock of a DistributedDataParallel model."""
        if self.enabled and hasattr(model, "_get_ddp_logging_data"):
            self._models.append([model, 0])

    def discard(self) -> None:
        """Remove the measurements that were not written yet."""
        for found in self._values.values():
            found.clear()
        self._line = {}
        self._first = self._line_first = self._batches
        self._written = self._ended

    def close(self) -> None:
        """Write the remaining measurements."""
        if self.enabled:
            self._flush(self._ended, last=True)
            self._summarize()
            for file in (self._samples, self._seconds):
                if file is not None:
                    file.close()

    def _check(self, now: float) -> None:
        """Write the measurements. The first call only starts the first interval."""
        if self.on_batch is not None:
            # The time of the next flush stays 0, so this is called after each batch.
            self.on_batch(self._batches, now)
            return
        if self._next_flush:
            self._flush(now)
        else:
            self._next_summary = now + self._summary_s
        self._next_flush = now + FLUSH_S
        if now >= self._next_summary:
            self._next_summary = now + self._summary_s
            self._summarize()

    def _flush(self, now: float, *, last: bool = False) -> None:
        held = {name: found for name, found in self._values.items() if found}
        if not held:
            return
        if self._samples is not None:
            self._samples.write(self._first, self._batches - self._first, held, last=last)
        sums = {name: Sums(len(found), sum(found), min(found), max(found)) for name, found in held.items()}
        for found in held.values():
            found.clear()
        self._set_rate(now)
        self._add_exchanges(sums)
        for name, one in sums.items():
            count, total, longest = self._sums.get(name, (0, 0.0, 0.0))
            self._sums[name] = (count + one.times, total + one.total, max(longest, one.longest))
        self._first = self._batches
        if self._seconds is not None:
            self._add_to_line(self._seconds, sums, now, last=last)

    def _add_to_line(self, file: SecondsFile, sums: Mapping[str, Sums], now: float, *, last: bool) -> None:
        for name, one in sums.items():
            known = self._line.get(name)
            self._line[name] = one if known is None else known.joined(one)
        if now < self._next_line and not last:
            return
        # Callers come every second, a little earlier or later.
        self._next_line = now + (LINE_S if self._lines + 1 < EARLY_LINES else LATER_LINE_S) - 0.5 * FLUSH_S
        batches = self._batches - self._line_first
        file.write(self._line_first, batches, {**self._line, **self._derived(self._line, batches)})
        self._line = {}
        self._lines += 1
        self._line_first = self._batches
        self._written = self._ended

    def _derived(self, sums: Mapping[str, Sums], batches: int) -> dict[str, Sums]:
        """Return the rest of ``train_batch``, or the whole time of a step where no loader measures its parts."""
        whole = sums.get("train_batch")
        if whole is not None:
            inside = _INSIDE + (_INSIDE_SCRIPT if self._is_script else ())
            rest = max(0.0, whole.total - sum(sums[name].total for name in inside if name in sums))
            return {"forward": _evenly(whole.times, rest)}
        if batches and self._written:
            return {"step": _evenly(batches, self._ended - self._written)}
        return {}

    def _summarize(self) -> None:
        sums = self._sums
        self._sums = {}
        if not sums or self._writer is None:
            return
        names = {
            name: {"count": count, "total_s": round(total, 6), "max_s": round(longest, 6)}
            for name, (count, total, longest) in sums.items()
        }
        with contextlib.suppress(OSError):
            self._writer.write("timings", {"batches": self._batches, "names": names})

    def _set_rate(self, now: float) -> None:
        """Let the models measure an exchange every :data:`EXCHANGE_S`, or every hundredth one if steps are short."""
        batches = self._batches - self._first
        if not self._models or not batches or not self._flushed:
            self._flushed = now
            return
        step_s = (now - self._flushed) / batches
        self._flushed = now
        fitting = [rate for rate in EXCHANGE_RATES if rate * step_s <= EXCHANGE_S]
        rate = fitting[-1] if fitting else EXCHANGE_RATES[0]
        if rate == self._rate:
            return
        self._rate = rate
        for model, _ in self._models:
            with contextlib.suppress(Exception):
                model._set_ddp_runtime_logging_sample_rate(rate)

    def _add_exchanges(self, sums: dict[str, Sums]) -> None:
        """Add the exchange that each model has measured since the last time."""
        for watched in self._models:
            # The clock is private to torch, and its errors must not end a training.
            with contextlib.suppress(Exception):
                found = watched[0]._get_ddp_logging_data()
                if found["iteration"] == watched[1]:
                    continue
                watched[1], seconds = found["iteration"], int(found["backward_comm_time"]) / 1e9
                one = Sums(1, seconds, seconds, seconds)
                known = sums.get("gradient_exchange")
                sums["gradient_exchange"] = one if known is None else known.joined(one)


def _evenly(count: int, total: float) -> Sums:
    """Return durations of which only the sum is known."""
    return Sums(count, total, total / count, total / count)


def open_timings(events_path: Path | None, config: Mapping[str, Any], writer: EventWriter, rank: int) -> RankTimings:
    """Return the timings of a rank, as ``profiling`` configures them. Off-cluster, they measure nothing.

    :param events_path: ``DTRAIN_EVENTS``; the other files are written beside it
    :param config: the effective configuration
    """
    profiling = config.get("profiling") or {}
    if events_path is None or not (profiling.get("enabled", True) and profiling.get("timings", True)):
        return RankTimings()
    summary_s = SUMMARY_S if rank == 0 else RANKS_SUMMARY_S
    try:
        samples = SampleFile(events_path.with_name("samples"))
        seconds = SecondsFile(events_path.with_name("timings"))
    except OSError:
        return RankTimings(writer, summary_s=summary_s)
    return RankTimings(writer, samples, seconds, summary_s=summary_s)


def _drop_named(name: str, duration_s: float) -> None:
    return None


def _nothing(now: float) -> None:
    return None


def _as_it_is(loader: Iterable[Any]) -> Iterator[Any]:
    return iter(loader)
