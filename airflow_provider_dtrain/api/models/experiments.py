"""The table of experiments, and the page of one."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.api.models.configs import Document
from airflow_provider_dtrain.core.lifecycle.control import ControlRequest
from airflow_provider_dtrain.core.lifecycle.states import ExperimentState
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint
from airflow_provider_dtrain.resources.metrics import MetricName, Number
from airflow_provider_dtrain.resources.trials import TrialSummary

Tags = list[str]


class ExperimentRow(Model):
    """One experiment in a table."""

    experiment_id: int
    #: The name from the configuration; ``display_name`` prevails on pages.
    name: str
    display_name: str | None
    dag_id: str
    run_id: str
    state: ExperimentState
    #: Control request of a user that is in force.
    control_request: ControlRequest | None
    #: Name of the searcher; None: its only trial was submitted without one.
    method: str | None
    metric: str | None
    smaller_is_better: bool
    best: Number | None
    #: Id of the trial with the best metric.
    best_trial: int | None
    #: State -> number of trials, without cleared ones.
    trials: dict[str, int]
    #: Number of planned trials.
    max_trials: int
    #: From 0 to 1: trials that have ended, and parts of running ones, of the planned trials; None: unknown.
    progress: float | None
    #: From the durations of its ended trials, else from the progress of running ones; None: there is no estimate.
    expected_end: datetime | None
    created_at: datetime
    ended_at: datetime | None
    description: str
    tags: Tags
    may_edit: bool


class Experiments(Model):
    """One page of experiments."""

    rows: list[ExperimentRow]
    total: int
    #: All tags of experiments that the user may read, for the filter.
    tags: Tags


class Search(Model):
    """Plan of an experiment's trials."""

    search_id: int
    #: From 1; grows when a user clears the task that plans.
    generation: int
    divisor: int
    seed: int
    #: ``batches``, ``records``, ``epochs``, or the searcher's own time metric.
    units: str
    #: Bracket -> units of training at each of its rungs.
    rungs: dict[str, list[int]]
    #: 0: no cap.
    max_concurrent_trials: int
    #: ``random``, ``grid``, ``tpe`` ...
    sampler: str


class Hyperparameter(Model):
    """One dimension of the search space, or a constant."""

    #: Dotted path.
    name: str
    kind: Literal["float", "int", "categorical", "const"]
    log: bool
    minimum: float | None
    maximum: float | None
    #: Values of a categorical, or the value of a constant.
    values: list[Any] | None


class Fork(Model):
    """Possibility of a fork, or the reason against it."""

    possible: bool
    #: Why not, with the command that changes it; empty: it can.
    reason: str


class Experiment(ExperimentRow):
    """One experiment with its plan."""

    config_id: int | None
    search: Search | None
    best_checkpoint: StoredCheckpoint | None
    #: Share of the queue relative to other experiments.
    weight: float
    #: Most slots that its gangs hold at one time; None: no cap.
    max_slots: int | None
    #: The user of ``control_request``.
    requested_by: str | None
    metrics: list[MetricName]
    #: Reports name their epoch.
    has_epochs: bool
    #: ``description`` and ``labels`` of its configuration, beside those that users give on pages.
    config_description: str
    config_labels: list[str]
    hyperparameters: list[Hyperparameter]
    fork: Fork


class ExperimentAction(Model):
    """Outcome of an action on an experiment."""

    message: str
    experiment: ExperimentRow


class TrialAction(Model):
    """Outcome of an action on a trial."""

    message: str
    trial: TrialSummary


class Started(Model):
    """Outcome of a start: the DAG run that plans the experiment."""

    dag_id: str
    run_id: str
    message: str


class NewExperiment(Document):
    """Body of a start."""

    #: Name of an experiment whose configuration has none.
    default_name: str = Field(default="experiment", min_length=1, max_length=200)


class StoredCode(Model):
    """Code that the store holds."""

    #: SHA-256 of the archive.
    digest: str


class ForkSource(Model):
    """The submitted configuration of an experiment as a start for another one."""

    #: Values that a user or a template has set. Secrets are masked. A masked value that is sent back unchanged keeps
    #: the secret of the forked experiment.
    yaml: str
    #: Digest of its stored code, which the fork uses; None: the fork uses the code that ``model_dir`` names.
    payload_digest: str | None
    #: The store no longer has the code of the experiment.
    code_removed: bool
    #: The fork uses the same stored template; None: the values of the template are in the text.
    template: str | None
