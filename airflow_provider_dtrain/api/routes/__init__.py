"""Routes, one module per page."""

from __future__ import annotations

from airflow_provider_dtrain.api.routes import (
    charts,
    cluster,
    experiment,
    experiments,
    files,
    hyperparameters,
    lookup,
    me,
    queue,
    telemetry,
    trial,
)

ROUTERS = [
    me.router,
    cluster.router,
    telemetry.router,
    queue.router,
    experiments.router,
    experiment.router,
    trial.router,
    files.router,
    hyperparameters.router,
    charts.router,
    lookup.router,
]
