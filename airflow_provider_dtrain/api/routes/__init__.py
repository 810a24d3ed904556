"""Routes, one module per page."""

from __future__ import annotations

from airflow_provider_dtrain.api.routes import cluster, experiments, lookup, me, queue

ROUTERS = [me.router, cluster.router, queue.router, experiments.router, lookup.router]
