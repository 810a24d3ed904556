"""Short runs of a diagnosis, and the configuration of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.core.config.merge import RESET, Override
from airflow_provider_dtrain.core.config.overrides import with_overrides
from airflow_provider_dtrain.core.config.search_length import length_of
from airflow_provider_dtrain.core.documents import ConfigDocument, Hyperparameters
from airflow_provider_dtrain.core.hyperparameters.space import sample
from airflow_provider_dtrain.core.search.plan import outline, planned
from airflow_provider_dtrain.errors import ConfigError, Problem

#: Names of the runs that decide the verdict.
REAL, AGAIN, SYNTHETIC, INDEPENDENT, ALONE = "real", "again", "synthetic", "independent", "alone"
#: Batches per exchange of gradients in the run ``independent``, as the documents of Determined advise.
NO_EXCHANGE = 1000
#: Factor by which a run extends the length of training, so that it ends by its steps.
_LONGER = 1000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of each short run."""

    steps: int = 100
    warm_up: int = 10
    most_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class ShortRunSpec:
    """One short run of a diagnosis.

    :param name: unique within a diagnosis
    :param title: for tables and pages
    """

    name: str
    title: str
    is_synthetic: bool = False
    is_alone: bool = False
    #: Dotted path of the configuration -> value.
    changes: Mapping[str, Any] = field(default_factory=dict)


def first_runs(slots: int) -> list[ShortRunSpec]:
    """Return the runs that decide the verdict, in their order.

    :param slots: ranks of the gang; with one rank, nothing is exchanged and nothing waits
    """
    real = ShortRunSpec(name=REAL, title="as configured")
    synthetic = ShortRunSpec(name=SYNTHETIC, title="synthetic data", is_synthetic=True)
    again = ShortRunSpec(name=AGAIN, title="as configured, again")
    if slots <= 1:
        return [real, synthetic, again]
    no_exchange = {"optimizations.aggregation_frequency": NO_EXCHANGE}
    independent = ShortRunSpec(name=INDEPENDENT, title=f"aggregation {NO_EXCHANGE}", changes=no_exchange)
    return [real, synthetic, independent, ShortRunSpec(name=ALONE, title="one rank alone", is_alone=True), again]


def check_config(config: ExperimentConfig) -> None:
    """Check that a configuration describes a training.

    :raises ConfigError: it describes something else
    """
    if config.inference is not None:
        message = "a batch inference has no training steps. Diagnose the configuration of a training"
        raise ConfigError([Problem(path="inference", message=message)])
    if config.diagnosis is not None:
        message = "is set by the diagnosis itself. Remove it, and use --steps and --most-s, or steps= and most_s="
        raise ConfigError([Problem(path="diagnosis", message=message)])


def hyperparameters_of(config: ExperimentConfig, seed: int, spec: ShortRunSpec) -> Hyperparameters:
    """Return the hyperparameters of a short run: those of the first trial.

    One rank alone has the batches that a rank of the gang has, if the batch size is the usual hyperparameter.

    :param seed: of the experiment
    """
    first = next(iter(planned(config, seed, outline(config))))["hyperparameters"]
    found = sample(config.hyperparameters, experiment_seed=seed, trial=0) if first is None else dict(first)
    slots = max(1, config.resources.slots_per_trial)
    batch = found.get("global_batch_size")
    if spec.is_alone and type(batch) is int and batch >= slots:
        found["global_batch_size"] = batch // slots
    return found


def document_of(
    source: Mapping[str, Any], config: ExperimentConfig, spec: ShortRunSpec, limits: Limits, *, name: str, seed: int
) -> ConfigDocument:
    """Return the configuration of a short run: the user's, without checkpoints, validations, search and trackers.

    :param source: as the user wrote it
    :param config: the effective configuration of the same document
    :param name: of the experiment that the runs belong to
    :param seed: of the experiment, the same for all runs
    """
    searcher: dict[str, Any] = {"name": "single", "source_checkpoint": config.searcher.source_checkpoint}
    length = length_of(config.searcher)
    if length is not None and length[0] in {"batches", "records", "epochs"}:
        searcher["max_length"] = {length[0]: length[1] * _LONGER}
    section = {
        "steps": limits.steps,
        "warm_up": limits.warm_up,
        "most_s": float(limits.most_s),
        "synthetic": spec.is_synthetic,
        "alone": spec.is_alone,
    }
    changes: dict[str, Any] = {
        # A string would be read as YAML.
        "name": Override(name),
        "searcher": Override({name: value for name, value in searcher.items() if value is not None}),
        "checkpoint_policy": "none",
        "min_validation_period": Override({"batches": 0}),
        "min_checkpoint_period": Override({"batches": 0}),
        "perform_initial_validation": False,
        "tensorboard": False,
        "loggers": Override([]),
        "max_restarts": 0,
        "preemptible": False,
        "max_runtime": float(limits.most_s),
        "reproducibility.experiment_seed": seed,
        "profiling.enabled": True,
        "profiling.timings": True,
        "profiling.trace": RESET,
        "diagnosis": Override(section),
        **spec.changes,
    }
    # A section without a value is an absent one.
    return with_overrides({name: value for name, value in source.items() if value is not None}, changes)
