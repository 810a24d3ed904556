"""Airflow plugin that registers the provider's listener."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_dtrain.plugins import listener


class DtrainPlugin(AirflowPlugin):
    """Plugin that ends held gangs with their DAG run."""

    name = "dtrain"
    listeners: list[Any] = [listener]
