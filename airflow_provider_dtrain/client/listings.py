"""Commands that only read, with records from a server."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from airflow_provider_dtrain.client.login import session_of
from airflow_provider_dtrain.client.source import ServerSource
from airflow_provider_dtrain.terminal import cluster, experiments, trials
from airflow_provider_dtrain.terminal.output import Function
from airflow_provider_dtrain.terminal.source import Source


def _from_server(show: Callable[[Namespace, Source], None]) -> Function:
    def run(args: Namespace) -> None:
        session = session_of(args)
        source: Source = ServerSource(session)
        if getattr(args, "watch", False):
            from airflow_provider_dtrain.client.live_views import PatientSource

            source = PatientSource(session)
        show(args, source)

    return run


#: Target of a command -> its function.
LISTINGS: dict[str, Function] = {
    "trials.list_trials": _from_server(trials.list_trials),
    "trials.describe": _from_server(trials.describe),
    "trials.metrics": _from_server(trials.metrics),
    "trials.timeline": _from_server(trials.timeline),
    "trials.checkpoints": _from_server(trials.checkpoints),
    "experiments.list_experiments": _from_server(experiments.list_experiments),
    "experiments.describe": _from_server(experiments.describe),
    "queue.list_tasks": _from_server(cluster.list_tasks),
    "hosts.list_hosts": _from_server(cluster.list_hosts),
    "slots.list_slots": _from_server(cluster.list_slots),
}
