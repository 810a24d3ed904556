"""Paths of the provider's pages, relative to Airflow's UI."""

from __future__ import annotations

from urllib.parse import quote

ROOT = "plugin/dtrain"


def trial_page(trial_id: int) -> str:
    """Return the path of a trial's page."""
    return f"{ROOT}/trials/{trial_id}"


def experiment_page(experiment_id: int) -> str:
    """Return the path of an experiment's page."""
    return f"{ROOT}/experiments/{experiment_id}"


def trials_page(experiment_id: int) -> str:
    """Return the path of an experiment's page with the list of its trials."""
    return f"{experiment_page(experiment_id)}?tab=trials"


def queue_page(allocation_id: int) -> str:
    """Return the path of the queue's page, with a gang to show."""
    return f"{ROOT}/queue?gang={allocation_id}"


def run_page(dag_id: str, run_id: str) -> str:
    """Return the path of the page of a DAG run's experiments, which shows the experiment once it is planned."""
    return f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/plugin/dtrain-run"
