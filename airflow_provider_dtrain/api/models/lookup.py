"""Objects behind a DAG run or a task instance."""

from __future__ import annotations

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.core.lifecycle.states import ExperimentState, TrialState


class FoundExperiment(Model):
    """An experiment of the DAG run."""

    experiment_id: int
    name: str
    state: ExperimentState


class FoundTrial(Model):
    """A trial of the task instance, or of the DAG run."""

    trial_id: int
    experiment_id: int
    name: str
    state: TrialState
    task_id: str
    map_index: int
    #: False: a newer trial of the task has replaced it.
    is_current: bool


class Lookup(Model):
    """Experiments and trials of a DAG run, newest first."""

    experiments: list[FoundExperiment]
    trials: list[FoundTrial]
