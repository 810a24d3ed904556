"""Answers to the commands of ``dtrain``: the records that ``airflow dtrain`` prints as well."""

from __future__ import annotations

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.resources.experiments import ExperimentDescription, ExperimentLine


class ExperimentList(Model):
    """Experiments, latest first."""

    rows: list[ExperimentLine]


class OneExperiment(Model):
    """An experiment with its share of the queue."""

    row: ExperimentDescription
