"""``dtrain`` and the Python client: a server of Airflow from any machine.

It imports neither Airflow nor SQLAlchemy, and no library beyond Python's own, except PyYAML for ``-o yaml``, pathspec
for a ``.dtrainignore`` and pandas for data frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_dtrain.client.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    # The commands need nothing of it, and start faster without it.
    if name == "Client":
        from airflow_provider_dtrain.client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
