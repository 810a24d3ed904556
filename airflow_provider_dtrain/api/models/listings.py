"""Answers to the commands of ``dtrain``: the records that ``airflow dtrain`` prints as well."""

from __future__ import annotations

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.resources.checkpoints import CheckpointLine
from airflow_provider_dtrain.resources.experiments import ExperimentDescription, ExperimentLine
from airflow_provider_dtrain.resources.trials import TrialDescription, TrialLine


class TrialList(Model):
    """Trials, latest first."""

    rows: list[TrialLine]


class OneTrial(Model):
    """A trial with everything that belongs to it."""

    row: TrialDescription


class CheckpointList(Model):
    """Checkpoints of a trial, oldest first."""

    rows: list[CheckpointLine]


class ExperimentList(Model):
    """Experiments, latest first."""

    rows: list[ExperimentLine]


class OneExperiment(Model):
    """An experiment with its share of the queue."""

    row: ExperimentDescription
