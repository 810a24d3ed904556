"""What the provider adds to Airflow's own processes."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_dtrain.plugins import listener


class DtrainPlugin(AirflowPlugin):
    """Ends held gangs with their DAG run."""

    name = "dtrain"
    listeners: list[Any] = [listener]
