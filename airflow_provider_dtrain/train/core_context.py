"""Context of a rank, without what needs PyTorch: the door for frameworks that have their own loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_dtrain.train.checkpoint.files import FileCheckpoints, NewFiles, SavedFiles
from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.data import batch_size
from airflow_provider_dtrain.train.data.batch_size import BatchSizes, Hparams
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.data.worker_pool import error_of, without_worker_errors
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.durations import Position
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import InvalidHP, MetricError
from airflow_provider_dtrain.train.process import lost_ranks
from airflow_provider_dtrain.train.process.config_check import scheduling_unit
from airflow_provider_dtrain.train.process.heartbeat import HERE
from airflow_provider_dtrain.train.reports import console, failure
from airflow_provider_dtrain.train.reports.builtin_metrics import BuiltinMetrics
from airflow_provider_dtrain.train.reports.events import EventWriter, encode_event
from airflow_provider_dtrain.train.reports.media import MediaReports, MediaWriter
from airflow_provider_dtrain.train.reports.metrics import Reporter, epoch_field
from airflow_provider_dtrain.train.reports.profiler import Profiler
from airflow_provider_dtrain.train.reports.reducers import number, reduce_over_ranks
from airflow_provider_dtrain.train.reports.timings import RankTimings
from airflow_provider_dtrain.train.search.rungs import RungQuestions
from airflow_provider_dtrain.train.search.stop_answer import AgreementPace, StopAnswer
from airflow_provider_dtrain.train.search.stop_criteria import Goal, epochs_done, epochs_trained
from airflow_provider_dtrain.train.values import JsonObject

#: Vote of a rank when all ranks synchronize. The largest vote wins.
GO_ON, REACHED, STOP, DECIDED = range(4)


class CoreContext(MediaReports):
    """One rank of a trial: its facts, reports, stop, and checkpoints of files.

    It does not use PyTorch, so this class is enough for a program of any framework, or without one.
    "Called by all ranks" below means that every rank makes the call, at the same point of the program.
    """

    #: The program has seen the stop request, so its end is not the end of training.
    _left_early = False
    _stop = _decided = _closed = _together = False
    _has_reached = _is_restored = _began = _has_reported_first_step = False
    #: Rank 0 alone has reported a validation at the length of the trial, and the other ranks have not heard of it.
    _has_reached_alone = False
    _batches = _last_step = 0
    #: Number of the batch in whose body the ranks have agreed to stop, if it is the last one of a pass.
    _stopped_in = -1
    #: Step and metrics of the latest validation.
    _validated: tuple[int, Mapping[str, Any]] | None = None
    _result: Any = None
    _batch_sizes: BatchSizes | None = None
    _records_per_epoch: int | None = None
    _pace: AgreementPace | None = None

    def __init__(
        self,
        env: RankEnvironment,
        distributed: Distributed,
        writer: EventWriter,
        reporter: Reporter,
        saver: Saver,
        progress: Progress,
        timings: RankTimings,
        rungs: RungQuestions,
        builtin: BuiltinMetrics,
        *,
        hparams: Hparams,
        seed: int,
    ) -> None:
        self._env = env
        self._writer = writer
        self._reporter = reporter
        self._saver = saver
        self._progress = progress
        self._timings = timings
        self._rungs = rungs
        self._builtin = builtin
        #: Small messages between the ranks.
        self.distributed = distributed
        #: The trial's hyperparameters and its seed, the same on all ranks.
        self.hparams = hparams
        self.seed = seed
        #: The effective experiment configuration; empty off-cluster.
        self.config: Mapping[str, Any] = env.config
        self._goal = Goal(env.config.get("searcher") or {})
        self._unit = scheduling_unit(env.config)
        #: Batches between two agreements on a requested stop.
        self._stop_pace = AgreementPace(self._unit)
        self._stop_path = env.run_dir / "stop_requested" if env.run_dir else None
        #: Returns the position of training at a step. The trainer of a trial class replaces it by its own.
        self._position: Callable[[int, int | None], Position] = self._script_position
        #: Returns the number of trained epochs, with a fraction, or None if it is unknown. Replaced likewise.
        self._epochs: Callable[[], float | None] = self._script_epochs
        #: Epochs that a loop of the script's own has set.
        self._given_epochs: float | None = None
        #: Checkpoints of files, by their paths or URLs.
        self.files = FileCheckpoints(env, distributed, saver)
        #: Recorder of traces of some batches.
        self.profiler = Profiler(env, writer)
        self._media = MediaWriter(env, writer)

    # -- the trial -----------------------------------------------------------------------------------------------------

    @property
    def per_slot_batch_size(self) -> int:
        """Number of samples per rank and step: ``global_batch_size // slots``."""
        return self._sizes().per_slot

    @property
    def global_batch_size(self) -> int:
        """Number of samples per step of all ranks together, without the remainder of the division."""
        return self._sizes().effective

    @property
    def max_length(self) -> Mapping[str, int] | None:
        """Configured length of training, e.g. ``{"epochs": 3}``, or None if the configuration gives none."""
        length = self._goal.max_length
        return {length.unit: length.count} if length else None

    @property
    def data_config(self) -> Mapping[str, Any]:
        """Free-form map ``data`` of the configuration."""
        return self.config.get("data") or {}

    @property
    def rank(self) -> int:
        """The global rank, 0 .. world_size-1."""
        return self._env.rank

    @property
    def local_rank(self) -> int:
        """The rank among the ranks of this host."""
        return self._env.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the gang."""
        return self._env.world_size

    @property
    def media(self) -> MediaWriter:
        """Writer of images, tables and texts."""
        return self._media

    def _media_step(self) -> int:
        return self._last_step

    @property
    def last_step(self) -> int:
        """Step of the latest report, checkpoint or question for a stop."""
        return self._last_step

    @property
    def is_chief(self) -> bool:
        """True on rank 0."""
        return self._env.rank == 0

    #: Hugging Face Accelerate's name.
    is_main_process = is_chief

    @property
    def should_stop(self) -> StopAnswer:
        """True once the trial must stop or pause, or has trained long enough.

        A loop of the script's own then saves a checkpoint and ends. Reading it never communicates, so a single rank may
        read it. The value is the same on all ranks: they agree on it about once a second in :meth:`step`, at least
        every ``scheduling_unit`` calls, and in each :meth:`sync`, :meth:`report_validation` with ``average``,
        :meth:`save_checkpoint`, :meth:`checkpoint` and epoch of :meth:`epochs`.

        A loop without :meth:`step`, of any framework, calls it in each step instead: ``if ctx.should_stop(step)``. The
        ranks then agree about once a second. All ranks must call it. With ``at_once=True``, they agree in this call.
        """
        return StopAnswer(self._has_reached or self._sees_stop(), self._agree_to_stop)

    @property
    def ended_by_searcher(self) -> bool:
        """True once the searcher has ended the trial. No later attempt resumes it, so its loop may end anywhere."""
        return self._decided

    # -- reports -------------------------------------------------------------------------------------------------------

    def report(self, step: int, metrics: Mapping[str, Any], *, epoch: float | None = None) -> None:
        """Record training metrics. Takes microseconds and never waits for the device or another rank.

        With more than one rank, the mean over the ranks is recorded when the ranks next synchronize, see
        :attr:`should_stop`. With ``optimizations.average_training_metrics: false``, rank 0 records its own values.

        :param step: number of batches, counted by the script
        :param metrics: name -> number, or tensor of one element
        :param epoch: see :meth:`set_epoch`
        :raises MetricError: a value is not a number
        :raises NonFiniteLossError: a metric whose name ends in ``loss`` is NaN. A later call raises it for a value on a
            GPU, which is read later
        :raises LimitError: there are more than 1,000 metrics, or a name has more than 256 characters
        """
        self._last_step = step
        if step and not self._has_reported_first_step:
            self._report_first_step()
        self._reporter.report(step, metrics, self._epochs() if epoch is None else self.set_epoch(epoch))

    def count(self, *, samples: int | None = None, tokens: int | None = None) -> None:
        """Count samples or tokens of a batch of this rank, for the built-in metrics. Called by all ranks, every batch.

        ``samples_per_second`` and ``tokens_per_second`` are of all ranks together. Without this call, each batch of
        :meth:`step` counts the samples of the loader's batch size, and ``profiling.tokens_per_sample`` times as many
        tokens.

        :param samples: number of samples
        :param tokens: number of tokens, such as those that are not padding
        """
        self._builtin.count(samples, tokens)

    def set_epoch(self, epoch: float) -> float:
        """Set the number of epochs that are trained, which further reports record beside the step. Return it.

        Charts over epochs and the progress of a trial show it. A loop over :meth:`epochs` need not call it.

        :param epoch: 2.5 in the middle of the third epoch
        :raises MetricError: it is not a number of at least 0
        """
        epochs = number("epoch", epoch)
        if not 0 <= epochs < math.inf:
            raise MetricError(f"epoch must be a number of at least 0, got {epoch!r}.")
        self._given_epochs = epochs
        return epochs

    def report_validation(
        self,
        step: int,
        metrics: Mapping[str, Any],
        *,
        average: bool = True,
        weight: float = 1,
        epoch: float | None = None,
    ) -> str:
        """Record validation metrics. Return ``stop`` when the trial has trained long enough, else ``continue``.

        It has when ``step`` has reached ``searcher.max_length``, when ``time_metric`` has reached ``max_time``, or when
        the searcher has ended the trial. At a length at which the searcher decides, the ranks wait here for its answer,
        at most ``decision_timeout``. With ``average``, :attr:`should_stop` is then True as well. Without it, they wait
        when they next synchronize, see :attr:`should_stop`, and it is True from then on.

        :param metrics: this rank's metrics
        :param average: record the mean over the ranks (called by all ranks). False: record rank 0's own values, which
            must cover the whole data set
        :param weight: weight of this rank's metrics in the mean, e.g. its number of samples
        :param epoch: number of trained epochs, for a loop without :meth:`epochs`, see :meth:`set_epoch`. A searcher
            whose lengths are in epochs counts the finished ones
        :raises MissingMetricError: the metrics lack one that the searcher needs
        :raises SetupError: the searcher decides after some epochs, and their number is unknown
        """
        self._last_step = step
        if average:
            self._synchronize()
            values = self._reporter.mean(step, metrics, weight)
        else:
            values = self._reporter.numbers(step, metrics)
        safe = self._reporter.json_safe(values)
        self._validated = step, safe
        # A loop of the script's own that saw the stop request may have ended in the middle of the epoch.
        self._progress.is_whole = self._progress.in_epochs and not self._left_early
        console.log_validation(self._env, step, safe)
        batch = self.global_batch_size if "global_batch_size" in self.hparams else None
        position = self._position(step, batch)
        trained = self._epochs() if epoch is None else self.set_epoch(epoch)
        if epoch is not None and trained is not None:
            # A sum of fractions may be slightly below the whole number.
            position = replace(position, epoch=int(trained + 1e-6))
        is_chief = self.distributed.get_rank() == 0
        if is_chief:
            self._writer.write("validation", {"step": step, "metrics": safe, **epoch_field(trained)})
            self._reporter.loggers.log(step, safe, "validation/")
            self._goal.check(safe)
            if epoch is None and not self._progress.counts_epochs:
                self._goal.check_epochs(is_asked=bool(self._rungs.units))
            units = self._goal.units(position, safe, self._records_per_epoch)
            self._rungs.reach(units, safe.get(self._goal.metric or ""), step)
        reached = self._goal.reached(position, safe, batch)
        if reached:
            self._rungs.settle()
        self._has_reached_alone = reached and is_chief and not average
        if average and self._rungs.units:
            self._apply(self.distributed.largest(self._vote()))
        if average:
            self._has_reached = reached
        self._builtin.resume(self._batches)
        return "stop" if reached or self._decided else "continue"

    def report_length(self, step: int, length: int, metric: float) -> None:
        """Ask the searcher about a trained length. Called by rank 0, for a loop that follows lengths of its own.

        :meth:`report_validation` does so itself. The ranks wait for the answer when they next synchronize, see
        :attr:`should_stop`.

        :param length: in units of ``searcher.max_length``
        :param metric: value of ``searcher.metric`` at this length
        """
        name = self._goal.metric or "metric"
        value = self._reporter.json_safe(self._reporter.numbers(step, {name: metric}))[name]
        self._rungs.reach(length, value, step)
        if self._goal.max_length is not None and length >= self._goal.max_length.count:
            self._rungs.settle()
            self._has_reached_alone = True

    def sync(self, step: int) -> None:
        """Agree with the other ranks on :attr:`should_stop`, and record reports. Called by all ranks.

        A loop that does not call :meth:`step` calls it every few batches.

        :param step: number of batches, counted by the script
        """
        self._last_step = step
        self._synchronize()

    def reduce(self, metrics: Mapping[str, Any], *, weight: float = 1, reducer: str = "avg") -> dict[str, float]:
        """Return metrics over all ranks, the same on each rank. Called by all ranks.

        :param metrics: metrics of this rank; empty on a rank without samples
        :param weight: weight of this rank in the mean, e.g. its number of samples
        :param reducer: ``avg``, ``sum``, ``max`` or ``min``
        """
        return reduce_over_ranks(self.distributed.allgather, metrics, weight, reducer)

    def barrier(self) -> None:
        """Wait until all ranks are here. Called by all ranks."""
        self.distributed.barrier()

    def print(self, *values: Any, **options: Any) -> None:
        """Print on rank 0 alone, with the arguments of Python's own print."""
        if self.is_chief:
            print(*values, **options)  # noqa: T201

    def set_result(self, value: Any) -> None:
        """Set the result that rank 0 returns at the end. Default: last step, metrics and checkpoint.

        :param value: any JSON value
        :raises LimitError: the value is longer than 1 MiB as JSON, or deeper than 15 levels
        """
        encode_event(1, time.time(), "result", {"value": value})
        self._result = value

    # -- checkpoints of files ------------------------------------------------------------------------------------------

    def checkpoint(
        self, step: int, *, metadata: Mapping[str, Any] | None = None, alone: bool = False
    ) -> contextlib.AbstractContextManager[Path]:
        """Return a context manager that yields a folder. The files that the block writes to it become a checkpoint.

        For programs that save their state themselves, with any framework. Called by all ranks: the files of all ranks
        together are the checkpoint, at any depth. Two ranks may write the same name only with the same content. Rank 0
        computes checksums and gives the checkpoint its name in the background. A program that is killed leaves no part
        of it. When the block raises on a rank, there is no checkpoint, and the other ranks raise CheckpointError.

        :param metadata: JSON values that :meth:`latest_checkpoint` returns, the same on all ranks
        :param alone: rank 0 calls it without the other ranks, and its files are the checkpoint
        :raises CheckpointError: the files or the metadata cannot be saved, or the previous save failed
        :raises SetupError: another rank than rank 0 calls it with ``alone``
        """
        return _folder_of(self.new_files(step, metadata=metadata, alone=alone))

    def new_files(
        self, step: int, *, metadata: Mapping[str, Any] | None = None, alone: bool = False
    ) -> contextlib.AbstractContextManager[NewFiles]:
        """Return a context manager as :meth:`checkpoint` does, which also yields the path or URL of the checkpoint."""
        self._last_step = step
        if not alone:
            self._synchronize()
        return self.files.write(step, metadata or {}, self._facts_of(step), alone=alone)

    def latest_checkpoint(self, *, start_over: bool = False) -> SavedFiles | None:
        """Return the newest intact checkpoint of :meth:`checkpoint`: folder, step, metadata. None without one.

        Without one, a trial gets ``searcher.source_checkpoint`` if the configuration names it, with ``is_source`` set.
        Called by all ranks, before the training loop. Each rank gets a folder with the files of all ranks that wrote
        it, on its own host.

        :param start_over: return None when every checkpoint is damaged, instead of an error
        :raises CheckpointError: the newest checkpoint was written by :meth:`save_checkpoint`, or all are damaged
        """
        found = self.files.latest(start_over=start_over)
        if found is not None:
            self._resume(found)
        return found

    def read_checkpoint(self, where: str, *, alone: bool = False) -> SavedFiles:
        """Return the checkpoint of :meth:`checkpoint` at a path or URL. Called by all ranks.

        :param where: ``where`` of a checkpoint that exists
        :param alone: this rank calls it without the other ranks; its host must have the checkpoint
        :raises CheckpointError: it is damaged, was removed, or was written by :meth:`save_checkpoint`
        """
        found = self.files.read_alone(where) if alone else self.files.read(where)
        self._resume(found)
        return found

    def _resume(self, found: SavedFiles) -> None:
        if not found.is_source:
            self._last_step = max(self._last_step, found.step)
            # The program may have had nothing left to train.
            self._batches = max(self._batches, 1)

    # -- end -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
            return
        if isinstance(error, InvalidHP):
            self._writer.write("invalid_hp", {"reason": str(error)}, sync=True)
        named = error_of(error) or lost_ranks.error_of(error, self.rank)
        if named is not None:
            # The record has the errors before it, as the traceback at the end of the program.
            named.__cause__ = error
        if isinstance(error, Exception):
            failure.record(named or error)
        with without_worker_errors():
            self.abandon()
        if named is not None:
            raise named from error

    def close(self) -> None:
        """Write the result and wait for the other ranks. The ``with`` block calls it. Called by all ranks."""
        if self._closed:
            return
        self._closed = True
        self.profiler.stop()
        self._rungs.settle()
        self._synchronize()
        if self._builtin.is_due(self._batches, is_last=True):
            self._record()
        self._saver.finish()
        self._saver.release()
        self._timings.close()
        self._reporter.loggers.close()
        self._media.close()
        self._write_result()
        console.log_folder(self._env, self._saver.shown_latest())
        self.distributed.barrier()
        HERE.end()
        self._together = True

    def leave(self) -> None:
        """Close files and process group, at the end of the interpreter.

        Without a ``with`` block, it is unknown whether the other ranks come this far, so this rank waits for none.
        """
        self.abandon(result=not failure.failed())
        self._writer.close()
        if self._together and not failure.failed():
            self.distributed.leave()

    def abandon(self, *, result: bool = False) -> None:
        """Write the data of this rank without the other ranks, which may have ended or be elsewhere in the program.

        :param result: write the result as well
        """
        if self._closed:
            return
        self._closed = True
        HERE.end()
        # A broken device must not hide the error that broke it.
        with contextlib.suppress(Exception):
            self._reporter.flush()
            self._reporter.loggers.close()
            self._timings.close()
        self._saver.settle()
        self._saver.release()
        # It may wait for the disk, and the checkpoint comes first.
        with contextlib.suppress(Exception):
            self._media.close()
        if result:
            self._write_result()

    @property
    def closed(self) -> bool:
        """True when the context is closed."""
        return self._closed

    def _write_result(self) -> None:
        if self.distributed.get_rank() == 0:
            if self._left_early:
                self._writer.write("stopped", {"step": self._last_step}, sync=True)
            self._writer.write("result", {"value": self._final()}, sync=True)

    def _final(self) -> Any:
        if self._result is not None:
            return self._result
        return {
            "step": self._last_step,
            "metrics": dict(self._validated[1]) if self._validated else {},
            "checkpoint": self._saver.shown_latest(),
        }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _facts_of(self, step: int) -> JsonObject:
        """Return the metadata of a checkpoint."""
        metrics = self._validated[1] if self._validated is not None and self._validated[0] == step else {}
        return {
            "epoch": self._progress.epoch,
            "epochs": self._epochs(),
            "metrics": metrics,
            "global_batch_size": self.hparams.get("global_batch_size"),
        }

    def _report_first_step(self) -> None:
        """Write once that this rank has trained, as soon as it is known."""
        if not self._has_reported_first_step:
            self._has_reported_first_step = True
            self._writer.write("first_step", {})

    def chief_should_stop(self, step: int) -> bool:
        """Return whether the trial must stop, as far as rank 0 knows. Called by rank 0, which tells the other ranks."""
        self._last_step = step
        HERE.moves += 1
        self._apply(self._vote())
        return bool(self.should_stop)

    def _agree_to_stop(self, step: int, *, at_once: bool = False) -> bool:
        """Agree with the other ranks, about once a second or at once. Return whether the trial must stop."""
        self._last_step = step
        HERE.moves += 1
        self.profiler.step()
        if self._pace is None:
            self._pace = AgreementPace(self._unit)
            self._builtin.begin(self._batches)
            self._report_first_step()
        if at_once:
            self._synchronize()
            return bool(self.should_stop)
        self._reporter.is_synchronized = True
        if self._pace.is_due():
            self._synchronize()
            self._pace.begin(-self.distributed.largest(-self._pace.proposal()))
        return bool(self.should_stop)

    def _agree_between(self, batches: int = 1) -> bool:
        """Count batches of all ranks since the last synchronization. Return whether they have now agreed to stop.

        They exchange two numbers about once a second. Only :meth:`_synchronize` reports, and waits for the searcher.
        """
        if not self._stop_pace.is_due(batches):
            return False
        mine = STOP if self._stop or self._is_stop_requested() else GO_ON
        vote, gap = self.distributed.largest_each([mine, -self._stop_pace.proposal()])
        self._stop_pace.begin(-gap)
        if vote == STOP:
            self._apply(STOP)
        return vote == STOP

    def _sees_stop(self) -> bool:
        """Return whether the trial must stop or pause. If so, the end of the program is not the end of training."""
        # The program ends an epoch that is over but for the body of its last batch: a resumed run could not.
        if self._stop and self._progress.handed == self._stopped_in and self._progress.in_last_batch:
            return False
        self._left_early = self._left_early or self._stop
        self._progress.is_stopping = self._left_early
        return self._stop

    def _synchronize(self) -> None:
        """Synchronize with the other ranks: agree on stopping, and write the reports."""
        vote, counts = self._reporter.synchronize(self._vote(), self._builtin.take_counts())
        self._builtin.add_counts(counts)
        self._apply(vote)
        self._stop_pace.begin()
        if self._builtin.is_due(self._batches):
            self._record()

    def _record(self) -> None:
        """Record built-in metrics. Called on rank 0."""
        if self._builtin.batch_samples is None and "global_batch_size" in self.hparams:
            self._builtin.batch_samples = self.global_batch_size
        # A program may count its steps in other units than batches, or report rarely.
        self._reporter.record(max(self._last_step, self._batches), self._builtin.take(), self._epochs())

    def _vote(self) -> int:
        """Return this rank's vote. Rank 0 waits for the searcher's answer if it asked."""
        if self._rungs.poll(self._is_stop_requested):
            return DECIDED
        if self._stop or self._is_stop_requested():
            return STOP
        return REACHED if self._has_reached_alone else GO_ON

    def _apply(self, vote: int) -> None:
        """Apply the vote that the ranks agreed on."""
        if vote >= STOP and not self._stop and self._progress.in_last_batch:
            self._stopped_in = self._progress.handed
        self._stop = vote >= STOP
        self._decided = self._decided or vote == DECIDED
        self._has_reached = self._has_reached or vote == REACHED

    def _is_stop_requested(self) -> bool:
        return self._stop_path is not None and self._stop_path.exists()

    def _script_position(self, step: int, global_batch: int | None) -> Position:
        return Position(batches=step, records=step * (global_batch or 0), epoch=epochs_done(self._progress))

    def _script_epochs(self) -> float | None:
        return epochs_trained(self._progress) if self._progress.counts_epochs else self._given_epochs

    def _sizes(self) -> BatchSizes:
        if self._batch_sizes is None:
            size = self.distributed.get_size()
            warn = self.distributed.get_rank() == 0
            self._batch_sizes = batch_size.from_hparams(self.hparams, size, warn=warn)
        return self._batch_sizes


@contextlib.contextmanager
def _folder_of(begun: contextlib.AbstractContextManager[NewFiles]) -> Iterator[Path]:
    with begun as files:
        yield files.path
