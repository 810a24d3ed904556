"""Trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.core.gaps import Gap
from airflow_provider_dtrain.core.lifecycle.inference_progress import InferenceProgress
from airflow_provider_dtrain.core.lifecycle.states import AttemptState, TrialState
from airflow_provider_dtrain.core.search.trial_progress import TrialProgress
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint
from airflow_provider_dtrain.resources.gangs import QueueClass
from airflow_provider_dtrain.resources.jobs import JobUse, SchedulerJob
from airflow_provider_dtrain.resources.metrics import MetricName, Number
from airflow_provider_dtrain.resources.tasks import TaskRef
from airflow_provider_dtrain.resources.telemetry import NamedStraggler


@dataclass(frozen=True, kw_only=True)
class TrialSummary:
    """One trial in a list."""

    trial_id: int
    experiment_id: int
    experiment: str
    config_id: int
    #: From 0 in its experiment.
    number: int
    #: Number and hyperparameters, as in Airflow's list of mapped task instances.
    name: str
    display_name: str | None
    description: str
    tags: list[str]
    #: Owner and project of its experiment, and whether that is archived.
    owner: str
    project: str
    archived: bool
    task: TaskRef
    state: TrialState
    #: True: it waits, and no set of the pool's hosts can serve it, as of the last pass.
    never_fits: bool
    #: The state with the place in the queue, or the fact that the follower is gone.
    state_text: str
    #: Why it waits, why it has ended early, or why it no longer counts.
    reason: str | None
    #: Place in the queue; None: it does not wait.
    position: int | None
    #: Expected start in words; None: unknown, or it does not wait.
    expected: str | None
    #: Last sign of life of a follower that is gone; None: it is there, or none is needed.
    unfollowed_since: datetime | None
    #: False: a newer trial of its task, or a newer plan, has replaced it.
    is_current: bool
    #: Dotted path -> value; empty until they are sampled.
    hparams: Mapping[str, Any]
    #: Of its reports, else of its result.
    best_metric: Number | None
    best_step: int | None
    #: Steps of its result; None: it has none yet.
    steps: int | None
    #: Units of training at its highest rung; without rungs the highest reported step.
    units: int | None
    #: Epoch of its latest validation; None: it has reported at a rung, or its reports have no epoch.
    epochs: float | None
    #: None: it does not run.
    progress: TrialProgress | None
    #: Progress of a batch inference that has counted its shards.
    shards: InferenceProgress | None
    bracket: int
    #: Highest rung at which it has reported; None: before the first.
    rung: int | None
    attempts: int
    #: Restarts after failures of the user's code.
    restarts: int
    created_at: datetime
    ended_at: datetime | None
    #: From its first start to its end, or to now; None: it has not started.
    duration_s: float | None


@dataclass(frozen=True, kw_only=True)
class TrialPage:
    """One page of trials."""

    rows: list[TrialSummary]
    total: int


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of a trial's ranks."""

    attempt_id: int
    number: int
    state: AttemptState
    reason: str
    created_at: datetime
    granted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    #: Host -> slots.
    placement: Mapping[str, list[int]]
    slots: int
    failure: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class TrialDetail(TrialSummary):
    """One trial with its attempts."""

    seed: int
    max_restarts: int
    search_id: int | None
    #: Name of its latest run on the hosts.
    run: str | None
    #: The process that follows it.
    watcher: str | None
    pool: str
    slots: int
    priority: int
    #: Of its gang; None once it is released, and where an external scheduler gives out the slots.
    queue_class: QueueClass | None
    placement: Mapping[str, list[int]]
    expected_at: datetime | None
    #: A user has paused it.
    is_paused: bool
    #: The trial or gang that preempts it, in words.
    preempted_for: str | None
    failure: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    gaps: list[Gap]
    #: Slow ranks that were named while it ran, oldest first.
    stragglers: list[NamedStraggler]
    #: Limits that the trial has reached, in words.
    limits: list[str]
    attempts_list: list[Attempt]
    #: Its jobs of an external scheduler, oldest first: the latest ones.
    jobs: list[SchedulerJob]
    #: Sums over all of its jobs; None: it has none.
    job_use: JobUse | None
    metrics: list[MetricName]
    #: Its latest reports name their epoch.
    has_epochs: bool
    best_checkpoint: StoredCheckpoint | None
    #: It is the best trial of its experiment.
    is_best: bool
    #: It is a batch inference, which has shards.
    is_inference: bool
    may_edit: bool
