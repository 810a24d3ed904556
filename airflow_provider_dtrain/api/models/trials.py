"""The table of trials, and the page of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from typing_extensions import TypedDict

from airflow_provider_dtrain.api.models.checkpoints import Checkpoint
from airflow_provider_dtrain.api.models.common import Model, Number, unchecked
from airflow_provider_dtrain.core.gaps import Gap
from airflow_provider_dtrain.core.lifecycle.states import AttemptState, TrialState
from airflow_provider_dtrain.core.search.trial_progress import TrialProgress
from airflow_provider_dtrain.resources.gangs import QueueClass
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricName
from airflow_provider_dtrain.resources.tasks import TaskRef
from airflow_provider_dtrain.resources.telemetry import SlowRank, TimingTotal


class TrialRow(Model):
    """One trial in a table."""

    trial_id: int
    #: From 0 in its experiment.
    number: int
    #: Number and hyperparameters, as in Airflow's list of mapped task instances.
    name: str
    display_name: str | None
    state: TrialState
    #: Dotted path -> value; empty until they are sampled.
    hparams: dict[str, Any]
    best_metric: Number | None
    best_step: int | None
    #: Units of training at its highest rung; without rungs the highest reported step.
    units: int | None
    #: Epoch of its latest validation; None: it has reported at a rung, or its reports have no epoch.
    epochs: float | None
    #: None: it does not run.
    progress: TrialProgress | None
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
    #: Why it waits, or why it has ended early, in words.
    reason: str | None
    #: Place in the queue; None: it does not wait.
    position: int | None
    task: TaskRef
    #: False: a newer trial of its task, or a newer plan, has replaced it.
    is_current: bool
    description: str
    tags: list[str]


class Trials(Model):
    """One page of an experiment's trials."""

    rows: list[TrialRow]
    total: int


class Attempt(Model):
    """One launch of a trial's ranks."""

    attempt_id: int
    number: int
    state: AttemptState
    reason: str
    created_at: datetime
    granted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    placement: dict[str, list[int]]
    slots: int
    failure: dict[str, Any] | None


class Trial(TrialRow):
    """One trial with its attempts."""

    experiment_id: int
    experiment: str
    config_id: int
    seed: int
    max_restarts: int
    #: The state with the place in the queue, or the fact that the follower is gone.
    state_words: str
    expected: str | None
    expected_at: datetime | None
    #: Of its gang; None once it is released.
    queue_class: QueueClass | None
    priority: int
    slots: int
    pool: str
    placement: dict[str, list[int]]
    failure: dict[str, Any] | None
    result: dict[str, Any] | None
    gaps: list[Gap]
    #: Limits that the trial has reached, in words.
    limits: list[str]
    attempts_list: list[Attempt]
    metrics: list[MetricName]
    #: Its latest reports name their epoch.
    has_epochs: bool
    best_checkpoint: Checkpoint | None
    search_id: int | None
    #: It is the best trial of its experiment.
    is_best: bool
    #: It is a batch inference, which has shards.
    is_inference: bool
    may_edit: bool


@unchecked
class MetricSeries(TypedDict):
    """One metric of a trial over its reports."""

    group: MetricGroup
    name: str
    batches: Sequence[int]
    epochs: list[float | None]
    #: Unix time of each report, by the clock of the host.
    at_s: Sequence[float]
    y: list[float | None]
    #: Number of the attempt that reported.
    attempt: Sequence[int]
    #: The trial has more reports than were read: extreme values between the points may be missing.
    sampled: bool


@unchecked
class TrialCurves(TypedDict):
    """Metrics of one trial."""

    series: list[MetricSeries]


@unchecked
class TelemetrySeries(TypedDict):
    """One system metric of a host or GPU, or of a rank."""

    attempt: int
    host: str
    #: UUID of the GPU; None: of the whole host.
    device: str | None
    rank: int | None
    metric: str
    unit: str
    at_s: Sequence[float]
    mean: Sequence[float | None]
    minimum: Sequence[float | None]
    maximum: Sequence[float | None]


@unchecked
class Telemetry(TypedDict):
    """System metrics of one trial."""

    series: list[TelemetrySeries]


class TimingPart(Model):
    """Part of the steps of an attempt, mean over the ranks. The parts add up to the whole step."""

    name: str
    total_s: float
    #: Of the whole time, from 0 to 1.
    share: float


class Timings(Model):
    """Parts of the steps of an attempt over time."""

    attempt: int
    #: Start of each interval, Unix time.
    at_s: list[float]
    #: Length of an interval.
    bucket_s: float
    #: In the order of a step.
    names: list[str]
    #: Name -> its part of each interval, from 0 to 1; None: no step.
    share: dict[str, list[float | None]]
    parts: list[TimingPart]
    #: Every timing as measured. They overlap: ``train_batch`` contains ``backward``.
    totals: list[TimingTotal]


class RankPlace(Model):
    """A rank and its place."""

    rank: int
    host: str
    slot: int | None
    #: Median time that it needed for a step, without the wait for other ranks, relative to the gang's median.
    ratio: float | None


class StepTimes(Model):
    """Step time of each rank over time."""

    attempt: int
    #: Start of each interval, Unix time.
    at_s: list[float]
    #: Length of an interval.
    bucket_s: float
    ranks: list[RankPlace]
    #: One list per rank: mean time that it needed for a step in each interval, without the wait for other ranks.
    mean_s: list[list[float | None]]
    #: Median of the ranks' medians.
    median_s: float | None
    #: Slowest first.
    slow_ranks: list[SlowRank]


class RankRow(Model):
    """One process of a gang."""

    rank: int
    host: str
    local_rank: int
    slot: int | None
    pid: int | None
    #: Negative for a signal; None: it runs, or its end is unknown.
    exit_code: int | None
    exited_at: datetime | None
    #: Message of the training code.
    error: str | None
    #: The supervisor ended it with a signal.
    sent_signal: bool
    #: Last bytes of its log, at most 64 KiB.
    log_tail: str


class Ranks(Model):
    """The processes of one attempt."""

    #: Number of the attempt.
    attempt: int
    rows: list[RankRow]
