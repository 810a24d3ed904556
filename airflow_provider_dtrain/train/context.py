"""What a training script holds in its hands: ``with dtrain.init() as ctx``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_dtrain.train import batch_size, seeding, sharded_tensors, telling
from airflow_provider_dtrain.train.batch_size import BatchSizes, Hparams
from airflow_provider_dtrain.train.data import Loader, Progress, validation_loader
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.ending import Ending
from airflow_provider_dtrain.train.environment import Environment
from airflow_provider_dtrain.train.events import EventWriter, encode_event
from airflow_provider_dtrain.train.goals import Goal, epochs_done
from airflow_provider_dtrain.train.gradients import Gradients
from airflow_provider_dtrain.train.known_fields import scheduling_unit
from airflow_provider_dtrain.train.lengths import Position
from airflow_provider_dtrain.train.metrics import Reporter
from airflow_provider_dtrain.train.moving import mover
from airflow_provider_dtrain.train.progress import HERE
from airflow_provider_dtrain.train.reducers import reduce_over_ranks
from airflow_provider_dtrain.train.rungs import Rungs
from airflow_provider_dtrain.train.saving import Saver
from airflow_provider_dtrain.train.schedules import Schedules, check_mode
from airflow_provider_dtrain.train.state import Prepared
from airflow_provider_dtrain.train.timings import Timings

#: What a rank wishes when all meet; the largest wish counts.
GO_ON, STOP, DECIDED = range(3)


class Context(Ending):
    """One rank of a trial. Made by :func:`airflow_provider_dtrain.train.init`.

    "Called by all ranks" below means: every rank makes the call, at the same point of the program.
    """

    def __init__(
        self, env: Environment, distributed: Distributed, writer: EventWriter, reporter: Reporter, saver: Saver,
        prepared: Prepared, progress: Progress, gradients: Gradients, timings: Timings, rungs: Rungs, *,
        hparams: Hparams, seed: int, device: Any,
    ) -> None:  # fmt: skip
        self._env, self._writer, self._reporter, self._saver = env, writer, reporter, saver
        self._prepared, self._progress = prepared, progress
        self._gradients, self._timings, self._clock = gradients, timings, timings.clock
        self._rungs, self._decided = rungs, False
        self._timed, self._move = timings.enabled, mover(device)
        self._time_to_device, self._time_backward = timings.adder("to_device"), timings.adder("backward")
        self._time_step, self._time_schedulers = timings.adder("step_optimizer"), timings.adder("step_lr_schedulers")
        #: Ranks, and small messages between them.
        self.distributed = distributed
        #: The trial's hyperparameters and its seed, the same on all ranks.
        self.hparams, self.seed = hparams, seed
        #: torch.device of this rank.
        self.device = device
        #: The effective experiment configuration; empty off-cluster.
        self.config: Mapping[str, Any] = env.config
        self._goal = Goal(env.config.get("searcher") or {})
        self._batch_sizes: BatchSizes | None = None
        self._unit = scheduling_unit(env.config)
        self._stop_path = env.run_dir / "stop_requested" if env.run_dir else None
        #: How far a script has come at a step; who trains a trial class knows better.
        self._position: Callable[[int, int | None], Position] = self._script_position
        self._records_per_epoch: int | None = None
        self._streams_apart = self._stepped = False
        self._schedules = Schedules()

    # -- the trial -------------------------------------------------------------------------------------------------

    @property
    def per_slot_batch_size(self) -> int:
        """Samples that one rank takes per step: ``global_batch_size // slots``."""
        return self._sizes().per_slot

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks together take per step; the remainder of the division is dropped."""
        return self._sizes().effective

    @property
    def max_length(self) -> Mapping[str, int] | None:
        """The configured length of training, e.g. ``{"epochs": 3}``; None when the script decides alone."""
        length = self._goal.max_length
        return {length.unit: length.count} if length else None

    @property
    def data_config(self) -> Mapping[str, Any]:
        """The free map ``data`` of the configuration."""
        return self.config.get("data") or {}

    @property
    def stop_requested(self) -> bool:
        """True once the trial is to stop or pause: save a checkpoint and leave a loop of your own.

        The same on all ranks. Looked at every ``scheduling_unit`` calls of :meth:`step`, and in each
        :meth:`report_validation`, :meth:`save_checkpoint` and epoch of :meth:`epochs`.
        """
        self._left_early = self._left_early or self._stop
        return self._stop

    # -- training --------------------------------------------------------------------------------------------------

    def prepare(self, *objects: Any, scheduler_step: str = "batch", find_unused_parameters: bool = False) -> Any:
        """Return the objects ready for training, in the order given; a single one as it is.

        Models go to the device and, with more than one rank, into DistributedDataParallel. Optimizers, schedulers
        and other objects with ``state_dict`` and ``load_state_dict`` become part of checkpoints. From the first
        call on each rank draws random numbers of its own (dropout, augmentation); before it all ranks draw the same.

        :param scheduler_step: who advances the schedulers: ``batch`` (each :meth:`step` of their optimizer),
            ``epoch`` (:meth:`epochs`, before each epoch but the first), ``manual`` (the script).
            ReduceLROnPlateau is always manual, because it needs a metric
        :param find_unused_parameters: for models that do not use every parameter in every step
        :raises SetupError: an object's parameters are sharded over the ranks, and checkpoints could not hold them
        """
        check_mode(scheduler_step)
        ready = []
        for item in objects:
            if self._saver.policy["keep"] != "none":
                sharded_tensors.refuse_item(item)
            kind = self._prepared.add(item)
            if kind == "model":
                item = self._gradients.wrap_model(item, find_unused_parameters=find_unused_parameters)
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

    def to_device(self, batch: Any) -> Any:
        """Return the batch on this rank's device: tensors, also inside lists, tuples and dicts."""
        if not self._timed:
            return self._move(batch)
        before = self._clock()
        ready = self._move(batch)
        self._time_to_device(self._clock() - before)
        return ready

    def loader(
        self, dataset: Any, *, batch_size: int | None = None, shuffle: bool = True, drop_last: bool = False,
        max_batches: int | None = None, **options: Any,
    ) -> Loader:  # fmt: skip
        """Return one epoch of training data: this rank's part of each global batch, from the restored position on.

        The same samples make up global batch ``b`` of an epoch with any number of slots.

        :param dataset: map-style, with a length
        :param batch_size: samples per rank and step; default: :attr:`per_slot_batch_size`
        :param shuffle: by the trial's seed, anew each epoch
        :param drop_last: leave a last smaller batch out; otherwise it is cut evenly, and at most ``slots - 1``
            samples occur twice
        :param max_batches: length of an epoch in batches; default: the whole data set
        :param options: of ``torch.utils.data.DataLoader``, e.g. ``num_workers``, ``collate_fn``, ``pin_memory``
        """
        self._progress.has_loader = True
        return Loader(
            dataset, self._progress, seed=self.seed, rank=self.distributed.get_rank(),
            size=self.distributed.get_size(), per_slot=batch_size or self.per_slot_batch_size, shuffle=shuffle,
            drop_last=drop_last, max_batches=max_batches, options=options, timings=self._timings,
            on_last=self._gradients.announce_last, leaves=lambda: self.stop_requested,
        )  # fmt: skip

    def validation_loader(self, dataset: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Return this rank's share of validation data: in order, each sample on exactly one rank.

        Shares may differ by one sample; give :meth:`report_validation` their size as ``weight``. A model with
        buffers (batch norm) is called as ``dtrain.unwrap(model)`` here: DistributedDataParallel exchanges buffers in
        each call, and would wait for a rank that has no batch left.
        """
        return validation_loader(dataset, rank=self.distributed.get_rank(), size=self.distributed.get_size(),
                                 per_slot=batch_size or self.per_slot_batch_size, options=options)  # fmt: skip

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the epochs that are still to do, 0 .. count-1; the first may be a restored, half done one.

        When the trial is asked to stop or pause, :meth:`loader` ends the running epoch at the next
        ``scheduling_unit`` and no other one begins: what the loop body saves then is where it goes on.

        :param count: default: ``searcher.max_length``, when it is given in epochs
        """
        count = self._goal.epochs() if count is None else count
        telling.say_done(self._env, self._progress.epoch, count)
        for epoch in range(self._progress.epoch, count):
            self._meet()
            if self.stop_requested:
                break
            self._progress.begin_epoch(epoch)
            self._progress.last_epoch = epoch == count - 1
            self._schedules.begin_epoch(epoch)
            yield epoch
            self._progress.is_whole = self._progress.is_whole or not self._left_early
        self._progress.in_epochs = self._progress.last_epoch = False

    def backward(self, loss: Any) -> None:
        """Compute gradients; with more than one rank they are averaged over the ranks on the way.

        With ``optimizations.aggregation_frequency`` k they are added up, and averaged on every k-th batch only. With
        ``mixed_precision: fp16`` the loss is scaled first.
        """
        if not self._timed:
            self._gradients.backward(loss)
            return
        before = self._clock()
        self._gradients.backward(loss)
        self._time_backward(self._clock() - before)

    def autocast(self) -> Any:
        """Return a context manager for computations outside of a model, as ``mixed_precision`` says.

        The forward pass of a prepared model needs none.
        """
        return self._gradients.autocast()

    def step(self, optimizer: Any, *, clip_grad_norm: float | None = None, flush: bool = False) -> Any:
        """Take one optimizer step, advance its schedulers, clear the gradients. Called by all ranks, every batch.

        With ``optimizations.aggregation_frequency`` k the step is taken on every k-th call. The last group of
        training may be smaller; with :meth:`epochs` and :meth:`loader` it is found by itself.

        :param clip_grad_norm: largest norm of all gradients of this optimizer together
        :param flush: finish the group here, after the last batch of a loop of your own
        :return: the norm before clipping (a tensor), None without clipping and where no step was due
        """
        gradients = self._gradients
        # What most batches are goes by without a further call: each costs about a microsecond.
        if gradients.plain and self._stepped and clip_grad_norm is None and not (flush or self._timed):
            optimizer.step()
            optimizer.zero_grad()
            stepped, norm, after = True, None, 0.0
        else:
            before = self._clock()
            stepped, norm = gradients.step(optimizer, clip_grad_norm=clip_grad_norm, flush=flush)
            after = self._clock()
            self._time_step(after - before)
        if stepped and self._schedules.by_step:
            after = self._advance(optimizer, after)
        if self._timed:
            self._timings.batch_done(after)
        self._batches += 1
        if self._batches % self._unit == 0:
            self._meet()
        if not self._stepped:
            self._stepped = self._reporter.meets = HERE.started = True
            self._writer.write("first_step", {})
        return norm

    # -- telling ---------------------------------------------------------------------------------------------------

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record training metrics; costs microseconds and never waits for the device or another rank.

        With more than one rank the mean over the ranks is recorded (``optimizations.average_training_metrics:
        false``: rank 0's own values) when the ranks next meet; see :attr:`stop_requested`.

        :param step: the script's count of batches
        :param metrics: name -> number, or tensor of one element
        :raises NonFiniteLossError: a metric whose name ends in ``loss`` is NaN
        """
        self._last_step = step
        self._reporter.report(step, metrics, self._progress.epoch if self._progress.in_epochs else None)

    def report_validation(
        self, step: int, metrics: Mapping[str, Any], *, average: bool = True, weight: float = 1
    ) -> str:
        """Record validation metrics; return ``continue``, or ``stop`` when the trial has trained long enough.

        That is, when ``step`` has reached ``searcher.max_length``, ``time_metric`` its ``max_time``, or when the
        searcher has ended the trial. Where the searcher decides, the ranks wait for its answer here, at most
        ``decision_timeout``; without an average they wait when they next meet, see :attr:`stop_requested`.

        :param metrics: this rank's metrics
        :param average: record the mean over the ranks (called by all ranks); False: rank 0's own values, which it
            must have for the whole data set
        :param weight: weight of this rank's metrics in the mean, e.g. its number of samples
        """
        self._last_step = step
        if average:
            self._meet()
            values = self._reporter.mean(step, metrics, weight)
        else:
            values = self._reporter.numbers(step, metrics)
        safe = self._reporter.json_safe(values)
        self._validated = step, safe
        # A loop of its own that was told to leave may have left in the middle of the epoch.
        self._progress.is_whole = self._progress.in_epochs and not self._left_early
        telling.say_validation(self._env, step, safe)
        batch = self.global_batch_size if "global_batch_size" in self.hparams else None
        position = self._position(step, batch)
        if self.distributed.get_rank() == 0:
            self._writer.write("validation", {"step": step, "metrics": safe})
            self._goal.check(safe)
            units = self._goal.units(position, safe, self._records_per_epoch)
            self._rungs.reach(units, safe.get(self._goal.metric or ""), step)
        reached = self._goal.reached(position, safe, batch)
        if reached:
            self._rungs.settle()
        if average and self._rungs.units:
            self._take(self.distributed.largest(self._wish()))
        return "stop" if reached or self._decided else "continue"

    def reduce(self, metrics: Mapping[str, Any], *, weight: float = 1, reducer: str = "avg") -> dict[str, float]:
        """Return metrics over all ranks, the same on each; called by all ranks.

        :param metrics: this rank's; a rank without samples may have none
        :param weight: of this rank in the mean, e.g. its number of samples
        :param reducer: ``avg``, ``sum``, ``max`` or ``min``
        """
        return reduce_over_ranks(self.distributed.allgather, metrics, weight, reducer)

    def set_result(self, value: Any) -> None:
        """Choose what rank 0 gives back at the end: any JSON; default: last step, metrics and checkpoint.

        :raises LimitError: it is longer than 1 MiB as JSON, or deeper than 15 levels
        """
        encode_event(1, time.time(), "result", {"value": value})
        self._result = value

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, step: int) -> str | None:
        """Save everything prepared, the position in the data and every rank's random state. Called by all ranks.

        A copy is taken at once and written in the background; training goes on meanwhile.

        :return: the folder or URL that it will have, on rank 0; None on the other ranks and with
            ``checkpoint_policy: none``
        :raises CheckpointError: the save before this one failed; checkpoints that were there still are
        """
        self._last_step = step
        self._meet()
        metrics = self._validated[1] if self._validated is not None and self._validated[0] == step else {}
        facts = {"epoch": self._progress.epoch, "metrics": metrics,
                 "global_batch_size": self.hparams.get("global_batch_size")}  # fmt: skip
        with self._timings.of("checkpoint"):
            path = self._saver.save(
                step, {"batches": self._batches, "epochs_stepped": self._schedules.epochs_stepped}, facts
            )
        return str(path) if path else None

    def restore(self) -> int:
        """Load the latest whole checkpoint into everything prepared; return its step, 0 without one.

        Without one the models get the weights of ``searcher.source_checkpoint``, if the configuration names one.
        Called by all ranks, after :meth:`prepare` and before the training loop.
        """
        metadata, counters = self._saver.restore()
        if not metadata:
            return 0
        self._batches, self._schedules.epochs_stepped = counters["batches"], counters["epochs_stepped"]
        self._last_step = metadata["step"]
        self._validated = (metadata["step"], metadata.get("metrics") or {})
        if self.distributed.get_rank() == 0 and metadata.get("global_batch_size"):
            batch = self.hparams.get("global_batch_size", 0)
            batch_size.suggest_weak_scaling(metadata, self.distributed.get_size(), batch)
        return self._last_step

    # -- inside ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Context:
        return self

    def _meet(self) -> None:
        """Agree with the other ranks on stopping, and write their reports."""
        self._gradients.look()
        self._take(self._reporter.meet(self._wish()))

    def _wish(self) -> int:
        """Return what this rank wishes for all of them; rank 0 waits for the searcher's answer, where it asked."""
        if self._rungs.look(self._is_asked_to_stop):
            return DECIDED
        return STOP if self._stop or self._is_asked_to_stop() else GO_ON

    def _take(self, wish: int) -> None:
        """Obey what the ranks have agreed on."""
        self._stop = wish != GO_ON
        self._decided = self._decided or wish == DECIDED

    def _is_asked_to_stop(self) -> bool:
        return self._stop_path is not None and self._stop_path.exists()

    def _script_position(self, step: int, global_batch: int | None) -> Position:
        return Position(batches=step, records=step * (global_batch or 0), epoch=epochs_done(self._progress))

    def _advance(self, optimizer: Any, since: float) -> float:
        """Advance the schedulers of an optimizer; return the time after."""
        for scheduler in self._schedules.by_step.get(id(optimizer), ()):
            scheduler.step()
        now = self._clock()
        self._time_schedulers(now - since)
        return now

    def _sizes(self) -> BatchSizes:
        if self._batch_sizes is None:
            size, warn = self.distributed.get_size(), self.distributed.get_rank() == 0
            self._batch_sizes = batch_size.from_hparams(self.hparams, size, warn=warn)
        return self._batch_sizes
