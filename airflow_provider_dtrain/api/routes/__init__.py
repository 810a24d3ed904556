"""Routes, one module per page."""

from __future__ import annotations

from airflow_provider_dtrain.api.routes import (
    charts,
    cluster,
    code,
    configs,
    experiment,
    experiment_actions,
    experiments,
    files,
    host_actions,
    hyperparameters,
    lookup,
    me,
    operations,
    queue,
    reproductions,
    shards,
    telemetry,
    trial,
    trial_actions,
    trials,
)

ROUTERS = [
    me.router,
    cluster.router,
    telemetry.router,
    queue.router,
    experiments.router,
    experiment.router,
    trials.router,
    trial.router,
    shards.router,
    files.router,
    hyperparameters.router,
    charts.router,
    lookup.router,
    configs.router,
    reproductions.router,
    code.router,
    operations.router,
    host_actions.router,
    trial_actions.router,
    experiment_actions.router,
]
