"""Context of a training script: ``with dtrain.init() as ctx``."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from airflow_provider_dtrain.train import sharded_tensors
from airflow_provider_dtrain.train.checkpoint.restorer import SavedProgress
from airflow_provider_dtrain.train.checkpoint.save_points import SavePoints
from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.core_context import CoreContext
from airflow_provider_dtrain.train.data import batch_size
from airflow_provider_dtrain.train.data.batch_size import Hparams
from airflow_provider_dtrain.train.data.device import mover
from airflow_provider_dtrain.train.data.first_batches import FirstBatches
from airflow_provider_dtrain.train.data.loader import BatchCounter
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.data.script_loaders import Loader, ScriptLoaders, ValidationLoader
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.gradients.clipping import clip_of
from airflow_provider_dtrain.train.gradients.lr_schedules import Schedules, check_mode
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared, is_average, is_distributed
from airflow_provider_dtrain.train.process.heartbeat import HERE
from airflow_provider_dtrain.train.process.streams import Streams
from airflow_provider_dtrain.train.reports import console, failure
from airflow_provider_dtrain.train.reports.builtin_metrics import BuiltinMetrics
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.gathered_samples import gather_samples
from airflow_provider_dtrain.train.reports.metrics import Reporter
from airflow_provider_dtrain.train.reports.short_run import ShortRun, StepLimit, wait_for_device
from airflow_provider_dtrain.train.reports.timings import RankTimings
from airflow_provider_dtrain.train.search.rungs import RungQuestions

log = logging.getLogger(__name__)


class Context(CoreContext):
    """One rank of a trial. :func:`airflow_provider_dtrain.train.init` returns it.

    It adds training with PyTorch to :class:`CoreContext`: prepared objects, data, steps, and checkpoints of them.
    """

    def __init__(
        self,
        env: RankEnvironment,
        distributed: Distributed,
        writer: EventWriter,
        reporter: Reporter,
        saver: Saver,
        prepared: Prepared,
        progress: Progress,
        gradients: Gradients,
        streams: Streams,
        timings: RankTimings,
        rungs: RungQuestions,
        builtin: BuiltinMetrics,
        *,
        hparams: Hparams,
        seed: int,
        device: Callable[[], Any],
    ) -> None:
        super().__init__(
            env, distributed, writer, reporter, saver, progress, timings, rungs, builtin, hparams=hparams, seed=seed
        )
        self._prepared = prepared
        self._gradients = gradients
        self._flops = builtin.flops
        self._clock = timings.clock
        self._timed = timings.enabled
        self._time_to_device = timings.adder("to_device")
        self._time_backward = timings.adder("backward")
        self._time_step = timings.adder("step_optimizer")
        self._time_schedulers = timings.adder("step_lr_schedulers")
        self._find_device = device
        self._streams = streams
        #: Whether the latest :meth:`step` took an optimizer step.
        self.stepped = False
        self._counter = BatchCounter(progress)
        self._schedules = Schedules()
        run = ShortRun.of(env.config) if env.on_cluster else None
        #: First batch of each data set, which a short run repeats; None: data is not repeated.
        self._first_batches = FirstBatches() if run is not None and run.is_synthetic else None
        self._loaders = ScriptLoaders(distributed, seed, self._first_batches)
        if run is not None:
            timings.on_batch = StepLimit(
                run, distributed, timings, settle=wait_for_device, check=gradients.check_effect
            )
        self._points = SavePoints(
            saver,
            progress,
            prepared,
            distributed,
            counters=lambda: {"batches": self._batches, "epochs_stepped": self._schedules.epochs_stepped},
            facts=self._facts_of,
        )
        #: Validation data of the latest loop.
        self._validated_data: ValidationLoader | None = None

    @functools.cached_property
    def device(self) -> Any:
        """The torch.device of this rank, None without PyTorch. The first use imports torch."""
        return self._find_device()

    @functools.cached_property
    def _move(self) -> Callable[[Any], Any]:
        return mover(self.device)

    # -- training ------------------------------------------------------------------------------------------------------

    def prepare(
        self,
        *objects: Any,
        scheduler_step: str = "batch",
        find_unused_parameters: bool = False,
        ddp: Mapping[str, Any] | None = None,
        wrap: bool = True,
    ) -> Any:
        """Return the objects ready for training: a tuple in the given order, or the only object itself.

        Models go to the device and, with more than one rank, into DistributedDataParallel. Optimizers, schedulers
        and other objects with ``state_dict`` and ``load_state_dict`` become part of checkpoints. Until the first epoch,
        batch or :meth:`backward`, all ranks draw the same random numbers. From then on, each rank draws its own
        (dropout, augmentation).

        :param scheduler_step: when the schedulers advance: ``batch`` (at each :meth:`step` of their optimizer),
            ``epoch`` (in :meth:`epochs`, before each epoch except the first), ``manual`` (by the script).
            ReduceLROnPlateau is always manual, because it needs a metric
        :param find_unused_parameters: for models that do not use every parameter in every step
        :param wrap: False: models are neither moved nor put into DistributedDataParallel, because they are parallel
            already or because no optimizer trains them. An ``AveragedModel`` is never put into it
        :param ddp: further options of DistributedDataParallel, e.g. ``{"static_graph": True}``
        :raises SetupError: an object's type or ``scheduler_step`` is not supported, its parameters are sharded in a way
            that checkpoints cannot hold (by anything but ``fully_shard`` and DTensor), or a model that is not put into
            DistributedDataParallel differs between the ranks
        """
        check_mode(scheduler_step)
        ddp = {**({"find_unused_parameters": True} if find_unused_parameters else {}), **(ddp or {})}
        ready = []
        alike = []
        for item in objects:
            if self._saver.policy["keep"] != "none":
                sharded_tensors.refuse_item(item)
            kind = self._prepared.add(item)
            if kind == "model" and wrap and is_average(item):
                item.to(self.device)
                self._gradients.know_model(item)
                alike.append(item)
            elif kind == "model" and not wrap:
                self._gradients.know_model(item)
                # Without checkpoints, which have the models of rank 0, each rank may have its own.
                alike += [item] * (self._saver.policy["keep"] != "none")
            elif kind == "model":
                item = self._gradients.wrap_model(item, ddp)
                self._prepared.models[-1] = item
                self._timings.watch_model(item)
                alike += [item] * (not is_distributed(item) or not ddp.get("init_sync", True))
            elif kind == "optimizer":
                self._gradients.add_optimizer(item)
            elif kind == "scheduler":
                self._schedules.add(scheduler_step, item)
            ready.append(item)
        self._prepared.refuse_whole_averages()
        if self._saver.policy["keep"] != "none":
            self._prepared.refuse_unknown_tensors()
        self._gradients.refuse_different(alike)
        return ready[0] if len(ready) == 1 else tuple(ready)

    def register(self, **objects: Any) -> None:
        """Add objects to checkpoints by name. They are neither moved nor wrapped.

        For averages of weights, counters and samplers. The order of the names does not matter. Called before
        :meth:`restore_checkpoint`.

        :param objects: name -> object with ``state_dict`` and ``load_state_dict``
        :raises SetupError: an object has no state, its name is taken, or it averages a sharded model with whole tensors
        """
        for name, item in objects.items():
            self._prepared.register(name, item)
        self._prepared.refuse_whole_averages()

    def to_device(self, batch: Any) -> Any:
        """Return the batch on this rank's device, including tensors inside lists, tuples and dicts."""
        if not self._timed:
            return self._move(batch)
        before = self._clock()
        ready = self._move(batch)
        self._time_to_device(self._clock() - before)
        return ready

    def loader(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool = False,
        max_batches: int | None = None,
        **options: Any,
    ) -> Loader:
        """Return this rank's part of one epoch of training data, from the restored position on.

        Global batch ``b`` of an epoch holds the same samples with any number of slots. A data set with a sampler, an
        iterable data set or a ready loader is used as in a trial class, see "Which loaders are cut" in
        docs/training/trial-class.md. Then, all ranks make this call.

        :param data: a map-style data set, the whole one on each rank; an iterable data set; or a ready DataLoader
        :param batch_size: samples per rank and step; default: :attr:`per_slot_batch_size`
        :param shuffle: shuffle a map-style data set by the trial's seed, in a new order each epoch; default: true
        :param drop_last: drop a smaller last batch. Otherwise it is divided evenly, and at most ``slots - 1`` samples
            occur twice
        :param max_batches: length of an epoch in batches; default: all data
        :param options: options of ``torch.utils.data.DataLoader``, e.g. ``num_workers``, ``collate_fn``, ``sampler``
        :raises SetupError: the data differs between the ranks, or cannot be divided between them
        """
        self._progress.has_loader = True
        shares = self._loaders.shares(
            data,
            "ctx.loader",
            "training",
            per_slot=lambda: self.per_slot_batch_size,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            limit=max_batches,
            options=options,
        )
        self._builtin.know_loader(shares.loader)
        return Loader(
            shares,
            self._progress,
            ranks=self.distributed.get_size(),
            timings=self._timings,
            on_last=self._gradients.announce_last,
            leaves=self._sees_stop,
            streams=self._streams,
            boundary=self._points,
        )

    def validation_loader(self, data: Any, *, batch_size: int | None = None, **options: Any) -> ValidationLoader:
        """Return this rank's share of validation data, in order. Each sample is on exactly one rank.

        Shares may differ by one sample, so pass their size to :meth:`report_validation` as ``weight``. Call a model
        with buffers (batch norm) as ``dtrain.unwrap(model)`` here: DistributedDataParallel exchanges buffers in each
        call, and would wait for a rank that has no batch left.

        :param data: as for :meth:`loader`
        :raises SetupError: the data differs between the ranks, or cannot be divided between them
        """
        shares = self._loaders.shares(
            data,
            "ctx.validation_loader",
            "validation",
            per_slot=lambda: self.per_slot_batch_size,
            batch_size=batch_size,
            shuffle=None,
            options=options,
        )
        return ValidationLoader(shares, self._begin_validation)

    def _begin_validation(self, loader: ValidationLoader) -> None:
        self._validated_data = loader
        self._builtin.pause(self._batches)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the remaining epochs, up to ``count - 1``. The first may be a restored, partly trained epoch.

        When the trial must stop or pause, :meth:`loader` ends the current epoch within about a second, or at the next
        step if that takes longer, and no further epoch begins. Training later resumes from the checkpoint that the loop
        body saves then.

        :param count: number of epochs; default: ``searcher.max_length``, if it is in epochs
        """
        count = self._goal.epochs() if count is None else count
        console.log_end(self._env, self._progress.epoch, count)
        self._progress.had_empty_loop = self._progress.had_empty_loop or self._progress.epoch >= count
        for epoch in range(self._progress.epoch, count):
            self._synchronize()
            if self._sees_stop():
                break
            self._progress.begin_epoch(epoch)
            self._progress.last_epoch = epoch == count - 1
            self._schedules.begin_epoch(epoch)
            self._streams.part()
            yield epoch
            if self._progress.has_loader:
                self._check_effect(1)
            if not self._left_early:
                self._progress.end_epoch()
            self._points.reach()
        self._progress.in_epochs = self._progress.last_epoch = False
        # After the last epoch, each rank draws its own numbers, also if a restored run has no epoch left.
        self._streams.part()

    def backward(self, loss: Any, **options: Any) -> None:
        """Compute gradients. With more than one rank, they are averaged over the ranks.

        With ``optimizations.aggregation_frequency`` k, gradients are added up, and averaged on every k-th batch only.
        With ``mixed_precision: fp16``, the loss is scaled first.

        :param options: options of ``Tensor.backward``: ``gradient``, ``retain_graph``, ``create_graph``, ``inputs``
        :raises NonFiniteLossError: the loss is NaN; on a GPU, a later synchronization raises it
        """
        if self._streams.is_waiting:
            self._streams.train()
        if self._points.is_awaited:
            self._points.train()
        if not self._timed:
            self._gradients.backward(loss, **options)
            return
        before = self._clock()
        self._gradients.backward(loss, **options)
        self._time_backward(self._clock() - before)

    def autocast(self) -> Any:
        """Return a context manager for computations outside a model, with the precision of ``mixed_precision``.

        The forward pass of a prepared model does not need it.
        """
        return self._gradients.autocast()

    def step(
        self,
        optimizer: Any,
        closure: Callable[[], Any] | None = None,
        *,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        flush: bool = False,
    ) -> Any:
        """Take one optimizer step, advance its schedulers, clear the gradients. Called by all ranks, every batch.

        With ``optimizations.aggregation_frequency`` k, the step is taken on every k-th call, see :attr:`stepped`. The
        last group of training may be smaller. :meth:`epochs` and :meth:`loader` together detect it. Of several
        optimizers, each has its own groups.

        :param closure: computes the loss, calls :meth:`backward` with it and returns it, for optimizers that evaluate
            it several times (LBFGS). Gradients are cleared before each call
        :param clip_grad_norm: largest norm of all gradients of this optimizer together
        :param clip_grad_value: largest absolute value of each element of the gradients
        :param flush: finish the group here, after the last batch of a loop of the script's own
        :return: the norm before clipping (a tensor); None without clipping by norm, or when no step was due
        :raises SetupError: a model's gradients were not exchanged between the ranks
        """
        clip = clip_of(clip_grad_norm, clip_grad_value)
        before = self._clock()
        self.stepped, norm = self._gradients.step(optimizer, clip=clip, closure=closure, flush=flush)
        after = self._clock()
        self._time_step(after - before)
        if self.stepped and self._schedules.by_step:
            after = self._advance(optimizer, after)
        if self._timed:
            self._timings.batch_done(after)
        if self._counter.is_new(optimizer):
            self._batches += 1
            if self._saver.digests.records_steps:
                self._saver.digests.step(self._batches)
            self.profiler.step()
            if self._flops.pending:
                self._flops.after_batch()
            if self._batches % self._unit == 0:
                self._synchronize()
            else:
                self._agree_between()
        if not self._began:
            self._began = self._reporter.is_synchronized = HERE.started = True
            self._builtin.begin(self._batches)
            self._report_first_step()
        return norm

    @contextlib.contextmanager
    def toggle(self, optimizer: Any) -> Iterator[None]:
        """Compute gradients for one of several optimizers only, for the duration of the block.

        Parameters of the other prepared optimizers take no gradients inside it, e.g. those of the discriminator while
        the generator learns. Needed for such losses with ``optimizations.aggregation_frequency`` above 1.

        :raises SetupError: the optimizer is not prepared
        """
        with self._gradients.toggle(optimizer):
            yield

    def gather_for_metrics(self, values: Any) -> Any:
        """Return values of all ranks' samples, e.g. predictions, without duplicates. Called once by all ranks.

        Call it after the loop over :meth:`validation_loader`, with the values of all its batches. They are then in the
        order of the data set; values of anything else are in the order of the ranks. After several such loops, call
        ``gather`` of the loader instead. Metrics of ``torchmetrics`` need no such call, because they exchange their
        states themselves.

        :param values: a tensor whose first dimension is the samples, or such tensors in a dict, list or tuple; None on
            a rank without samples
        :return: the same structure on the CPU, equal on all ranks
        """
        if self._validated_data is not None:
            return self._validated_data.gather(values)
        return gather_samples(self.distributed.allgather, values, None)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_checkpoint(self, step: int) -> str | None:
        """Save all prepared objects, the position in the data and every rank's random state. Called by all ranks.

        A copy is taken at once and written in the background while training continues. In the last batch of a loop over
        :meth:`loader`, the copy is taken when the epoch is over, because a resumed run begins with the next one.

        :return: the folder or URL that the checkpoint will have, on rank 0; None on the other ranks and with
            ``checkpoint_policy: none``
        :raises CheckpointError: the state cannot be saved, or another run writes to the same folder. A save that the
            storage rejects is tried again, and reported; only the last one of the program raises
        :raises NonFiniteWeightsError: weights are NaN or infinite. Nothing is saved, so the last checkpoint stays
        """
        self._last_step = step
        self._check_effect(step)
        self._synchronize()
        self._builtin.pause(self._batches)
        with self._timings.of("checkpoint"):
            saved = self._points.save(step)
        self._builtin.resume(self._batches)
        return saved

    def saved_progress(self, *, start_over: bool = False) -> SavedProgress | None:
        """Return step, epochs and metrics of the checkpoint that :meth:`restore_checkpoint` would load, or None.

        For programs whose objects depend on the progress of training, such as parameter groups or layers that are added
        later. Called by all ranks. Everything is read and checked, as in a restore, and nothing is loaded.

        :param start_over: return None when every checkpoint is damaged, instead of an error
        """
        return self._saver.restorer.progress(start_over=start_over)

    def restore_checkpoint(self, *, start_over: bool = False) -> int:
        """Load the latest intact checkpoint into all prepared objects. Return its step, or 0 without one.

        Without a checkpoint, the models get the weights of ``searcher.source_checkpoint``, if the configuration names
        one. Called by all ranks, after :meth:`prepare` and before the training loop.

        :param start_over: return 0 when every checkpoint is damaged, instead of an error
        :raises CheckpointError: the checkpoint does not fit the prepared objects, every checkpoint is damaged, or
            another run writes to the same folder
        """
        metadata, counters = self._saver.restore(start_over=start_over)
        if not metadata:
            return 0
        self._is_restored = True
        self._batches = counters["batches"]
        self._schedules.epochs_stepped = counters["epochs_stepped"]
        self._last_step = metadata["step"]
        self._validated = (metadata["step"], metadata.get("metrics") or {})
        if self.distributed.get_rank() == 0 and metadata.get("global_batch_size"):
            batch = self.hparams.get("global_batch_size", 0)
            batch_size.suggest_weak_scaling(metadata, self.distributed.get_size(), batch)
        return self._last_step

    # -- validation and end --------------------------------------------------------------------------------------------

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, NameError) and self._progress.had_empty_loop:
            log.error(
                "%s. A loop of this resumed run had nothing left to train, so that its variables have no value. Give "
                "them one before the loop.",
                error,
            )
        super().__exit__(kind, error, trace)

    def report_validation(
        self,
        step: int,
        metrics: Mapping[str, Any],
        *,
        average: bool = True,
        weight: float = 1,
        epoch: float | None = None,
    ) -> str:
        """Record validation metrics, as :meth:`CoreContext.report_validation` does, and check the options before.

        :raises SetupError: ``optimizations`` are set that the loop does not use, because it calls no :meth:`step`
        """
        self._last_step = step
        self._check_effect(step)
        return super().report_validation(step, metrics, average=average, weight=weight, epoch=epoch)

    def close(self) -> None:
        """Write the result and wait for the other ranks. The ``with`` block calls it. Called by all ranks."""
        if not self._closed:
            self._points.finish()
        if not self._closed and not self._stop:
            self._gradients.check_end(trained_before=self._batches > 0)
        self._loaders.release()
        super().close()

    def leave(self) -> None:
        """Close files and process group, at the end of the interpreter.

        Without a ``with`` block, it is unknown whether the other ranks come this far, so this rank waits for none.
        """
        if not (self._closed or failure.failed()):
            self._points.finish(alone=self.distributed.get_size() == 1)
        super().leave()

    def abandon(self, *, result: bool = False) -> None:
        """Write the data of this rank without the other ranks, which may have ended or be elsewhere in the program.

        :param result: write the result as well
        """
        self._loaders.release()
        super().abandon(result=result)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _synchronize(self) -> None:
        self._gradients.inspect()
        super()._synchronize()

    def _check_effect(self, step: int) -> None:
        """Raise early when optimizations have no effect. A restored program may have nothing left to train."""
        if step > 0 and not self._batches and not self._is_restored:
            self._gradients.check_effect()

    def _advance(self, optimizer: Any, since: float) -> float:
        for scheduler in self._schedules.by_step.get(id(optimizer), ()):
            scheduler.step()
        now = self._clock()
        self._time_schedulers(now - since)
        return now
