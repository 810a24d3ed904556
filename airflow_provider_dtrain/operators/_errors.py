"""Which errors of the provider end an Airflow task at once."""

from __future__ import annotations

from airflow_provider_dtrain.hooks.tasks import as_airflow, failing_at_once

__all__ = ["as_airflow", "failing_at_once"]
