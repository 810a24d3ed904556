"""Causes of failed trials, and of experiments whose trials failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_provider_dtrain.core.fact_differences import Difference
from airflow_provider_dtrain.core.lifecycle.failure_steps import NextStep
from airflow_provider_dtrain.core.lifecycle.raised_errors import RaisedError
from airflow_provider_dtrain.errors import Kind


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """Last lines of the log of the rank that failed, without those that ``details`` has."""

    rank: int
    host: str
    lines: list[str]
    #: The log has more lines than these.
    has_more: bool


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The last good run before a failure, and what has changed since."""

    trial_id: int
    experiment_id: int
    ended_at: datetime
    #: It belongs to the experiment of the failed trial, and not to an earlier one of the same name and DAG.
    is_of_experiment: bool
    #: Code first, then packages, configuration and hosts. At most 100.
    changes: list[Difference]
    #: Changes that are left out.
    more: int
    #: Subjects whose values are known and equal.
    same: list[str]
    #: Subjects of which one of the trials has no record.
    unknown: list[str]


@dataclass(frozen=True, kw_only=True)
class TrialFailure:
    """Cause of a trial's failure, with what helps to remove it."""

    trial_id: int
    #: Number of the attempt that failed last.
    attempt: int
    #: ``start``: its ranks were not started, e.g. for want of an image, an environment or slots.
    phase: Literal["start", "training"]
    #: The cause in one sentence: rank, host, time, fact, next step.
    cause: str
    #: Name of the class of the error.
    error: str
    kind: Kind | None
    #: Kind of the cause, e.g. ``out_of_memory``; None: not known.
    cause_kind: str | None
    rank: int | None
    host: str | None
    at: datetime | None
    #: Earlier attempts of the trial that failed in the same way.
    same_attempts: list[int]
    #: Errors of its traceback, the one that ended the program first. Empty for users who may not read task logs.
    raised: list[RaisedError]
    #: Traceback, stacks or end of the log as stored, at most 20,000 characters; empty like ``raised``.
    details: str
    #: None: no rank is blamed, its log is empty, or the user may not read task logs.
    log: LogEnd | None
    #: The user may not read task logs, so errors and logs are left out.
    is_restricted: bool
    #: None: no earlier trial of the experiment has a result.
    baseline: Baseline | None
    steps: list[NextStep]


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Trials of an experiment that failed with the same cause."""

    #: The cause without rank, host and time, with ``...`` for parts that differ.
    cause: str
    count: int
    #: Ids of the trials, the latest first, at most 100.
    trials: list[int]
    error: str
    cause_kind: str | None
    #: Errors of the latest trial. Empty for users who may not read task logs.
    raised: list[RaisedError]
    #: The next step as a sentence; empty: none is known.
    advice: str


@dataclass(frozen=True, kw_only=True)
class ExperimentFailures:
    """Failed trials of an experiment by cause."""

    #: How many trials failed, and how many of them alike; empty: none failed.
    text: str
    failed: int
    #: Trials that have ended, failed ones included.
    ended: int
    #: More than half of the trials that have ended failed.
    is_most: bool
    #: The largest group first, at most 20.
    groups: list[FailureGroup]
    #: Failed trials that were read, the latest ones. Fewer than ``failed`` in a large experiment.
    compared: int
