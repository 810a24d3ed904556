"""Trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.core.gaps import Gap
from airflow_provider_dtrain.core.lifecycle.inference_progress import InferenceProgress
from airflow_provider_dtrain.resources.checkpoints import CheckpointLine, RefusedCheckpoint
from airflow_provider_dtrain.resources.metrics import Value
from airflow_provider_dtrain.resources.ranks import RankLine


@dataclass(frozen=True, kw_only=True)
class TrialLine:
    """A trial in a list."""

    trial: int
    experiment_id: int
    experiment: str
    number: int
    #: ``dag.task``, with the index of a mapped instance.
    task: str
    dag_run: str
    hyperparameters: dict[str, Any]
    state: str
    #: Why it no longer counts for its search.
    replaced: str | None
    metric: Value
    rung: int | None
    attempts: int
    created: datetime
    ended: datetime | None
    #: Place in the queue.
    position: int | None
    #: Expected start, in words.
    expected: str | None
    #: Since when no process follows it.
    unfollowed_since: datetime | None
    #: Why it waits.
    reason: str | None
    shards: InferenceProgress | None
    #: State with place in the queue, in words.
    state_words: str
    #: Why it waits or ended early, or its progress.
    summary: str | None
    #: Hyperparameters that differ between the trials of its experiment.
    name: str
    best_metric: Value
    steps: Value


@dataclass(frozen=True, kw_only=True)
class TrialDescription:
    """A trial with everything that belongs to it."""

    trial: int
    experiment_id: int
    experiment: str
    number: int
    task: str
    dag_run: str
    hyperparameters: dict[str, Any]
    state: str
    replaced: str | None
    metric: Value
    rung: int | None
    attempts: int
    created: datetime
    ended: datetime | None
    #: Of its training, or of its batch inference, in words.
    progress: str | None
    expected_end: datetime | None
    seed: int
    config: int
    run: str | None
    pool: str
    slots: int
    priority: int
    hosts: str | None
    position: int | None
    expected: str | None
    paused: bool
    preempted_for: str | None
    reason: str | None
    restarts: str
    #: The process that follows it.
    watcher: str | None
    unfollowed_since: datetime | None
    limits: list[str] | None
    result: dict[str, Any] | None
    failure: dict[str, Any] | None
    display_name: str | None
    description: str | None
    tags: list[str]
    shards: InferenceProgress | None
    ranks: list[RankLine]
    checkpoints: list[CheckpointLine]
    refused_checkpoints: list[RefusedCheckpoint]
    gaps: list[Gap]
