"""Notification of the first slow rank of a trial."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.notifications.dispatch import WarningLog, send_once
from airflow_provider_dtrain.notifications.events import NotifyEvent
from airflow_provider_dtrain.notifications.notice import trial_notice

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier

    from airflow_provider_dtrain.store.store import Store


class StragglerNotification:
    """Sends one notification when a rank of a trial is slow. The trial's follower calls it.

    :param log: of the task
    :param context: for the notifiers' templates
    """

    def __init__(
        self,
        store: Store,
        trial_id: int,
        notifiers: Sequence[BaseNotifier],
        *,
        log: WarningLog,
        context: Mapping[str, Any],
    ) -> None:
        self.store, self.trial_id, self.notifiers = store, trial_id, notifiers
        self.log, self.context = log, context

    def __call__(self, sentence: str) -> None:
        """Send the notification in the background. Returns at once.

        :param sentence: names rank, host and cause
        """
        # With the caller's context variables, by which Airflow finds the file of the task log.
        work = (contextvars.copy_context().run, (self.send, sentence))
        threading.Thread(target=work[0], args=work[1], name="dtrain-straggler", daemon=True).start()

    def send(self, sentence: str) -> None:
        """Send the notification unless one was sent for this trial. Blocks."""
        try:
            found = trial_notice(NotifyEvent.STRAGGLER, self.store, self.trial_id, reason=sentence)
            send_once(self.store, self.log, found, self.notifiers, self.context)
        except Exception as error:  # whatever happens here must not affect the trial
            self.log.warning("The notification about a slow rank of trial %d failed: %s", self.trial_id, error)
