"""``airflow dtrain``. Called by every ``airflow`` command: imports only Airflow's own CLI definitions."""

from __future__ import annotations

from airflow_provider_dtrain.cli.definition import get_dtrain_commands

__all__ = ["get_dtrain_commands"]
