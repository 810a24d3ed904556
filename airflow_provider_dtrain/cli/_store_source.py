"""Records from the store, with all rights.

Each method imports its query: a command needs one of them, and some need a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.pages import ExperimentQuery, QueueQuery, TrialQuery
from airflow_provider_dtrain.terminal.output import user

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.lifecycle.states import TrialState
    from airflow_provider_dtrain.core.logs.query import LogQuery
    from airflow_provider_dtrain.resources.checkpoints import TrialCheckpoints
    from airflow_provider_dtrain.resources.experiments import ExperimentDetail, ExperimentFilter, ExperimentSummary
    from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
    from airflow_provider_dtrain.resources.gangs import GangSummary
    from airflow_provider_dtrain.resources.host_checks import HostDescription
    from airflow_provider_dtrain.resources.host_days import HostDays
    from airflow_provider_dtrain.resources.hosts import Cluster
    from airflow_provider_dtrain.resources.logs import LogMatches
    from airflow_provider_dtrain.resources.metrics import MetricReport
    from airflow_provider_dtrain.resources.provenance import Differences, TrialProvenance
    from airflow_provider_dtrain.resources.ranks import AttemptRanks
    from airflow_provider_dtrain.resources.reproductions import TrialReproductions
    from airflow_provider_dtrain.resources.results import ResultPreview
    from airflow_provider_dtrain.resources.telemetry import Profile
    from airflow_provider_dtrain.resources.timeline import TrialTimeline
    from airflow_provider_dtrain.resources.trials import TrialDetail, TrialSummary
    from airflow_provider_dtrain.resources.usage import Usage
    from airflow_provider_dtrain.store.store import Store


class StoreSource:
    """Records from the store, with all rights."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rights = AllRights()

    def trials(
        self, *, experiment: int | None, state: str | None, tags: Sequence[str], limit: int, where: str = ""
    ) -> list[TrialSummary]:
        """Return trials, latest first."""
        from airflow_provider_dtrain.store.queries.runs import condition
        from airflow_provider_dtrain.store.queries.trials import trial_page

        query = TrialQuery(
            experiment_id=experiment,
            states=() if state is None else (cast("TrialState", state),),
            tags=tags,
            where=condition(where),
            with_replaced=True,
            sort="created_at",
            descending=True,
            limit=limit,
        )
        return trial_page(self.store, self.rights, query).rows

    def trial(self, trial_id: int) -> TrialDetail:
        """Return a trial."""
        from airflow_provider_dtrain.store.queries.trials import trial_detail

        return trial_detail(self.store, self.rights, trial_id)

    def ranks(self, trial_id: int) -> AttemptRanks:
        """Return the processes of the latest attempt of a trial."""
        from airflow_provider_dtrain.store.queries.ranks import ranks_of

        return ranks_of(self.store, self.rights, trial_id)

    def failure(self, trial_id: int) -> TrialFailure:
        """Return why a trial failed, what has changed since the last good run, and what to try."""
        from airflow_provider_dtrain.store.queries.failures import trial_failure

        return trial_failure(self.store, self.rights, trial_id)

    def failures(self, experiment_id: int) -> ExperimentFailures:
        """Return the failed trials of an experiment by cause."""
        from airflow_provider_dtrain.store.queries.failures import experiment_failures

        return experiment_failures(self.store, self.rights, experiment_id)

    def provenance(self, trial_id: int) -> TrialProvenance:
        """Return what the latest attempt of a trial was made of."""
        from airflow_provider_dtrain.store.queries.provenance import provenance_of

        return provenance_of(self.store, self.rights, trial_id)

    def trial_differences(self, trial_ids: Sequence[int]) -> Differences:
        """Return in what trials differ."""
        from airflow_provider_dtrain.store.queries.differences import trial_differences

        return trial_differences(self.store, self.rights, trial_ids)

    def experiment_differences(self, experiment_ids: Sequence[int]) -> Differences:
        """Return in what experiments differ."""
        from airflow_provider_dtrain.store.queries.differences import experiment_differences

        return experiment_differences(self.store, self.rights, experiment_ids)

    def metrics(self, trial_id: int, *, group: str | None, abandoned: bool) -> list[MetricReport]:
        """Return the reports of a trial."""
        from airflow_provider_dtrain.store.queries.metrics import reports_of

        return reports_of(self.store, self.rights, trial_id, group=group, abandoned=abandoned).rows

    def log_matches(
        self, trial_id: int, query: LogQuery, *, attempt: int | None, rank: int, first: int, most: int
    ) -> LogMatches:
        """Return lines of a rank's log that a query describes."""
        from airflow_provider_dtrain.engine.logs.search import search_log

        return search_log(self.store, self.rights, trial_id, query, attempt=attempt, rank=rank, first=first, most=most)

    def timeline(self, trial_id: int) -> TrialTimeline:
        """Return everything that happened to a trial, oldest first."""
        from airflow_provider_dtrain.store.queries.timelines import timeline_of

        return timeline_of(self.store, self.rights, trial_id)

    def profile(self, trial_id: int, *, attempt: int | None) -> Profile:
        """Return timings and system metrics of an attempt."""
        from airflow_provider_dtrain.store.queries.profiles import profile_of

        return profile_of(self.store, self.rights, trial_id, attempt)

    def results(self, trial_id: int) -> ResultPreview:
        """Return the first results of a batch inference."""
        from airflow_provider_dtrain.store.queries.results import result_preview

        return result_preview(self.store, self.rights, trial_id)

    def checkpoints(self, trial_id: int) -> TrialCheckpoints:
        """Return all checkpoints of a trial, oldest first."""
        from airflow_provider_dtrain.store.queries.checkpoints import checkpoints_of

        return checkpoints_of(self.store, self.rights, trial_id)

    def reproductions(self, trial_id: int) -> TrialReproductions:
        """Return the trial that a trial runs again, and those that run it again."""
        from airflow_provider_dtrain.store.queries.reproductions import compared, linked_trials

        return compared(self.store, linked_trials(self.store, self.rights, trial_id))

    def experiments(self, query: ExperimentFilter) -> list[ExperimentSummary]:
        """Return experiments, latest first."""
        from airflow_provider_dtrain.store.queries.experiments import experiment_page

        values = {name: value for name, value in vars(query).items() if name != "mine"}
        owner = user() if query.mine else query.owner
        return experiment_page(self.store, self.rights, ExperimentQuery(**{**values, "owner": owner})).rows

    def experiment(self, experiment_id: int) -> ExperimentDetail:
        """Return an experiment."""
        from airflow_provider_dtrain.store.queries.experiments import experiment_detail

        return experiment_detail(self.store, self.rights, experiment_id)

    def gangs(self, pool: str | None) -> list[GangSummary]:
        """Return waiting and running gangs, the running ones first."""
        from airflow_provider_dtrain.store.queries.gangs import gang_page

        return gang_page(self.store, self.rights, QueueQuery(pool=pool, limit=None)).rows

    def usage(self, *, by: str, days: int, pool: str | None) -> Usage:
        """Return slot hours by day."""
        from airflow_provider_dtrain.resources.usage import UsageBy
        from airflow_provider_dtrain.store.queries.usage import usage_of

        return usage_of(self.store, self.rights, by=UsageBy(by), days=days, pool=pool)

    def host(self, name: str) -> HostDescription:
        """Return a host with its facts and the results of its checks."""
        from airflow_provider_dtrain.store.queries.host_descriptions import host_description

        return host_description(self.store, self.rights, name)

    def host_day(self, name: str, *, day: str | None) -> HostDays:
        """Return what a host did on a day."""
        from datetime import date

        from airflow_provider_dtrain.store.queries.host_days import host_days

        return host_days(self.store, self.rights, [name], day=None if day is None else date.fromisoformat(day))

    def cluster(self, pool: str | None) -> Cluster:
        """Return pools, hosts with their details, and holders."""
        from airflow_provider_dtrain.store.queries.hosts import cluster_details

        return cluster_details(self.store, self.rights, pool)
