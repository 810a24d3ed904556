"""Context of a training script: ``with dtrain.init() as ctx``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train import sharded_tensors
from airflow_provider_dtrain.train.checkpoint.files import FileCheckpoints, SavedFiles
from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.context_exit import Ending
from airflow_provider_dtrain.train.data import batch_size
from airflow_provider_dtrain.train.data.batch_size import BatchSizes, Hparams
from airflow_provider_dtrain.train.data.device import mover
from airflow_provider_dtrain.train.data.loader import BatchCounter, Progress
from airflow_provider_dtrain.train.data.script_loaders import Loader, ScriptLoaders, ValidationLoader
from airflow_provider_dtrain.train.deprecation import warn_renamed
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.durations import Position
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.gradients.clipping import clip_of
from airflow_provider_dtrain.train.gradients.lr_schedules import Schedules, check_mode
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared, is_average
from airflow_provider_dtrain.train.process import seeding
from airflow_provider_dtrain.train.process.config_check import scheduling_unit
from airflow_provider_dtrain.train.process.heartbeat import HERE
from airflow_provider_dtrain.train.reports import console
from airflow_provider_dtrain.train.reports.events import EventWriter, encode_event
from airflow_provider_dtrain.train.reports.gathering import gather_samples
from airflow_provider_dtrain.train.reports.metrics import Reporter
from airflow_provider_dtrain.train.reports.profiler import Profiler
from airflow_provider_dtrain.train.reports.reducers import reduce_over_ranks
from airflow_provider_dtrain.train.reports.timings import Timings
from airflow_provider_dtrain.train.search.rungs import Rungs
from airflow_provider_dtrain.train.search.stop_answer import Pace, StopAnswer
from airflow_provider_dtrain.train.search.stop_criteria import Goal, epochs_done

#: Vote of a rank when all ranks synchronize. The largest vote wins.
GO_ON, STOP, DECIDED = range(3)


class Context(Ending):
    """One rank of a trial. :func:`airflow_provider_dtrain.train.init` returns it.

    "Called by all ranks" below means that every rank makes the call, at the same point of the program.
    """

    def __init__(
        self,
        env: Environment,
        distributed: Distributed,
        writer: EventWriter,
        reporter: Reporter,
        saver: Saver,
        prepared: Prepared,
        progress: Progress,
        gradients: Gradients,
        timings: Timings,
        rungs: Rungs,
        *,
        hparams: Hparams,
        seed: int,
        device: Any,
    ) -> None:
        self._env = env
        self._writer = writer
        self._reporter = reporter
        self._saver = saver
        self._prepared = prepared
        self._progress = progress
        self._gradients = gradients
        self._timings = timings
        self._clock = timings.clock
        self._rungs = rungs
        self._decided = False
        self._has_reached = self._is_restored = False
        self._timed = timings.enabled
        self._move = mover(device)
        self._time_to_device = timings.adder("to_device")
        self._time_backward = timings.adder("backward")
        self._time_step = timings.adder("step_optimizer")
        self._time_schedulers = timings.adder("step_lr_schedulers")
        #: Small messages between the ranks.
        self.distributed = distributed
        #: The trial's hyperparameters and its seed, the same on all ranks.
        self.hparams = hparams
        self.seed = seed
        #: torch.device of this rank; None without PyTorch.
        self.device = device
        #: The effective experiment configuration; empty off-cluster.
        self.config: Mapping[str, Any] = env.config
        self._goal = Goal(env.config.get("searcher") or {})
        self._batch_sizes: BatchSizes | None = None
        self._unit = scheduling_unit(env.config)
        self._stop_path = env.run_dir / "stop_requested" if env.run_dir else None
        #: Returns the position of training at a step. The trainer of a trial class replaces it by its own.
        self._position: Callable[[int, int | None], Position] = self._script_position
        self._records_per_epoch: int | None = None
        self._streams_apart = self._began = False
        #: Whether the latest :meth:`step` took an optimizer step.
        self.stepped = False
        self._counter = BatchCounter(progress)
        self._schedules = Schedules()
        self._loaders = ScriptLoaders(distributed, seed)
        #: Size of the latest validation data, if its samples were dealt to the ranks in turn.
        self._validation_samples: int | None = None
        self._files = FileCheckpoints(env, distributed, saver)
        self._pace: Pace | None = None
        #: Recorder of traces of some batches.
        self.profiler = Profiler(env, writer)

    # -- the trial -------------------------------------------------------------------------------------------------

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
        read it. The value is the same on all ranks: they agree on it every ``scheduling_unit`` calls of :meth:`step`,
        and in each :meth:`sync`, :meth:`report_validation` with ``average``, :meth:`save_checkpoint`,
        :meth:`checkpoint` and epoch of :meth:`epochs`.

        A loop without :meth:`step`, of any framework, calls it in each step instead: ``if ctx.should_stop(step)``. The
        ranks then agree about once a second. All ranks must call it.
        """
        return StopAnswer(self._has_reached or self._sees_stop(), self._ask_to_stop)

    @property
    def stop_requested(self) -> bool:
        """Former name of :attr:`should_stop`, which is also True once the trial has trained long enough."""
        warn_renamed("ctx.stop_requested", "ctx.should_stop")
        return self._sees_stop()

    # -- training --------------------------------------------------------------------------------------------------

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
        and other objects with ``state_dict`` and ``load_state_dict`` become part of checkpoints. From the first
        call on, each rank draws its own random numbers (dropout, augmentation). Before it, all ranks draw the same.

        :param scheduler_step: when the schedulers advance: ``batch`` (at each :meth:`step` of their optimizer),
            ``epoch`` (in :meth:`epochs`, before each epoch except the first), ``manual`` (by the script).
            ReduceLROnPlateau is always manual, because it needs a metric
        :param find_unused_parameters: for models that do not use every parameter in every step
        :param wrap: False: models are neither moved nor put into DistributedDataParallel, because they are parallel
            already or because no optimizer trains them. An ``AveragedModel`` is never put into it
        :param ddp: further options of DistributedDataParallel, e.g. ``{"static_graph": True}``
        :raises SetupError: an object's type or ``scheduler_step`` is not supported, or an object's parameters are
            sharded over the ranks, which checkpoints cannot hold
        """
        check_mode(scheduler_step)
        ddp = {**({"find_unused_parameters": True} if find_unused_parameters else {}), **(ddp or {})}
        ready = []
        for item in objects:
            if self._saver.policy["keep"] != "none":
                sharded_tensors.refuse_item(item)
            kind = self._prepared.add(item)
            if kind == "model" and wrap and is_average(item):
                item.to(self.device)
            elif kind == "model" and wrap:
                item = self._gradients.wrap_model(item, ddp)
                self._prepared.models[-1] = item
                self._timings.watch_model(item)
            elif kind == "optimizer":
                self._gradients.add_optimizer(item)
            elif kind == "scheduler":
                self._schedules.add(scheduler_step, item)
            ready.append(item)
        if not self._streams_apart:
            self._streams_apart = True
            seeding.seed_everything(seeding.derive(self.seed, "rank", self.distributed.get_rank()))
        return ready[0] if len(ready) == 1 else tuple(ready)

    def register(self, **objects: Any) -> None:
        """Add objects to checkpoints by name. They are neither moved nor wrapped.

        For averages of weights, counters and samplers. The order of the names does not matter. Called before
        :meth:`restore_checkpoint`.

        :param objects: name -> object with ``state_dict`` and ``load_state_dict``
        :raises SetupError: an object has no state, or its name is taken
        """
        for name, item in objects.items():
            self._prepared.register(name, item)

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
        return Loader(
            shares,
            self._progress,
            ranks=self.distributed.get_size(),
            timings=self._timings,
            on_last=self._gradients.announce_last,
            leaves=self._sees_stop,
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
        self._validation_samples = shares.dealt_samples
        return ValidationLoader(shares)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the remaining epochs, up to ``count - 1``. The first may be a restored, partly trained epoch.

        When the trial must stop or pause, :meth:`loader` ends the current epoch at the next ``scheduling_unit``, and no
        further epoch begins. Training later resumes from the checkpoint that the loop body saves then.

        :param count: number of epochs; default: ``searcher.max_length``, if it is in epochs
        """
        count = self._goal.epochs() if count is None else count
        console.say_done(self._env, self._progress.epoch, count)
        for epoch in range(self._progress.epoch, count):
            self._meet()
            if self._sees_stop():
                break
            self._progress.begin_epoch(epoch)
            self._progress.last_epoch = epoch == count - 1
            self._schedules.begin_epoch(epoch)
            yield epoch
            if self._progress.has_loader:
                self._check_effect(1)
            self._progress.is_whole = self._progress.is_whole or not self._left_early
        self._progress.in_epochs = self._progress.last_epoch = False

    def backward(self, loss: Any, **options: Any) -> None:
        """Compute gradients. With more than one rank, they are averaged over the ranks.

        With ``optimizations.aggregation_frequency`` k, gradients are added up, and averaged on every k-th batch only.
        With ``mixed_precision: fp16``, the loss is scaled first.

        :param options: options of ``Tensor.backward``: ``gradient``, ``retain_graph``, ``create_graph``, ``inputs``
        """
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
            if self.profiler.running:
                self.profiler.step()
            if self._batches % self._unit == 0:
                self._meet()
        if not self._began:
            self._began = self._reporter.meets = HERE.started = True
            self._writer.write("first_step", {})
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

    # -- reports ---------------------------------------------------------------------------------------------------

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record training metrics. Takes microseconds and never waits for the device or another rank.

        With more than one rank, the mean over the ranks is recorded when the ranks next synchronize, see
        :attr:`should_stop`. With ``optimizations.average_training_metrics: false``, rank 0 records its own values.

        :param step: number of batches, counted by the script
        :param metrics: name -> number, or tensor of one element
        :raises MetricError: a value is not a number
        :raises NonFiniteLossError: a metric whose name ends in ``loss`` is NaN. A later call raises it for a value on a
            GPU, which is read later
        :raises LimitError: there are more than 1,000 metrics, or a name has more than 256 characters
        """
        self._last_step = step
        self._reporter.report(step, metrics, self._progress.epoch if self._progress.in_epochs else None)

    def report_validation(
        self, step: int, metrics: Mapping[str, Any], *, average: bool = True, weight: float = 1
    ) -> str:
        """Record validation metrics. Return ``stop`` when the trial has trained long enough, else ``continue``.

        It has when ``step`` has reached ``searcher.max_length``, when ``time_metric`` has reached ``max_time``, or when
        the searcher has ended the trial. At a length at which the searcher decides, the ranks wait here for its answer,
        at most ``decision_timeout``. With ``average``, :attr:`should_stop` is then True as well. Without it, they wait
        when they next synchronize, see :attr:`should_stop`.

        :param metrics: this rank's metrics
        :param average: record the mean over the ranks (called by all ranks). False: record rank 0's own values, which
            must cover the whole data set
        :param weight: weight of this rank's metrics in the mean, e.g. its number of samples
        :raises MissingMetricError: the metrics lack one that the searcher needs
        """
        self._last_step = step
        self._check_effect(step)
        if average:
            self._meet()
            values = self._reporter.mean(step, metrics, weight)
        else:
            values = self._reporter.numbers(step, metrics)
        safe = self._reporter.json_safe(values)
        self._validated = step, safe
        # A loop of the script's own that saw the stop request may have ended in the middle of the epoch.
        self._progress.is_whole = self._progress.in_epochs and not self._left_early
        console.say_validation(self._env, step, safe)
        batch = self.global_batch_size if "global_batch_size" in self.hparams else None
        position = self._position(step, batch)
        if self.distributed.get_rank() == 0:
            self._writer.write("validation", {"step": step, "metrics": safe})
            self._reporter.loggers.log(step, safe, "validation/")
            self._goal.check(safe)
            units = self._goal.units(position, safe, self._records_per_epoch)
            self._rungs.reach(units, safe.get(self._goal.metric or ""), step)
        reached = self._goal.reached(position, safe, batch)
        if reached:
            self._rungs.settle()
        if average and self._rungs.units:
            self._take(self.distributed.largest(self._wish()))
        if average:
            self._has_reached = reached
        return "stop" if reached or self._decided else "continue"

    def sync(self, step: int) -> None:
        """Agree with the other ranks on :attr:`should_stop`, and record reports. Called by all ranks.

        A loop that does not call :meth:`step` calls it every few batches.

        :param step: number of batches, counted by the script
        """
        self._last_step = step
        self._meet()

    def reduce(self, metrics: Mapping[str, Any], *, weight: float = 1, reducer: str = "avg") -> dict[str, float]:
        """Return metrics over all ranks, the same on each rank. Called by all ranks.

        :param metrics: metrics of this rank; empty on a rank without samples
        :param weight: weight of this rank in the mean, e.g. its number of samples
        :param reducer: ``avg``, ``sum``, ``max`` or ``min``
        """
        return reduce_over_ranks(self.distributed.allgather, metrics, weight, reducer)

    def gather_for_metrics(self, values: Any) -> Any:
        """Return values of all ranks' samples, e.g. predictions, without duplicates. Called once by all ranks.

        Call it after the loop over :meth:`validation_loader`, with the values of all its batches. They are then in the
        order of the data set; values of anything else are in the order of the ranks. Metrics of ``torchmetrics`` need
        no such call, because they exchange their states themselves.

        :param values: a tensor whose first dimension is the samples, or such tensors in a dict, list or tuple; None on
            a rank without samples
        :return: the same structure on the CPU, equal on all ranks
        """
        return gather_samples(self.distributed.allgather, values, self._validation_samples)

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

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, step: int) -> str | None:
        """Save all prepared objects, the position in the data and every rank's random state. Called by all ranks.

        A copy is taken at once and written in the background while training continues.

        :return: the folder or URL that the checkpoint will have, on rank 0; None on the other ranks and with
            ``checkpoint_policy: none``
        :raises CheckpointError: the state cannot be saved, or another run writes to the same folder. A save that the
            storage rejects is tried again, and reported; only the last one of the program raises
        """
        self._last_step = step
        self._check_effect(step)
        self._meet()
        facts = self._facts_of(step)
        with self._timings.of("checkpoint"):
            path = self._saver.save(
                step, {"batches": self._batches, "epochs_stepped": self._schedules.epochs_stepped}, facts
            )
        return str(path) if path else None

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

    def checkpoint(
        self, step: int, *, metadata: Mapping[str, Any] | None = None
    ) -> contextlib.AbstractContextManager[Path]:
        """Return a context manager that yields a folder. The files that the block writes to it become a checkpoint.

        For programs that save their state themselves, with any framework. Called by all ranks: the files of all ranks
        together are the checkpoint, at any depth. Two ranks may write the same name only with the same content. Rank 0
        computes checksums and gives the checkpoint its name in the background. A program that is killed leaves no part
        of it. When the block raises on a rank, there is no checkpoint, and the other ranks raise CheckpointError.

        :param metadata: JSON values that :meth:`latest_checkpoint` returns, the same on all ranks
        :raises CheckpointError: the files or the metadata cannot be saved, or the previous save failed
        """
        self._last_step = step
        self._meet()
        return self._files.write(step, metadata or {}, self._facts_of(step))

    def latest_checkpoint(self, *, start_over: bool = False) -> SavedFiles | None:
        """Return the newest intact checkpoint of :meth:`checkpoint`: folder, step, metadata. None without one.

        Without one, a trial gets ``searcher.source_checkpoint`` if the configuration names it, with ``is_source`` set.
        Called by all ranks, before the training loop. Each rank gets a folder with the files of all ranks that wrote
        it, on its own host.

        :param start_over: return None when every checkpoint is damaged, instead of an error
        :raises CheckpointError: the newest checkpoint was written by :meth:`save_checkpoint`, or all are damaged
        """
        found = self._files.latest(start_over=start_over)
        if found is not None and not found.is_source:
            self._last_step = found.step
            # The program may have had nothing left to train.
            self._batches = max(self._batches, 1)
        return found

    def restore(self) -> int:
        """Former name of :meth:`restore_checkpoint`."""
        warn_renamed("ctx.restore", "ctx.restore_checkpoint")
        return self.restore_checkpoint()

    # -- inside ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Context:
        return self

    def _facts_of(self, step: int) -> dict[str, Any]:
        """Return the metadata of a checkpoint."""
        metrics = self._validated[1] if self._validated is not None and self._validated[0] == step else {}
        return {
            "epoch": self._progress.epoch,
            "metrics": metrics,
            "global_batch_size": self.hparams.get("global_batch_size"),
        }

    def _ask_to_stop(self, step: int) -> bool:
        """Agree with the other ranks about once a second. Return whether the trial must stop."""
        self._last_step = step
        HERE.moves += 1
        if self.profiler.running:
            self.profiler.step()
        if self._pace is None:
            self._pace = Pace(self._unit)
            self._reporter.meets = True
            if not self._began:
                self._writer.write("first_step", {})
        if self._pace.is_due():
            self._meet()
            self._pace.begin(-self.distributed.largest(-self._pace.proposal()))
        return bool(self.should_stop)

    def _sees_stop(self) -> bool:
        """Return whether the trial must stop or pause. If so, the end of the program is not the end of training."""
        self._left_early = self._left_early or self._stop
        return self._stop

    def _meet(self) -> None:
        """Synchronize with the other ranks: agree on stopping, and write the reports."""
        self._gradients.look()
        self._take(self._reporter.meet(self._wish()))

    def _check_effect(self, step: int) -> None:
        """Raise early when optimizations have no effect. A restored program may have nothing left to train."""
        if step > 0 and not self._batches and not self._is_restored:
            self._gradients.check_effect()

    def _wish(self) -> int:
        """Return this rank's vote. Rank 0 waits for the searcher's answer if it asked."""
        if self._rungs.look(self._is_asked_to_stop):
            return DECIDED
        return STOP if self._stop or self._is_asked_to_stop() else GO_ON

    def _take(self, wish: int) -> None:
        """Apply the vote that the ranks agreed on."""
        self._stop = wish != GO_ON
        self._decided = self._decided or wish == DECIDED

    def _is_asked_to_stop(self) -> bool:
        return self._stop_path is not None and self._stop_path.exists()

    def _script_position(self, step: int, global_batch: int | None) -> Position:
        return Position(batches=step, records=step * (global_batch or 0), epoch=epochs_done(self._progress))

    def _advance(self, optimizer: Any, since: float) -> float:
        """Advance the schedulers of an optimizer. Return the time afterwards."""
        for scheduler in self._schedules.by_step.get(id(optimizer), ()):
            scheduler.step()
        now = self._clock()
        self._time_schedulers(now - since)
        return now

    def _sizes(self) -> BatchSizes:
        if self._batch_sizes is None:
            size = self.distributed.get_size()
            warn = self.distributed.get_rank() == 0
            self._batch_sizes = batch_size.from_hparams(self.hparams, size, warn=warn)
        return self._batch_sizes
