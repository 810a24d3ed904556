"""Command group ``airflow dtrain``.

Every ``airflow`` command calls it, so it imports only Airflow's own CLI definitions.
"""

from __future__ import annotations

from airflow_provider_dtrain.cli._airflow_commands import get_dtrain_commands

__all__ = ["get_dtrain_commands"]
