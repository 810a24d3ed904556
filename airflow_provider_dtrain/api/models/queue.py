"""Actions on gangs."""

from __future__ import annotations

from airflow_provider_dtrain.api.models.common import Model


class GangAction(Model):
    """Outcome of an action on a held gang."""

    message: str
    allocation_id: int
