"""Notifications about the end of a trial, sent by the worker that ends its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_SUCCEEDED
from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.errors import DtrainError, TaskEndedError
from airflow_provider_dtrain.notifications.dispatch import WarningLog, send, send_once
from airflow_provider_dtrain.notifications.events import Notifiers, NotifyEvent
from airflow_provider_dtrain.notifications.notice import notice, trial_notice

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier

    from airflow_provider_dtrain.store.records.trials import TrialKey, TrialView
    from airflow_provider_dtrain.store.store import Store

#: Name of an error that no notification is about: a user marked or cleared the task in Airflow.
_BY_USER = TaskEndedError.__name__


def notify_end(store: Store, log: WarningLog, trial_id: int, notifiers: Notifiers, context: Mapping[str, Any]) -> None:
    """Send the notifications about a trial that has ended with a result. Blocks."""
    trial = store.trials.get(trial_id)
    if trial.search_id is None:
        _send(NotifyEvent.FINISHED, store, log, trial_id, notifiers, context)
        return
    before = _best_before(store, trial)
    if before is not None and NotifyEvent.BEST in notifiers:
        found = trial_notice(NotifyEvent.BEST, store, trial_id, before=before)
        send_once(store, log, found, notifiers[NotifyEvent.BEST], context)


def notify_failure(
    store: Store,
    log: WarningLog,
    trial_id: int,
    error: BaseException,
    notifiers: Notifiers,
    context: Mapping[str, Any],
) -> None:
    """Send the notifications about a trial whose task fails for good. Blocks."""
    failure = failure_of(error)
    if failure.error == _BY_USER:
        return
    event = NotifyEvent.FAILED if store.trials.get(trial_id).search_id is None else NotifyEvent.TRIAL_FAILED
    _send(event, store, log, trial_id, notifiers, context, failure=failure)


def notify_unsubmitted(
    log: WarningLog, key: TrialKey, error: BaseException, notifiers: Notifiers, context: Mapping[str, Any]
) -> None:
    """Send the notification about a task that fails without a trial, or without the store. Blocks."""
    if several := notifiers.get(NotifyEvent.FAILED):
        cause = failure_of(error).cause
        title = f"Task {key.dag_id}.{key.task_id} failed: {cause}"
        send(log, notice(NotifyEvent.FAILED, key, title, None, cause=cause), several, context)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception of a task describes."""
    cause = error if isinstance(error, DtrainError) else error.__cause__
    if isinstance(cause, DtrainError):
        return Failure.of(cause)
    return Failure(error=type(error).__name__, kind="user", message=str(error) or type(error).__name__)


def _send(
    event: NotifyEvent,
    store: Store,
    log: WarningLog,
    trial_id: int,
    notifiers: Notifiers,
    context: Mapping[str, Any],
    *,
    failure: Failure | None = None,
) -> None:
    several: Sequence[BaseNotifier] = notifiers.get(event, ())
    if several:
        send_once(store, log, trial_notice(event, store, trial_id, failure=failure), several, context)


def _best_before(store: Store, trial: TrialView) -> float | None:
    """Return the best metric of a search that a trial beats, None when it beats none."""
    assert trial.search_id is not None
    if trial.best_metric is None or trial.state not in TRIAL_SUCCEEDED:
        return None
    sign = 1 if store.searches.get(trial.search_id).smaller_is_better else -1
    values = [
        row.metric
        for row in store.searches.history(trial.search_id)
        if row.trial_id != trial.trial_id and row.state in TRIAL_SUCCEEDED and row.metric is not None
    ]
    best = min(values, key=lambda value: sign * value, default=None)
    return best if best is not None and sign * trial.best_metric < sign * best else None
