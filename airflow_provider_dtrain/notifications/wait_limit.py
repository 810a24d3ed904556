"""Notification of a trial that has waited for its slots longer than a limit."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.scheduling.estimated_start import without_position
from airflow_provider_dtrain.notifications.dispatch import WarningLog, send_once
from airflow_provider_dtrain.notifications.events import NotifyEvent
from airflow_provider_dtrain.notifications.notice import trial_notice

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier

    from airflow_provider_dtrain.store.store import Store

#: Seconds until the next look after a failure of the store.
NEXT_CHECK_S = 60.0


class WaitLimit:
    """Sends one notification when a trial has waited too long. The trial's follower calls it while the trial waits.

    Only time counts in which the trial could have started: not while it is paused, or its experiment is at its limit of
    slots or trials.

    :param limit_s: seconds
    :param log: of the task
    :param context: for the notifiers' templates
    """

    def __init__(
        self,
        store: Store,
        trial_id: int,
        limit_s: float,
        notifiers: Sequence[BaseNotifier],
        *,
        log: WarningLog,
        context: Mapping[str, Any],
    ) -> None:
        self.store, self.trial_id, self.limit_s, self.notifiers = store, trial_id, limit_s, notifiers
        self.log, self.context = log, context
        self._next_at = 0.0
        self._thread: threading.Thread | None = None

    def __call__(self) -> None:
        """Look at the wait in the background, if that is due. Returns at once."""
        if time.monotonic() < self._next_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_at = time.monotonic() + NEXT_CHECK_S
        # With the caller's context variables, by which Airflow finds the file of the task log.
        work = (contextvars.copy_context().run, (self.check,))
        self._thread = threading.Thread(target=work[0], args=work[1], name="dtrain-wait-limit", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Send the notification if the trial has waited too long. Blocks."""
        try:
            waited_s, reason = self._waited()
            if waited_s < self.limit_s:
                self._next_at = time.monotonic() + self.limit_s - waited_s
                return
            found = trial_notice(NotifyEvent.WAITED, self.store, self.trial_id, reason=reason, waited_s=waited_s)
            send_once(self.store, self.log, found, self.notifiers, self.context)
            self._next_at = float("inf")
        except Exception as error:  # whatever happens here must not affect the trial
            self.log.warning("The wait of trial %d could not be checked for a notification: %s", self.trial_id, error)

    def _waited(self) -> tuple[float, str]:
        attempt = self.store.attempts.get(self.store.trials.get(self.trial_id).attempt_id)
        if attempt.is_held_gang:
            waited_s = (self.store.db.now() - attempt.created_at).total_seconds()
        else:
            waited_s = self.store.queue_view.facts(attempt.allocation_id).waited_s
        return waited_s, without_position(attempt.reason)
