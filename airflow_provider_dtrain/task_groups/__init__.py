"""Task groups of the provider."""

from __future__ import annotations

from airflow_provider_dtrain.task_groups._experiment import ExperimentGroup, experiment

__all__ = ["ExperimentGroup", "experiment"]
