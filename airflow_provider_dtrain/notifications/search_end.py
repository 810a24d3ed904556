"""Notifications about the end of a search, sent by the task that selects its best trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.page_paths import experiment_page
from airflow_provider_dtrain.core.safe_repr import printable_line
from airflow_provider_dtrain.core.search.names import metric_text
from airflow_provider_dtrain.notifications.dispatch import WarningLog, send_once
from airflow_provider_dtrain.notifications.events import Notifiers, NotifyEvent
from airflow_provider_dtrain.notifications.notice import notice
from airflow_provider_dtrain.notifications.trial_end import failure_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import TrialKey
    from airflow_provider_dtrain.store.store import Store


def notify_search(
    store: Store,
    log: WarningLog,
    search_id: int,
    key: TrialKey,
    outcome: Mapping[str, Any] | Exception,
    notifiers: Notifiers,
    context: Mapping[str, Any],
) -> None:
    """Send the notification about a search that has ended. Blocks.

    :param key: of the calling task
    :param outcome: the best trial, or the error with which the task fails
    """
    event = NotifyEvent.FAILED if isinstance(outcome, Exception) else NotifyEvent.FINISHED
    if not (several := notifiers.get(event)):
        return
    search = store.searches.get(search_id)
    subject = f"Experiment {printable_line(search.experiment, 60)}"
    facts: dict[str, Any]
    if isinstance(outcome, Exception):
        facts = {"cause": failure_of(outcome).cause, "state": "errored"}
        title = f"{subject} failed: {facts['cause']}"
    else:
        value = outcome["metric"]
        message = metric_text(search.metric, value) if search.metric else "no metric"
        title = f"{subject} finished: best trial {outcome['trial_id']}, {message}"
        facts = {"state": "completed", "value": value, "trial_id": outcome["trial_id"]}
    ids = {"experiment_id": search.experiment_id, "experiment": search.experiment, "metric": search.metric}
    found = notice(event, key, title, experiment_page(search.experiment_id), **ids, **facts)
    send_once(store, log, found, several, context, search_id=search_id)
