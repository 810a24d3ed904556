"""Context of a trial class: ``self.context``."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.data.device import move_or_warn
from airflow_provider_dtrain.train.durations import Position
from airflow_provider_dtrain.train.errors import HparamError, SetupError
from airflow_provider_dtrain.train.gradients.clipping import NO_CLIP, Clip
from airflow_provider_dtrain.train.gradients.precision import LossScale
from airflow_provider_dtrain.train.reports.media import MediaReports, MediaWriter
from airflow_provider_dtrain.train.reports.reducers import MetricReducer, Reducers
from airflow_provider_dtrain.train.values import Hyperparameters, StateDict


class LRScheduler:
    """A learning rate scheduler and the moments at which it advances.

    :param scheduler: scheduler of ``torch.optim.lr_scheduler``
    :param frequency: advance at every ``frequency``-th such moment
    :raises SetupError: ``step_mode`` or ``frequency`` is not valid, or a ReduceLROnPlateau is not ``MANUAL_STEP``
    """

    class StepMode(enum.Enum):
        """Moments at which a scheduler advances."""

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise SetupError(f"step_mode must be a member of LRScheduler.StepMode, got {step_mode!r}.")
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if plateau and step_mode is not LRScheduler.StepMode.MANUAL_STEP:
            raise SetupError(
                f"ReduceLROnPlateau needs a metric, so {step_mode.name} cannot advance it. Use MANUAL_STEP and call "
                "scheduler.step(metric), e.g. in a callback's on_validation_end."
            )
        if type(frequency) is not int or frequency < 1:
            raise SetupError(f"frequency must be a whole number of at least 1, got {frequency!r}.")
        self.scheduler = scheduler
        self.step_mode = step_mode
        self.frequency = frequency

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance the scheduler manually."""
        self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[float]:
        """Return the current learning rates."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def state_dict(self) -> StateDict:
        """Return the scheduler's state."""
        state: StateDict = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the scheduler's state."""
        self.scheduler.load_state_dict(state_dict)


class WrappedScaler:
    """GradScaler that the library drives, so that each of its steps runs once and at the right time."""

    def __init__(self, scaler: Any) -> None:
        self._dtrain_scaler = scaler

    def scale(self, outputs: Any) -> Any:
        """Return the loss unchanged, because ``context.backward`` scales it."""
        return outputs

    def step(self, optimizer: Any) -> None:
        """Raise SetupError, because the context takes the step."""
        raise SetupError("Call context.step_optimizer(optimizer, scaler=scaler) instead of scaler.step(optimizer).")

    def unscale_(self, optimizer: Any) -> None:
        """Raise SetupError, because the context unscales before it clips."""
        raise SetupError(
            "scaler.unscale_ must not be called, because context.step_optimizer unscales before it clips. Pass it "
            "clip_grads=<function of the parameters>."
        )

    def update(self) -> None:
        """Do nothing, because the context updates the scale."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dtrain_scaler"], name)


class Experimental:
    """Switches that few trials need."""

    def __init__(self) -> None:
        self.auto_to_device = True
        self.left_alone = False

    def disable_auto_to_device(self) -> None:
        """Leave batches where they are. The trial moves them with ``context.to_device``."""
        self.auto_to_device = False

    def use_amp(self) -> None:
        """Raise SetupError, because the configuration sets the precision."""
        raise SetupError(
            "experimental.use_amp() is not supported; set optimizations.mixed_precision: fp16 in the configuration, "
            "which scales the loss as well."
        )

    def disable_dataset_reproducibility_checks(self) -> None:
        """Do not shard data loaders other than the library's own. Each rank iterates the loader that the trial returns.

        For loaders whose ranks overlap on purpose, and for loaders that shard and repeat the data themselves.
        """
        self.left_alone = True


class PyTorchTrialContext(MediaReports):
    """Context of one rank of a trial, for a trial class.

    :param context: the rank's context, as ``dtrain.init`` returns it
    """

    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._gradients = context._gradients
        #: Rank numbers, and messages between the ranks.
        self.distributed = context.distributed
        #: torch.device of this rank.
        self.device = context.device
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.experimental = Experimental()
        self._reducers = Reducers()
        self._scaler: WrappedScaler | None = None
        self._on_step: dict[int, list[LRScheduler]] = {}
        #: Steps taken by each optimizer, in the order of wrapping.
        self.optimizer_steps: list[int] = []
        self._position: Position | None = None
        self._epoch_length: int | None = None
        self._batch = 0
        self._writer: Any = None
        self._logs_tensorboard = True
        self._warned_types: set[type] = set()
        #: Whether the latest :meth:`step_optimizer` took a step.
        self.stepped = False
        self._timed = context._timings.enabled
        self._time_step = context._timings.adder("step_optimizer")

    @property
    def media(self) -> MediaWriter:
        """Writer of images, tables and texts."""
        return self._ctx.media

    def _media_step(self) -> int:
        # Number of batches trained before: the context counts those of a finished unit, the trainer those within it.
        return max(self._batch, self._ctx._batches)

    # -- wrapping --------------------------------------------------------------------------------------------------

    def wrap_model(self, model: Any, ddp: Mapping[str, Any] | None = None) -> Any:
        """Return the model on its device, distributed over the ranks.

        :param ddp: options of DistributedDataParallel, e.g. ``{"find_unused_parameters": True}``
        """
        ready = self._ctx.prepare(model, ddp=ddp)
        self.models.append(ready)
        return ready

    def wrap_optimizer(
        self,
        optimizer: Any,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Any:
        """Return the optimizer and add it to checkpoints. Build it from wrapped models.

        :raises SetupError: one of the other arguments is given, which the configuration replaces
        """
        for name, given, instead in (
            ("backward_passes_per_step", backward_passes_per_step != 1, "optimizations.aggregation_frequency"),
            ("fp16_compression", fp16_compression is not None, "optimizations.gradient_compression"),
            (
                "average_aggregated_gradients",
                average_aggregated_gradients is not None,
                "optimizations.average_aggregated_gradients",
            ),
        ):
            if given:
                raise SetupError(f"wrap_optimizer({name}=...) is not supported; set {instead} in the configuration.")
        self.optimizers.append(optimizer)
        self.optimizer_steps.append(0)
        return self._ctx.prepare(optimizer)

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """Return the scheduler. The library advances it as ``step_mode`` says.

        :raises SetupError: its optimizer is not wrapped, or :class:`LRScheduler` raises it
        """
        wrapped = LRScheduler(lr_scheduler, step_mode, frequency)
        optimizer = wrapped.scheduler.optimizer
        if not any(optimizer is known for known in self.optimizers):
            raise SetupError("wrap_lr_scheduler: its optimizer is not wrapped; call context.wrap_optimizer first.")
        if step_mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            self._on_step.setdefault(id(optimizer), []).append(wrapped)
        self.lr_schedulers.append(wrapped)
        return self._ctx.prepare(wrapped.scheduler, scheduler_step="manual")

    def wrap_scaler(self, scaler: Any) -> Any:
        """Return the GradScaler. :meth:`backward` and :meth:`step_optimizer` apply it from now on.

        Its state is part of checkpoints. ``scale(loss)`` returns the loss unchanged, so that nothing is scaled twice.

        :raises SetupError: ``optimizations.mixed_precision`` is ``fp16``, which has its own scaler, or a scaler is
            already wrapped
        """
        if self._scaler is None and self._gradients.scaler is not None:
            raise SetupError(
                "wrap_scaler: optimizations.mixed_precision: fp16 already scales the loss. Use one of the two."
            )
        if self._scaler is not None:
            raise SetupError("wrap_scaler was called twice; one scaler serves all optimizers.")
        self._scaler = WrappedScaler(scaler)
        if scaler.is_enabled():
            self._gradients._loss_scale = LossScale(scaler)
            self._gradients.plain = self._gradients._is_plain()
        return self._scaler

    def wrap_reducer(
        self, reducer: Any, name: str | None = None, for_training: bool = True, for_validation: bool = True
    ) -> MetricReducer:
        """Return a reducer for a metric that cannot be computed batch by batch, see :class:`MetricReducer`.

        :param reducer: a MetricReducer, or a function that takes the list of all values passed to ``update``
        :param name: name of the metric; None: the reducer returns a dict of metrics
        :raises SetupError: ``reducer`` is neither, or was wrapped before
        """
        return self._reducers.wrap(reducer, name, for_training=for_training, for_validation=for_validation)

    # -- a batch ---------------------------------------------------------------------------------------------------

    def backward(self, loss: Any, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Compute gradients. With more than one rank, they are averaged over the ranks."""
        if gradient is None and not retain_graph and not create_graph:
            self._ctx.backward(loss)
            return
        self._ctx.backward(loss, gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)

    def step_optimizer(
        self,
        optimizer: Any,
        clip_grads: Callable[[Any], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Take one optimizer step if one is due, and clear the gradients.

        :param clip_grads: called with the optimizer's parameters before the step
        :param auto_zero_grads: False: the trial clears the gradients
        :param scaler: the wrapped scaler, or None, because the context already knows it
        :raises SetupError: ``scaler`` is not the wrapped one
        """
        if scaler is not None and scaler is not self._scaler:
            raise SetupError("step_optimizer was given a scaler that is not wrapped; call context.wrap_scaler first.")
        before = perf_counter() if self._timed else 0.0
        clip = Clip(function=clip_grads) if clip_grads is not None else NO_CLIP
        self.stepped, _ = self._gradients.step(optimizer, clip=clip, zero_grad=auto_zero_grads)
        if self._timed:
            self._time_step(perf_counter() - before)
        if self.stepped and self._on_step:
            self._advance(optimizer)

    def count(self, *, samples: int | None = None, tokens: int | None = None) -> None:
        """Count samples or tokens of a batch of this rank, see :meth:`Context.count`."""
        self._ctx.count(samples=samples, tokens=tokens)

    def toggle(self, optimizer: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which only the parameters of one optimizer take gradients.

        For several optimizers, e.g. of a generator and a discriminator.
        """
        return self._gradients.toggle(optimizer)

    def to_device(self, data: Any, warned_types: set[type] | None = None) -> Any:
        """Return the data on the device, including tensors and numpy arrays in containers.

        :param warned_types: types that cannot be moved and are not logged again; default: those of this context
        """
        return move_or_warn(data, self.device, self._warned_types if warned_types is None else warned_types)

    # -- where training is -----------------------------------------------------------------------------------------

    def current_train_batch(self) -> int:
        """Return the index of the batch in training, counted over the whole trial.

        :raises SetupError: training has not started
        """
        self._where()
        return self._batch

    def current_train_epoch(self) -> int:
        """Return the index of the epoch in training."""
        return self._where().epoch

    def is_epoch_start(self) -> bool:
        """Return whether the batch in training is the first of its epoch."""
        return self._batch == self._first_batch()

    def is_epoch_end(self) -> bool:
        """Return whether the batch in training is the last of its epoch. False for data without a length."""
        return self._epoch_length is not None and self._batch == self._first_batch() + self._epoch_length - 1

    def get_initial_batch(self) -> int:
        """Return the number of batches trained before this attempt."""
        return self._initial

    _initial = 0

    def get_stop_requested(self) -> bool:
        """Return whether the trial must stop. It stops at the end of the unit, after a checkpoint."""
        return self._ctx._sees_stop()

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Request the end of the trial. A request from one rank is enough."""
        self._ctx._stop = bool(stop_requested)

    # -- the trial -------------------------------------------------------------------------------------------------

    def get_hparam(self, name: str) -> Any:
        """Return one hyperparameter.

        :raises HparamError: the name does not exist, or is ``global_batch_size``, which has its own methods
        """
        if name == "global_batch_size":
            raise HparamError(
                "get_hparam('global_batch_size') would ignore the slots; use context.get_per_slot_batch_size() or "
                "context.get_global_batch_size()."
            )
        return self._ctx.hparams[name]

    def get_hparams(self) -> Hyperparameters:
        """Return all hyperparameters."""
        return self._ctx.hparams

    def get_global_batch_size(self) -> int:
        """Return the number of samples per batch, of all ranks together."""
        return self._ctx.global_batch_size

    def get_per_slot_batch_size(self) -> int:
        """Return the number of samples per batch on one rank."""
        return self._ctx.per_slot_batch_size

    def get_trial_seed(self) -> int:
        """Return the trial's seed, the same on all ranks."""
        return self._ctx.seed

    def get_data_config(self) -> Mapping[str, Any]:
        """Return the free-form map ``data`` of the configuration."""
        return self._ctx.data_config

    def get_experiment_config(self) -> Mapping[str, Any]:
        """Return the effective configuration. It is empty off-cluster."""
        return self._ctx.config

    def get_experiment_id(self) -> int | None:
        """Return the experiment's number, or None off-cluster."""
        return self._ctx._env.experiment_id

    def get_trial_id(self) -> int | None:
        """Return the trial's number, or None off-cluster."""
        return self._ctx._env.trial_id

    def get_tensorboard_path(self) -> Any:
        """Return this rank's folder for TensorBoard files, in the run's folder (off-cluster: the current folder)."""
        path = (self._ctx._env.run_dir or Path.cwd()) / "tensorboard" / f"rank{self.distributed.get_rank()}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def get_tensorboard_writer(self) -> Any:
        """Return this rank's ``torch.utils.tensorboard.SummaryWriter`` in :meth:`get_tensorboard_path`."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # an optional library

            self._writer = SummaryWriter(log_dir=str(self.get_tensorboard_path()))
        return self._writer

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Remember the value. Event files of reported metrics follow ``tensorboard`` of the configuration."""
        self._logs_tensorboard = bool(enable_tensorboard_logging)

    def get_enable_tensorboard_logging(self) -> bool:
        """Return the value of :meth:`set_enable_tensorboard_logging`."""
        return self._logs_tensorboard

    def set_profiler(self, *args: Any, ranks: Collection[int] | str = (0,), **options: Any) -> None:
        """Record batches with ``torch.profiler.profile(*args, **options)``. The traces are outputs of the trial.

        Without ``schedule``, 3 batches are recorded after 12 others. A trace has at most 100 batches.

        :param ranks: ranks that record, or ``all``
        :raises SetupError: ``on_trace_ready`` or an argument that PyTorch does not know is given
        """
        self._ctx.profiler.set(*args, ranks=ranks, **options)

    def autocast_forward_pass(self, to_call: Any) -> Any:
        """Return the function or module such that each call runs in the precision of ``mixed_precision``."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._gradients.autocast():
                return to_call(*args, **kwargs)

        return call

    def configure_apex_amp(self, *_: Any, **__: Any) -> None:
        """Raise SetupError, because the configuration sets the precision."""
        raise SetupError(
            "configure_apex_amp is not supported; set optimizations.mixed_precision: fp16 or bf16 in the configuration."
        )

    def _advance(self, optimizer: Any) -> None:
        for index, known in enumerate(self.optimizers):
            if known is optimizer:
                self.optimizer_steps[index] += 1
                for scheduler in self._on_step.get(id(optimizer), ()):
                    if self.optimizer_steps[index] % scheduler.frequency == 0:
                        scheduler.scheduler.step()

    def _where(self) -> Position:
        if self._position is None:
            raise SetupError("Training has not started: there is no current batch or epoch yet.")
        return self._position

    def _first_batch(self) -> int:
        where = self._where()
        return where.batches - where.epoch_batches
