"""The port through which commands that only read get their records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airflow_provider_dtrain.resources.checkpoints import TrialCheckpoints
from airflow_provider_dtrain.resources.experiments import ExperimentDetail, ExperimentFilter, ExperimentSummary
from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
from airflow_provider_dtrain.resources.gangs import GangSummary
from airflow_provider_dtrain.resources.host_checks import HostDescription
from airflow_provider_dtrain.resources.host_days import HostDays
from airflow_provider_dtrain.resources.hosts import Cluster
from airflow_provider_dtrain.resources.metrics import MetricReport
from airflow_provider_dtrain.resources.provenance import Differences, TrialProvenance
from airflow_provider_dtrain.resources.ranks import AttemptRanks
from airflow_provider_dtrain.resources.reproductions import TrialReproductions
from airflow_provider_dtrain.resources.results import ResultPreview
from airflow_provider_dtrain.resources.telemetry import Profile
from airflow_provider_dtrain.resources.timeline import TrialTimeline
from airflow_provider_dtrain.resources.trials import TrialDetail, TrialSummary
from airflow_provider_dtrain.resources.usage import Usage


class Source(Protocol):
    """The store, or a server that reads it. An id that does not exist raises NotFoundError."""

    def trials(
        self, *, experiment: int | None, state: str | None, tags: Sequence[str], limit: int, where: str = ""
    ) -> list[TrialSummary]:
        """Return trials, latest first.

        :param where: filter expression; empty: all
        """

    def trial(self, trial_id: int) -> TrialDetail:
        """Return a trial."""

    def ranks(self, trial_id: int) -> AttemptRanks:
        """Return the processes of the latest attempt of a trial."""

    def failure(self, trial_id: int) -> TrialFailure:
        """Return why a trial failed, what has changed since the last good run, and what to try."""

    def failures(self, experiment_id: int) -> ExperimentFailures:
        """Return the failed trials of an experiment by cause."""

    def provenance(self, trial_id: int) -> TrialProvenance:
        """Return what the latest attempt of a trial was made of."""

    def trial_differences(self, trial_ids: Sequence[int]) -> Differences:
        """Return in what trials differ."""

    def experiment_differences(self, experiment_ids: Sequence[int]) -> Differences:
        """Return in what experiments differ."""

    def metrics(self, trial_id: int, *, group: str | None, abandoned: bool) -> list[MetricReport]:
        """Return the reports of a trial.

        :param abandoned: also steps that a later attempt repeated
        """

    def timeline(self, trial_id: int) -> TrialTimeline:
        """Return everything that happened to a trial, oldest first."""

    def profile(self, trial_id: int, *, attempt: int | None) -> Profile:
        """Return timings and system metrics of an attempt.

        :param attempt: its number; None = the latest
        """

    def results(self, trial_id: int) -> ResultPreview:
        """Return the first results of a batch inference."""

    def checkpoints(self, trial_id: int) -> TrialCheckpoints:
        """Return all checkpoints of a trial, oldest first."""

    def reproductions(self, trial_id: int) -> TrialReproductions:
        """Return the trial that a trial runs again, and those that run it again."""

    def experiments(self, query: ExperimentFilter) -> list[ExperimentSummary]:
        """Return experiments, latest first."""

    def experiment(self, experiment_id: int) -> ExperimentDetail:
        """Return an experiment."""

    def gangs(self, pool: str | None) -> list[GangSummary]:
        """Return waiting and running gangs, the running ones first."""

    def usage(self, *, by: str, days: int, pool: str | None) -> Usage:
        """Return slot hours by day.

        :param by: ``pool``, ``user`` or ``dag``
        :param days: up to today
        """

    def host(self, name: str) -> HostDescription:
        """Return a host with its facts and the results of its checks."""

    def host_day(self, name: str, *, day: str | None) -> HostDays:
        """Return what a host did on a day.

        :param day: in UTC, as 2026-03-10; None = the last 24 hours
        """

    def cluster(self, pool: str | None) -> Cluster:
        """Return pools, hosts with their details, and holders."""
