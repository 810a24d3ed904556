"""Records from a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from airflow_provider_dtrain.client.decoder import Answer
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.core.logs.query import LogQuery
from airflow_provider_dtrain.errors import ServerError
from airflow_provider_dtrain.resources.checkpoints import TrialCheckpoints
from airflow_provider_dtrain.resources.experiments import (
    ExperimentDetail,
    ExperimentFilter,
    ExperimentPage,
    ExperimentSummary,
)
from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
from airflow_provider_dtrain.resources.gangs import GangPage, GangSummary
from airflow_provider_dtrain.resources.host_checks import HostDescription
from airflow_provider_dtrain.resources.host_days import HostDays
from airflow_provider_dtrain.resources.hosts import Cluster
from airflow_provider_dtrain.resources.logs import LogLines, LogMatches, LogPiece
from airflow_provider_dtrain.resources.media import TrialMedia
from airflow_provider_dtrain.resources.metrics import MetricReport, MetricReports
from airflow_provider_dtrain.resources.provenance import Differences, TrialProvenance
from airflow_provider_dtrain.resources.ranks import AttemptRanks
from airflow_provider_dtrain.resources.reproductions import TrialReproductions
from airflow_provider_dtrain.resources.results import ResultPreview
from airflow_provider_dtrain.resources.telemetry import Profile
from airflow_provider_dtrain.resources.timeline import TrialTimeline
from airflow_provider_dtrain.resources.trials import TrialDetail, TrialPage, TrialSummary
from airflow_provider_dtrain.resources.usage import Usage

#: Most rows of a list.
ROWS_MOST = 1000

#: Gangs that are requested at one time.
GANGS_MOST: Final = 1000


class ServerSource:
    """Records from a server.

    :param keep: a repeated request gets the whole answer only after a change
    """

    def __init__(self, session: Session, *, keep: bool = False) -> None:
        self.session = session
        self.keep = keep

    def _of_trial(self, trial_id: int, name: str, /, **parameters: Any) -> Answer:
        return self.session.get(f"/trials/{trial_id}/{name}", keep=self.keep, **parameters)

    def trials(
        self, *, experiment: int | None, state: str | None, tags: Sequence[str], limit: int, where: str = ""
    ) -> list[TrialSummary]:
        """Return trials, latest first."""
        latest = {"replaced": True, "sort": "created_at", "order": "desc", "limit": limit}
        own = {"experiment_id": experiment, "state": state, "tag": list(tags), "where": where or None}
        return self.session.get("/trials", keep=self.keep, **own, **latest).record(TrialPage).rows

    def trial(self, trial_id: int) -> TrialDetail:
        """Return a trial."""
        return self.session.get(f"/trials/{trial_id}", keep=self.keep).record(TrialDetail)

    def ranks(self, trial_id: int) -> AttemptRanks:
        """Return the processes of the latest attempt of a trial."""
        return self._of_trial(trial_id, "ranks").record(AttemptRanks)

    def failure(self, trial_id: int) -> TrialFailure:
        """Return why a trial failed, what has changed since the last good run, and what to try."""
        return self._of_trial(trial_id, "failure").record(TrialFailure)

    def failures(self, experiment_id: int) -> ExperimentFailures:
        """Return the failed trials of an experiment by cause."""
        return self.session.get(f"/experiments/{experiment_id}/failures", keep=self.keep).record(ExperimentFailures)

    def provenance(self, trial_id: int) -> TrialProvenance:
        """Return what the latest attempt of a trial was made of."""
        return self._of_trial(trial_id, "provenance").record(TrialProvenance)

    def trial_differences(self, trial_ids: Sequence[int]) -> Differences:
        """Return in what trials differ."""
        return self.session.get("/differences/trials", keep=self.keep, trial=list(trial_ids)).record(Differences)

    def experiment_differences(self, experiment_ids: Sequence[int]) -> Differences:
        """Return in what experiments differ."""
        ids = list(experiment_ids)
        return self.session.get("/differences/experiments", keep=self.keep, experiment=ids).record(Differences)

    def metrics(self, trial_id: int, *, group: str | None, abandoned: bool) -> list[MetricReport]:
        """Return the reports of a trial."""
        found: list[MetricReport] = []
        offset: int | None = 0
        while offset is not None:
            answer = self._of_trial(trial_id, "metrics", group=group, abandoned=abandoned, offset=offset)
            page = answer.record(MetricReports)
            found += page.rows
            if page.next_offset is not None and page.next_offset != offset + len(page.rows):
                raise ServerError("The server sent a page of metrics that leaves out reports. Try again.")
            offset = page.next_offset if page.rows else None
        return found

    def log(self, trial_id: int, *, rank: int, attempt: int | None, offset: int) -> LogPiece:
        """Return the bytes of a rank's log behind an offset."""
        return self._of_trial(trial_id, "log", rank=rank, attempt=attempt, offset=offset).record(LogPiece)

    def log_lines(self, trial_id: int, *, attempt: int | None, rank: int) -> LogLines:
        """Return the first line of a rank's log, and how much of the log the store has."""
        return self._of_trial(trial_id, "log/lines", rank=rank, attempt=attempt, count=1).record(LogLines)

    def log_matches(
        self, trial_id: int, query: LogQuery, *, attempt: int | None, rank: int, first: int, most: int
    ) -> LogMatches:
        """Return lines of a rank's log that a query describes."""
        place = {"attempt": attempt, "rank": rank, "first": first, "count": most}
        times = {"since": query.since and query.since.isoformat(), "until": query.until and query.until.isoformat()}
        of = {"text": query.text, "regex": query.is_regex, "level": query.level, **times}
        return self._of_trial(trial_id, "log/search", **place, **of).record(LogMatches)

    def timeline(self, trial_id: int) -> TrialTimeline:
        """Return everything that happened to a trial, oldest first."""
        return self._of_trial(trial_id, "timeline").record(TrialTimeline)

    def profile(self, trial_id: int, *, attempt: int | None) -> Profile:
        """Return timings and system metrics of an attempt."""
        return self._of_trial(trial_id, "profile", attempt=attempt).record(Profile)

    def results(self, trial_id: int) -> ResultPreview:
        """Return the first results of a batch inference."""
        return self._of_trial(trial_id, "results").record(ResultPreview)

    def checkpoints(self, trial_id: int) -> TrialCheckpoints:
        """Return all checkpoints of a trial, oldest first."""
        return self._of_trial(trial_id, "checkpoints").record(TrialCheckpoints)

    def media(self, trial_id: int) -> TrialMedia:
        """Return the media of a trial, as of their last copy on the server."""
        return self._of_trial(trial_id, "media").record(TrialMedia)

    def reproductions(self, trial_id: int) -> TrialReproductions:
        """Return the trial that a trial runs again, and those that run it again."""
        return self._of_trial(trial_id, "reproductions").record(TrialReproductions)

    def experiments(self, query: ExperimentFilter) -> list[ExperimentSummary]:
        """Return experiments, latest first."""
        values = {name: value for name, value in vars(query).items() if name != "tags"}
        return self._experiments(**values, tag=list(query.tags))

    def experiment_of(self, dag_id: str, run_id: str) -> ExperimentSummary | None:
        """Return the latest experiment of a DAG run, None until it is planned."""
        return next(iter(self._experiments(dag_id=dag_id, run_id=run_id, archived="all", limit=1)), None)

    def _experiments(self, **parameters: Any) -> list[ExperimentSummary]:
        return self.session.get("/experiments", keep=self.keep, **parameters).record(ExperimentPage).rows

    def experiment(self, experiment_id: int) -> ExperimentDetail:
        """Return an experiment."""
        return self.session.get(f"/experiments/{experiment_id}", keep=self.keep).record(ExperimentDetail)

    def gangs(self, pool: str | None) -> list[GangSummary]:
        """Return waiting and running gangs, the running ones first."""

        def page(offset: int) -> GangPage:
            answer = self.session.get("/queue", keep=self.keep, pool=pool, limit=GANGS_MOST, offset=offset)
            return answer.record(GangPage)

        return _all_gangs(page)

    def usage(self, *, by: str, days: int, pool: str | None) -> Usage:
        """Return slot hours by day."""
        return self.session.get("/cluster/usage", keep=self.keep, by=by, days=days, pool=pool).record(Usage)

    def host(self, name: str) -> HostDescription:
        """Return a host with its facts and the results of its checks."""
        return self.session.get(f"/hosts/{name}", keep=self.keep).record(HostDescription)

    def host_day(self, name: str, *, day: str | None) -> HostDays:
        """Return what a host did on a day."""
        return self.session.get("/cluster/day", keep=self.keep, host=name, day=day).record(HostDays)

    def cluster(self, pool: str | None) -> Cluster:
        """Return pools, hosts with their details, and holders."""
        return self.session.get("/cluster", keep=self.keep, pool=pool, details=True).record(Cluster)


def _all_gangs(page: Callable[[int], GangPage]) -> list[GangSummary]:
    """Return the gangs of all pages.

    A gang that moves to a later page meanwhile is there once. One that moves to an earlier page may be missing.

    :param page: returns the page from an offset on
    """
    found: dict[int, GangSummary] = {}
    offset = 0
    while True:
        part, before = page(offset), len(found)
        found |= {one.allocation_id: one for one in part.rows}
        offset += len(part.rows)
        if offset >= part.total or len(found) == before:
            return list(found.values())
