"""The training loop of a trial class."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from airflow_provider_dtrain.train.data.device import move as move_batch
from airflow_provider_dtrain.train.data.shares import Shares
from airflow_provider_dtrain.train.durations import Geometry, Length, Position
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.process.heartbeat import COMPUTE, DATA, HERE
from airflow_provider_dtrain.train.reports.reducers import number
from airflow_provider_dtrain.train.trial.base import PyTorchTrial, check_training
from airflow_provider_dtrain.train.trial.callbacks import Callbacks
from airflow_provider_dtrain.train.trial.context import LRScheduler, PyTorchTrialContext
from airflow_provider_dtrain.train.trial.metrics import BatchMetrics, means
from airflow_provider_dtrain.train.trial.state import PreparedTrialState
from airflow_provider_dtrain.train.trial.validation import Validator
from airflow_provider_dtrain.train.values import Metrics, StateDict

log = logging.getLogger(__name__)

STEP_MODE = LRScheduler.StepMode


@dataclass(frozen=True)
class Plan:
    """Length of training, and the periods of validations and checkpoints."""

    #: None: until ``time_metric`` reaches ``max_time``.
    max_length: Length | None
    #: Batches between reports, and between checks for a stop or pause.
    scheduling_unit: int = 100
    validation_period: Length | None = None
    checkpoint_period: Length | None = None
    records_per_epoch: int | None = None
    perform_initial_validation: bool = False
    #: Checkpoints after a validation: ``best`` saves one if the validation was the best so far, ``all`` always.
    checkpoint_policy: str = "best"
    #: Lengths at which the searcher decides. The trial validates there in any case.
    rungs: tuple[Length, ...] = ()


class TrialTrainer:
    """Trains one trial on this rank, from the latest checkpoint to the end.

    :param trial: trial that was created with ``context``
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        check_training(trial)
        self._trial = trial
        self._context = context
        self._ctx = context._ctx
        self._rank = context.distributed.get_rank()
        self._callbacks = Callbacks(trial.build_callbacks(), self._ctx._timings)
        self._position = context._position = Position()
        self._state = PreparedTrialState(self._position, self._callbacks, context)
        self._metrics = BatchMetrics()
        self._goal = self._ctx._goal
        self._goal.counts = False
        self._last_metrics: dict[str, float] = {}
        self._searcher_stopped = False
        #: Batches at the latest validation and checkpoint.
        self._validated = self._saved = -1
        self._move: Any = move_batch if context.experimental.auto_to_device else None
        self._by_batch = [s for s in context.lr_schedulers if s.step_mode is STEP_MODE.STEP_EVERY_BATCH]
        self._by_epoch = [s for s in context.lr_schedulers if s.step_mode is STEP_MODE.STEP_EVERY_EPOCH]

    def run(self, plan: Plan) -> dict[str, float]:
        """Train and return the metrics of the last validation of this attempt, empty if there was none."""
        self._plan = plan
        self._ctx._position = lambda *_: self._position
        self._ctx._epochs = self._epochs
        self._ctx._records_per_epoch = plan.records_per_epoch
        try:
            self._prepare()
            self._train()
            self._shares.release()
            self._validator.release()
        finally:
            self._callbacks.call("on_trial_shutdown")
        return self._last_metrics

    # -- before the first batch ------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        trial = self._trial
        ctx = self._ctx
        context = self._context
        seed = context.get_trial_seed()
        self._shares = Shares(
            trial.build_training_data_loader(),
            context.distributed,
            seed,
            "training",
            left_alone=context.experimental.left_alone,
            repeated=ctx._first_batches,
        )
        ctx._builtin.know_loader(self._shares.loader)
        self._state.ranks = context.distributed.get_size()
        self._state.sharing = self._shares.sharing.value
        self._validator = Validator(trial, context, self._callbacks)
        self._geometry = self._measure()
        changes = self._callbacks.has("on_checkpoint_load_start")
        ctx._prepared.watch(self._on_save, self._on_load if changes else None)
        ctx.prepare(self._state)
        # The class's __init__ has built the same models on all ranks.
        ctx._streams.part()
        for model in context.models:
            model.train()
        HERE.steps = lambda: context._batch
        ctx.restore_checkpoint()
        saved = self._state.saved_sharing
        position = self._position
        self._shares.log_resumed(saved, self._state.saved_ranks, position.offset)
        position.offset = self._shares.converted(position.offset, position.epoch_batches, saved)
        # With another batch size, the same samples are another number of batches.
        position.epoch_batches = position.offset // self._shares.stride
        self._saved = self._position.batches if self._position.batches else -1
        context._initial = context._batch = self._position.batches
        ctx._progress.epoch = self._position.epoch
        ctx._progress.in_epochs = True
        ctx._reporter.is_synchronized = True
        context._reducers.reset(training=True)
        self._callbacks.call("on_trial_startup", self._position.batches, ctx._saver.shown_latest())

    def _measure(self) -> Geometry:
        context = self._context
        plan = self._plan
        batches = self._shares.length()
        has_batch = "global_batch_size" in context.get_hparams()
        size = context.get_global_batch_size() if has_batch else None
        geometry = Geometry(size, batches, plan.records_per_epoch)
        if batches is None and plan.records_per_epoch:
            batches = max(1, plan.records_per_epoch // geometry.batch_records("records_per_epoch"))
            geometry = Geometry(size, batches, plan.records_per_epoch)
        if batches is None and plan.max_length is None and plan.validation_period is None:
            raise SetupError(
                "searcher.max_time is checked in validations only, and no validation is due, because the training data "
                "has no length. Set min_validation_period, e.g. {batches: 1000}."
            )
        if batches is None and context.distributed.get_size() > 1:
            raise SetupError(
                "The training data has no length, so the ranks cannot agree on where an epoch ends. Give the data set "
                "a __len__, or set records_per_epoch."
            )
        context._epoch_length = self._usual_length = geometry.epoch_batches
        if plan.max_length is None and self._goal.max_time is None:
            raise SetupError("The length of training is not set. Set searcher.max_length, e.g. {epochs: 10}.")
        return geometry

    # -- the loop --------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        self._callbacks.call("on_training_start")
        if self._plan.perform_initial_validation and not self._position.batches:
            self._validate()
        if self._state.owes_validation:
            self._state.owes_validation = False
            self._validate()
        while not self._ends() and not self._stops():
            self._epoch()
        if self._ctx._sees_stop() and not self._searcher_stopped:
            self._checkpoint()
            return
        # Training has reached its end, even if a stop was requested meanwhile.
        self._ctx._left_early = False
        step = self._position.batches
        if self._validated != step and self._state.validated == step:
            # An earlier attempt saved after this validation. Its host may have been lost before the report arrived.
            self._report_lengths(step, self._state.metrics)
        elif self._validated != step:
            self._validate()
        self._checkpoint()

    def _epoch(self) -> None:
        """Train to the end of an epoch or of training."""
        position = self._position
        self._ctx._progress.epoch = position.epoch
        if not position.epoch_batches:
            self._callbacks.call("on_training_epoch_start", position.epoch)
        batches = self._shares.training(position.epoch, position.offset, self._usual_length)
        self._take_length()
        self._warn_if_past_end()
        while True:
            count = self._until_something()
            before = position.batches
            ended = self._batches(batches, count)
            if ended:
                self._due = self._due_at_end()
            if ended or self._is_over():
                ended = True
                if self._plan.max_length is None and self._plan.validation_period is None:
                    self._due[0] = True
            if self._is_unit_over(ended=ended) or self._ctx._agree_between(position.batches - before):
                self._report()
            if ended:
                self._end_epoch()
            self._check()
            if ended or self._ends() or self._stops():
                return

    def _is_unit_over(self, *, ended: bool) -> bool:
        """Return whether a report is due. The end of an epoch alone requires none.

        :param ended: this batch was the last of its epoch
        """
        position = self._position
        if position.batches % self._plan.scheduling_unit == 0 or any(self._due):
            return True
        length = self._plan.max_length
        if length is None:
            return False
        at = replace(position, epoch=position.epoch + 1, epoch_batches=0) if ended else position
        return length.distance(at, self._geometry) <= 0

    def _take_length(self) -> None:
        """Measure by the number of batches in the current epoch, if it is known."""
        if self._shares.drawn is not None:
            self._geometry = replace(self._geometry, epoch_batches=self._shares.drawn)
            self._context._epoch_length = self._shares.drawn

    def _is_over(self) -> bool:
        """Return whether the current epoch has all its batches."""
        length = self._geometry.epoch_batches
        return length is not None and self._position.epoch_batches >= length

    def _warn_if_past_end(self) -> None:
        length = self._geometry.epoch_batches
        done = self._position.epoch_batches
        if length is not None and done > length and self._shares.settles_at is None and self._rank == 0:
            log.warning(
                "The checkpoint was written after %d batches of epoch %d, which has %d batches now: the epoch ends. "
                "The next epoch is complete.",
                done,
                self._position.epoch,
                length,
            )

    def _due_at_end(self) -> list[bool]:
        """Return whether a validation and a checkpoint are due where the data of an epoch ended early."""
        plan = self._plan
        epoch = self._position.epoch
        geometry = self._geometry
        due = [
            period is not None and period.at_end_of(epoch, geometry)
            for period in (plan.validation_period, plan.checkpoint_period)
        ]
        rungs = any(rung.count == epoch + 1 and rung.at_end_of(epoch, geometry) for rung in plan.rungs)
        return [due[0] or rungs, due[1]]

    def _until_something(self) -> int:
        """Return the number of batches until a report, validation, checkpoint, rung, stop or end is due."""
        plan = self._plan
        position = self._position
        geometry = self._geometry
        distances = [plan.scheduling_unit - position.batches % plan.scheduling_unit, self._ctx._stop_pace.left]
        if geometry.epoch_batches is not None:
            distances.append(geometry.epoch_batches - position.epoch_batches)
        if plan.max_length is not None:
            distances.append(plan.max_length.distance(position, geometry))
        distances += [
            period.next(position, geometry) for period in (plan.validation_period, plan.checkpoint_period) if period
        ]
        rungs = [ahead for rung in plan.rungs if (ahead := rung.distance(position, geometry)) > 0]
        nearest = min(distances + rungs)
        self._due = [
            period is not None and period.next(position, geometry) == nearest
            for period in (plan.validation_period, plan.checkpoint_period)
        ]
        self._due[0] = self._due[0] or nearest in rungs
        return max(1, nearest)

    def _batches(self, batches: Iterator[Any], count: int) -> bool:
        """Train on some batches. Return whether the data ended before.

        Fewer are trained when the epoch turns out to end elsewhere than its length says.
        """
        settles_at = self._shares.settles_at
        done = self._position.epoch_batches
        if settles_at is not None and settles_at < done + count:
            self._run(batches, settles_at - done)
            count -= settles_at - done
            if self._shares.settle():
                self._take_length()
                self._due = [False, False]
                return self._is_over()
        last = self._plan.max_length is not None and (
            self._plan.max_length.distance(self._position, self._geometry) <= count
        )
        if not last:
            return self._run(batches, count)
        ended = self._run(batches, count - 1) if count > 1 else False
        if not ended:
            # The optimizer steps on this batch with any aggregation frequency.
            self._ctx._gradients.announce_last()
            ended = self._run(batches, 1)
        return ended

    def _run(self, batches: Iterator[Any], count: int) -> bool:
        context = self._context
        position = self._position
        timings = self._ctx._timings
        train_batch = self._trial.train_batch
        collect = self._metrics.add
        move = self._move
        device = context.device
        timed = timings.enabled
        clock = perf_counter
        after = self._by_batch
        end = object()
        add_next, add_move, add_train = map(timings.adder, ("dataloader_next", "to_device", "train_batch"))
        epoch = position.epoch
        first = position.batches
        done = 0
        began = clock()
        here = HERE
        profiler = self._ctx.profiler
        flops = self._ctx._flops
        digests = self._ctx._saver.digests
        for index in range(first, first + count):
            here.now = DATA
            batch = next(batches, end)
            here.now = COMPUTE
            if batch is end:
                break
            if timed:
                loaded = clock()
                add_next(loaded - began)
            if move is not None:
                batch = move(batch, device)
            if timed:
                moved = clock()
                add_move(moved - loaded)
            context._batch = index
            collect(train_batch(batch, epoch, index))
            if timed:
                began = clock()
                add_train(began - moved)
                timings.batch_done(began)
            done += 1
            if digests.records_steps:
                digests.step(index + 1)
            profiler.step()
            if flops.pending:
                flops.after_batch()
            if after:
                self._advance(after, index + 1)
            if index == context._initial:
                self._first_step(index + 1)
        self._went(done)
        return done < count

    def _first_step(self, batches: int) -> None:
        self._ctx._began = HERE.started = True
        self._ctx._builtin.begin(batches)
        self._ctx._report_first_step()

    def _went(self, batches: int) -> None:
        position = self._position
        position.batches += batches
        position.epoch_batches += batches
        position.offset += batches * self._shares.stride
        position.records += batches * (self._geometry.global_batch or 0)
        self._ctx._batches = position.batches

    def _advance(self, schedulers: list[LRScheduler], count: int) -> None:
        before = perf_counter()
        for scheduler in schedulers:
            if count % scheduler.frequency == 0:
                scheduler.scheduler.step()
        self._ctx._timings.add("step_lr_schedulers", perf_counter() - before)

    def _end_epoch(self) -> None:
        position = self._position
        if not position.offset:
            raise self._shares.nothing()
        self._callbacks.call("on_training_epoch_end", position.epoch)
        position.epoch = position.epoch + 1
        position.epoch_batches = 0
        position.offset = 0
        if self._by_epoch:
            self._advance(self._by_epoch, position.epoch)

    def _epochs(self) -> float:
        """Return the number of trained epochs, with the share of the current one if its length is known."""
        length = self._geometry.epoch_batches
        done = self._position.epoch_batches / length if length else 0.0
        return self._position.epoch + min(1.0, done)

    def _check(self) -> None:
        """Validate, save or stop, if it is due."""
        validate, save = self._due
        if self._ends():
            return
        if self._stops():
            self._state.owes_validation = validate
            return
        if validate:
            self._validate()
        if save:
            self._checkpoint()

    def _ends(self) -> bool:
        length = self._plan.max_length
        return self._searcher_stopped or (length is not None and length.distance(self._position, self._geometry) <= 0)

    def _stops(self) -> bool:
        return self._ctx._sees_stop() or self._searcher_stopped

    # -- between the batches ---------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report the means of the unit's batches, and synchronize with the other ranks."""
        step = self._position.batches
        ctx = self._ctx
        context = self._context
        count = self._metrics.count
        before = perf_counter()
        if not count:  # The data ended, or a resumed position was past its end.
            ctx._synchronize()
            return
        first = step - count + 1
        columns = self._metrics.settle(first, self._rank, fail_on_nan=ctx._reporter._fail_on_nan)
        ctx._timings.add("from_device", perf_counter() - before)
        metrics: Metrics = means(columns)
        reduced = context._reducers.reduce(context.distributed.allgather, training=True)
        context._reducers.reset(training=True)
        metrics.update((name, number(name, value)) for name, value in reduced.items())
        if metrics:
            ctx.report(step, metrics)
        ctx._synchronize()
        if self._callbacks.has("on_training_workload_end"):
            averages = ctx._reporter.mean(step, metrics, 1.0) if ctx._reporter._average else metrics
            rows = [{name: values[i] for name, values in columns.items()} for i in range(count)]
            self._callbacks.call("on_training_workload_end", averages, rows)

    def _validate(self) -> None:
        step = self._position.batches
        self._ctx._builtin.pause(step)
        metrics = self._validator.run()
        # A reducer of both training and validation now holds values of the validation.
        self._context._reducers.reset(training=True)
        self._report_lengths(step, metrics)
        value = metrics.get(self._goal.metric or "")
        improved = self._goal.improves(value, self._state.best)
        if improved:
            self._state.best = value
        policy = self._plan.checkpoint_policy
        if step and not self._ends() and (policy == "all" or (policy == "best" and improved)):
            self._checkpoint()

    def _report_lengths(self, step: int, metrics: dict[str, float]) -> None:
        """Report a validation, and learn whether the searcher ends the trial."""
        self._validated = self._state.validated = step
        self._last_metrics = self._state.metrics = metrics
        verdict = self._ctx.report_validation(step, metrics, average=False)
        self._searcher_stopped = self._searcher_stops(verdict)

    def _searcher_stops(self, verdict: str) -> bool:
        """Return whether training ends here, by its goal on rank 0 or by the searcher. The same on all ranks."""
        ends = self._rank == 0 and verdict == "stop"
        if self._ctx._rungs.units:
            if ends or self._ends():
                self._ctx._rungs.settle()
            self._ctx._apply(self._context.distributed.largest(self._ctx._vote()))
        return self._context.distributed.any(ends) or self._ctx._decided

    def _checkpoint(self) -> None:
        step = self._position.batches
        if self._saved == step:
            return
        self._saved = step
        path = self._ctx.save_checkpoint(step)
        if path is not None and self._callbacks.has(
            "on_checkpoint_write_end", "on_checkpoint_end", "on_checkpoint_upload_end"
        ):
            self._ctx._saver.finish()
            self._callbacks.call("on_checkpoint_write_end", str(path))
            self._callbacks.call("on_checkpoint_end", str(path))
            self._callbacks.call("on_checkpoint_upload_end", str(path))

    def _on_save(self, state: StateDict) -> None:
        self._callbacks.call("on_checkpoint_save_start", state)

    def _on_load(self, state: StateDict) -> None:
        self._callbacks.call("on_checkpoint_load_start", state)
