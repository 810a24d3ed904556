"""Run a trial class: train it to the end, or only evaluate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, disk, reading, warm_start
from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.durations import Length
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.initialization import init
from airflow_provider_dtrain.train.process.config_check import scheduling_unit
from airflow_provider_dtrain.train.trial.base import PyTorchTrial
from airflow_provider_dtrain.train.trial.callbacks import Callbacks
from airflow_provider_dtrain.train.trial.context import PyTorchTrialContext
from airflow_provider_dtrain.train.trial.trainer import Plan, TrialTrainer
from airflow_provider_dtrain.train.trial.validation import Validator


def run_trial(
    trial_class: type[PyTorchTrial],
    *,
    hparams: Mapping[str, Any] | None = None,
    max_length: Any = None,
    config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    device: str | None = None,
    checkpoint_dir: str | Path | None = None,
    fail_on_nan: bool = True,
) -> dict[str, float]:
    """Train a trial class, off-cluster or under torchrun. Return the metrics of its last validation.

    :param hparams: hyperparameters; they override those of ``config``
    :param max_length: ``{"epochs": 3}``, ``"batches=100"`` or a number of batches; overrides ``config``
    :param config: an experiment configuration: periods, ``searcher``, ``optimizations``, ``data``
    :param seed: seed of the trial; default: ``reproducibility.experiment_seed`` of ``config``, else 0
    :param checkpoint_dir: folder or URL for checkpoints, from which training also resumes; default: a new folder
    :raises SetupError: the configuration is not valid, or has no length of training
    :raises TrialClassError: the class lacks a method that training needs
    """
    with init(
        hparams=hparams, seed=seed, device=device, checkpoint_dir=checkpoint_dir, config=config, fail_on_nan=fail_on_nan
    ) as ctx:
        return train(trial_class, ctx, max_length=max_length)


def train(trial_class: Any, ctx: Context, *, max_length: Any = None) -> dict[str, float]:
    """Train a trial class on a rank's context. Return the metrics of its last validation."""
    if not (isinstance(trial_class, type) and issubclass(trial_class, PyTorchTrial)):
        raise SetupError(f"The trial class must be a subclass of PyTorchTrial, got {trial_class!r}.")
    context = PyTorchTrialContext(ctx)
    return TrialTrainer(trial_class(context), context).run(plan_of(ctx.config, max_length, ctx._rungs.units))


def plan_of(config: Mapping[str, Any], max_length: Any = None, rungs: Sequence[int] = ()) -> Plan:
    """Return the length of training and the periods that a configuration gives.

    :param max_length: overrides ``searcher.max_length``
    :param rungs: lengths at which the searcher decides, in the unit of the length
    """
    searcher = config.get("searcher") or {}
    length = Length.parse(max_length)
    time = searcher.get("max_time")
    unit = searcher.get("time_metric")
    if length is None and time is not None and unit in {"batches", "records", "epochs"}:
        length = Length(unit, int(time), "searcher.max_time")
    length = length or Length.parse(searcher.get("max_length"), "searcher.max_length")
    return Plan(
        max_length=length,
        scheduling_unit=scheduling_unit(config),
        validation_period=Length.parse(config.get("min_validation_period"), "min_validation_period"),
        checkpoint_period=Length.parse(config.get("min_checkpoint_period"), "min_checkpoint_period"),
        records_per_epoch=config.get("records_per_epoch"),
        perform_initial_validation=bool(config.get("perform_initial_validation")),
        checkpoint_policy=config.get("checkpoint_policy") or "best",
        rungs=tuple(Length(length.unit, units, "rungs") for units in rungs) if length is not None else (),
    )


def evaluate_trial(
    trial_class: type[PyTorchTrial],
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    device: str | None = None,
    checkpoint: str | Path | None = None,
) -> dict[str, float]:
    """Evaluate a trial class on its validation data. Return the metrics.

    The class needs no method that only training needs.

    :param checkpoint: folder of a checkpoint whose weights the models get; None: the weights that ``__init__`` set
    :raises CheckpointError: the checkpoint is damaged, or holds other models
    """
    with init(hparams=hparams, seed=seed, device=device, config=config) as ctx:
        return evaluate(trial_class, ctx, checkpoint=checkpoint)


def evaluate(trial_class: Any, ctx: Context, *, checkpoint: str | Path | None = None) -> dict[str, float]:
    """Evaluate a trial class on a rank's context. Return the metrics, the same on all ranks."""
    context = PyTorchTrialContext(ctx)
    trial = trial_class(context)
    if checkpoint is not None:
        load_models(context.models, Path(checkpoint))
    ctx._streams.part()
    return Validator(trial, context, Callbacks(trial.build_callbacks())).run()


def load_models(models: list[Any], path: Path) -> None:
    """Load the weights of a checkpoint into models.

    :param path: folder of one checkpoint
    :raises CheckpointError: the checkpoint is damaged, or holds other models
    """
    found = disk.whole(path)
    description.refuse_files(found)
    opened = reading.open_state(found, found.metadata, Distributed(RankEnvironment()))
    warm_start.load_weights(models, *opened, str(path))
