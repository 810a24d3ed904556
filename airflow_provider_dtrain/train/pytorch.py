"""Trial-class API under the names of ``determined.pytorch``. Such code changes only its import line.

::

    from airflow_provider_dtrain.train import pytorch

    class MnistTrial(pytorch.PyTorchTrial): ...

    with pytorch.init(hparams={"lr": 0.1, "global_batch_size": 64}) as context:
        pytorch.Trainer(MnistTrial(context), context).fit(max_length=pytorch.Epoch(3))
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train import initialization
from airflow_provider_dtrain.train.data.device import move_or_warn
from airflow_provider_dtrain.train.durations import Length
from airflow_provider_dtrain.train.errors import InvalidHP, SetupError
from airflow_provider_dtrain.train.foreign_names import finder
from airflow_provider_dtrain.train.reports.reducers import MetricReducer, Reducer, SimpleMetricReducer
from airflow_provider_dtrain.train.trial import samplers
from airflow_provider_dtrain.train.trial.base import PyTorchTrial
from airflow_provider_dtrain.train.trial.callbacks import PyTorchCallback
from airflow_provider_dtrain.train.trial.context import Experimental as PyTorchExperimentalContext
from airflow_provider_dtrain.train.trial.context import LRScheduler, PyTorchTrialContext
from airflow_provider_dtrain.train.trial.dataloader import DataLoader
from airflow_provider_dtrain.train.trial.dataloader import batch_length as data_length
from airflow_provider_dtrain.train.trial.run import load_models, plan_of
from airflow_provider_dtrain.train.trial.samplers import adapt_batch_sampler
from airflow_provider_dtrain.train.trial.trainer import TrialTrainer as _Loop

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "Epoch",
    "InvalidHP",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "SimpleMetricReducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]

log = logging.getLogger(__name__)

#: Python asks finders for submodules, here that of Determined's names, of a module with a path only.
__path__: list[str] = []
finder.install()

#: A batch: a tensor, or tensors in dicts, lists and tuples.
TorchData = Any


#: Types that :func:`to_device` has logged.
_warned_types: set[type] = set()


def to_device(data: TorchData, device: Any, warned_types: set[type] | None = None) -> TorchData:
    """Return the data on a device, including tensors and numpy arrays in containers. Log what stays where it is.

    :param warned_types: types that are not logged again; default: those that this process has logged
    """
    return move_or_warn(data, device, _warned_types if warned_types is None else warned_types)


class TrainUnit:
    """A length of training.

    :param value: number of units
    """

    unit = "batches"

    def __init__(self, value: int) -> None:
        if type(value) is not int:
            raise SetupError(f"{type(self).__name__} takes one whole number, got {value!r}. Lists are not supported.")
        self.value = value

    def length(self, name: str) -> Length | None:
        """Return the length, or None for 0."""
        return Length.parse({self.unit: self.value}, name)


class Batch(TrainUnit):
    """Number of batches, each of all ranks together."""


class Record(TrainUnit):
    """Number of samples, of all ranks together."""

    unit = "records"


class Epoch(TrainUnit):
    """Number of passes through the training data."""

    unit = "epochs"


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """Yield a context for a trial class.

    In a trial, ``exp_conf`` and ``aggregation_frequency`` are ignored, and the trial's hyperparameters override
    ``hparams``.

    :param exp_conf: an experiment configuration
    :param distributed: must be None, because the ranks come from the environment, as torchrun sets it
    :param enable_tensorboard_logging: has no effect
    :raises SetupError: ``distributed`` is given, or :func:`airflow_provider_dtrain.train.init` raises it
    """
    if distributed is not None:
        raise SetupError("init(distributed=...) is not supported; start the script with torchrun, or as a trial.")
    config = dict(exp_conf or {})
    if aggregation_frequency != 1:
        optimizations = {**(config.get("optimizations") or {}), "aggregation_frequency": aggregation_frequency}
        config["optimizations"] = optimizations
    with initialization.init(hparams=hparams, config=config or None) as ctx:
        yield PyTorchTrialContext(ctx)


class Trainer:
    """Trains a trial that a script created.

    :param context: the context that the trial was created with
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._loop = _Loop(trial, context)
        self._context = context

    def configure_profiler(
        self,
        sync_timings: bool | None = None,
        enabled: bool | None = None,
        begin_on_batch: int | None = None,
        end_after_batch: int | None = None,
    ) -> None:
        """Log a warning. The field ``profiling`` of the configuration selects the measurements."""
        log.warning(
            "configure_profiler has no effect; set profiling in the configuration. Its field trace, or "
            "context.set_profiler, records the work of single batches."
        )

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit | None = None,
        checkpoint_policy: str | None = None,
        latest_checkpoint: str | Path | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> dict[str, float]:
        """Train to the end and return the metrics of the last validation.

        A setting that is not passed comes from the configuration.

        :param reporting_period: batches between reports; default: ``scheduling_unit``
        :param latest_checkpoint: folder or URL of the checkpoint to resume from
        :param test_mode: train one batch, validate, and end
        :param profiling_enabled: has no effect
        :raises SetupError: a length or ``reporting_period`` is not valid, or the trial has no length
        """
        ctx = self._context._ctx
        plan = plan_of(ctx.config)
        for field, unit in (
            ("checkpoint_period", checkpoint_period),
            ("validation_period", validation_period),
            ("max_length", Batch(1) if test_mode else max_length),
        ):
            if unit is not None:
                given: dict[str, Any] = {field: unit.length(field)}
                plan = replace(plan, **given)
        if reporting_period is not None:
            if not isinstance(reporting_period, Batch) or reporting_period.value < 1:
                raise SetupError("reporting_period must be a number of batches, 1 or more, e.g. Batch(100).")
            plan = replace(plan, scheduling_unit=reporting_period.value)
        if checkpoint_policy is not None:
            plan = replace(plan, checkpoint_policy=checkpoint_policy)
        if step_zero_validation:
            plan = replace(plan, perform_initial_validation=True)
        if latest_checkpoint is not None:
            place = str(latest_checkpoint) if "://" in str(latest_checkpoint) else Path(latest_checkpoint).absolute()
            ctx._saver.restorer.first = place
        return self._loop.run(plan)


class CheckpointLoadContext(PyTorchTrialContext):
    """Context of a trial outside of training, e.g. to create it before its weights are loaded.

    ``dtrain.load_weights(trial.model, path)`` then loads the weights of a checkpoint.
    """

    def __init__(self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None) -> None:
        context = initialization.init(hparams=hparams, config=exp_conf)
        super().__init__(context)
        # Nothing is trained or reported, and the process may create another context.
        context.abandon()


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
) -> PyTorchTrial:
    """Return a trial whose models have the weights of a checkpoint, for inference in this process.

    :param path: folder of the checkpoint
    :param trial_kwargs: further arguments of the class
    :param torch_load_kwargs: has no effect, because nothing is unpickled and weights go to the device of their model
    :raises SetupError: ``trial_class`` is missing
    :raises CheckpointError: the checkpoint is damaged, or holds other models
    """
    if trial_class is None:
        raise SetupError(
            "load_trial_from_checkpoint_path needs trial_class, because a checkpoint contains no code: pass the class, "
            "e.g. load_trial_from_checkpoint_path(path, model_def.MyTrial)."
        )
    context = CheckpointLoadContext(hparams, exp_conf)
    trial = trial_class(context, **(trial_kwargs or {}))
    load_models(context.models, Path(path))
    for model in context.models:
        model.eval()
    return trial


def __getattr__(name: str) -> Any:
    """Return a submodule that is imported on first use, or raise with the remedy for what is not offered."""
    return finder.attribute("determined.pytorch", name)
