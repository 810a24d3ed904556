"""Answers to commands as typed records: ``airflow dtrain`` makes them from the store, ``dtrain`` gets them by HTTP.

Values that ranks or users choose hold no NaN and no infinity, but their names, because JSON has neither. A field of an
answer may be added at any time, so that a record with a default also comes from an older server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.core.gaps import Gap
from airflow_provider_dtrain.core.lifecycle.inference_progress import InferenceProgress

#: A reported value; NaN and infinities by their names.
Value = float | int | bool | str | None


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
class RankLine:
    """A process of a gang."""

    rank: int
    host: str
    slot: int | None
    pid: int | None
    #: Negative for a signal.
    exit_code: int | None
    exited: datetime | None
    #: First line of the error; None also for a user who may not read task logs.
    error: str | None


@dataclass(frozen=True, kw_only=True)
class CheckpointLine:
    """A checkpoint of a trial."""

    checkpoint: int
    step: int
    host: str
    path: str
    #: In words.
    size: str
    metrics: dict[str, Any]
    #: Location of its copy.
    copy: str | None
    removed: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RefusedCheckpoint:
    """A checkpoint whose path is outside the configured places."""

    step: int
    host: str
    reported: str
    refused: str | None


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


@dataclass(frozen=True, kw_only=True)
class MetricLine:
    """One report of a trial."""

    attempt: int
    #: ``training`` or ``validation``.
    group: str
    step: int
    epoch: float | None
    rank: int
    at: datetime
    metrics: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TimelineLine:
    """One thing that happened to a trial."""

    at: datetime
    #: End of an entry that lasts.
    until: datetime | None
    kind: str
    attempt: int | None
    host: str | None
    text: str
    detail: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LogPiece:
    """Part of a rank's log, and the state of its attempt."""

    attempt: int
    #: The ranks of the attempt have started, or had.
    is_started: bool
    #: Nothing follows in this attempt.
    is_over: bool
    #: State of the attempt.
    state: str
    #: Number of the latest attempt.
    latest: int
    #: Why the attempt waits.
    reason: str | None
    #: Number of ranks, 0 while it waits.
    ranks: int
    #: Offset of its first byte; None: the store does not know it, and the content is the end of the log.
    start: int | None
    #: Bytes in base64.
    content: str


@dataclass(frozen=True, kw_only=True)
class ExperimentLine:
    """An experiment in a list."""

    experiment: int
    name: str
    dag: str
    dag_run: str
    method: str | None
    #: With the control request of a user that is in force.
    state: str
    #: State -> number of trials.
    trials: dict[str, int]
    metric: str | None
    smaller_is_better: bool | None
    best: Value
    best_trial: int | None
    created: datetime
    ended: datetime | None
    display_name: str | None
    description: str | None
    tags: list[str]


@dataclass(frozen=True, kw_only=True)
class ExperimentDescription:
    """An experiment with its share of the queue."""

    experiment: int
    name: str
    dag: str
    dag_run: str
    method: str | None
    state: str
    trials: dict[str, int]
    metric: str | None
    smaller_is_better: bool | None
    best: Value
    best_trial: int | None
    created: datetime
    ended: datetime | None
    #: In percent, while it runs and its length is known.
    progress: str | None
    expected_end: datetime | None
    display_name: str | None
    description: str | None
    tags: list[str]
    best_hyperparameters: dict[str, Any] | None
    weight: float
    max_slots: int | None
    #: Control request in force, and its user.
    control_request: str | None
    requested_by: str | None
    #: Running trials that a pause sets back to their beginning.
    without_checkpoint: list[int]


@dataclass(frozen=True, kw_only=True)
class GangLine:
    """A gang that waits or holds slots."""

    gang: int
    trial: int | None
    experiment: str
    attempt: int | None
    task: str
    dag_run: str
    pool: str
    slots: int
    priority: int
    state: str
    position: int | None
    hosts: str | None
    since: datetime
    expected: str | None
    paused: bool
    unfollowed_since: datetime | None
    reason: str | None
    state_words: str


@dataclass(frozen=True, kw_only=True)
class HostLine:
    """A host."""

    name: str
    pool: str
    state: str
    slots: int
    held: int
    device: str | None
    #: Only for users who may edit connections.
    connection: str | None
    python: str | None
    torch: str | None
    reason: str | None
    #: Ids of other stores that use it.
    other_stores: list[str]


@dataclass(frozen=True, kw_only=True)
class SlotLine:
    """A slot and its holder."""

    host: str
    slot: int
    pool: str
    device: str
    device_name: str | None
    #: ``free``, ``held``, ``disabled``, ``stuck``, or the reason why it is not ready.
    state: str
    note: str | None
    trial: int | None
    experiment: str | None
    since: datetime | None
