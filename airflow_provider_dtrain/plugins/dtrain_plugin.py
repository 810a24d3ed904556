"""Airflow plugin that registers the provider's listener and its pages."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_dtrain.plugins import listener, pages


class DtrainPlugin(AirflowPlugin):
    """Plugin that serves the pages, and ends held gangs with their DAG run."""

    name = "dtrain"
    listeners: list[Any] = [listener]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The application behind the pages.

        Airflow's API server is the only process that reads this attribute, so no other process imports FastAPI.
        """
        from airflow_provider_dtrain.api.app import PREFIX, application

        return [{"app": application(), "url_prefix": PREFIX, "name": "dtrain"}]

    @property
    def react_apps(self) -> list[Any]:  # type: ignore[override]
        """The pages in the Airflow UI."""
        return [dict(app) for app in pages.react_apps()]
