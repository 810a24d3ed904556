"""Notifications of a task that runs a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_dtrain.errors import DtrainError, StoreError
from airflow_provider_dtrain.hooks.tasks import as_airflow
from airflow_provider_dtrain.notifications.events import Given, NotifyEvent, notifiers_of, seconds_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.tasks import TaskFacts
    from airflow_provider_dtrain.notifications.dispatch import WarningLog
    from airflow_provider_dtrain.notifications.serialization import PackedNotifications, PackedNotifier
    from airflow_provider_dtrain.store.store import Store

#: Default time after which a wait is an event.
WAITING_AFTER = timedelta(hours=1)


class TrialNotifications:
    """Notifications of one task. They never affect the trial: a failure of one is a warning in the task log.

    :param given: event -> notifiers
    :param waiting_after: time after which a wait is an event
    :param log: of the task
    """

    def __init__(self, given: Mapping[str, Given] | None, waiting_after: timedelta | float, log: WarningLog) -> None:
        self.notifiers = notifiers_of(given)
        self.waiting_after_s = seconds_of(waiting_after)
        self.log = log
        #: The trial, once it is known; None for a task with several.
        self.trial_id: int | None = None
        #: The notifications about each of several trials were sent.
        self._are_sent = False

    @contextmanager
    def about(self, task: TaskFacts) -> Iterator[None]:
        """Send what follows from the end of the block. A block that defers sends nothing."""
        try:
            yield
        except (Exception, AirflowTaskTimeout) as error:
            if self.notifiers and not self._are_sent and task.is_final(error):
                self._failed(task, error)
            raise
        if self.notifiers and self.trial_id is not None:
            self._ended(task, self.trial_id)

    def several_ended(self, task: TaskFacts, failures: Mapping[int, DtrainError | None]) -> None:
        """Send what follows from the ends of several trials.

        :param failures: trial -> why it failed, None: it has a result
        """
        self._are_sent = True
        if not self.notifiers:
            return
        for trial_id, error in failures.items():
            if error is None:
                self._ended(task, trial_id)
            elif task.is_final(as_airflow(error)):
                self.trial_id = trial_id
                self._failed(task, error)
        self.trial_id = None

    def _ended(self, task: TaskFacts, trial_id: int) -> None:
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook
        from airflow_provider_dtrain.notifications.trial_end import notify_end

        try:
            notify_end(DtrainHook().store, self.log, trial_id, self.notifiers, dict(task.context))
        except Exception as error:  # whatever happens here must not fail the task
            self.log.warning("The notifications about the end of trial %d failed: %s", trial_id, error)

    def _failed(self, task: TaskFacts, error: BaseException) -> None:
        from airflow_provider_dtrain.notifications.trial_end import notify_failure, notify_unsubmitted

        try:
            if self.trial_id is None or not self._failed_trial(task, self.trial_id, error, notify_failure):
                notify_unsubmitted(self.log, task.key, error, self.notifiers, dict(task.context))
        except Exception as problem:  # whatever happens here must not hide the error of the task
            self.log.warning("The notifications about the failure failed: %s", problem)

    def _failed_trial(
        self, task: TaskFacts, trial_id: int, error: BaseException, notify_failure: Callable[..., None]
    ) -> bool:
        """Send the notification about a trial, and return False when the store does not answer."""
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        try:
            store = DtrainHook().store
            notify_failure(store, self.log, trial_id, error, self.notifiers, dict(task.context))
        except StoreError:
            return False
        return True

    def wait_limit(self, store: Store, trial_id: int, task: TaskFacts) -> Callable[[], None] | None:
        """Return the watch over a trial that waits in this process, None without notifiers for it."""
        several = self.notifiers.get(NotifyEvent.WAITED)
        if not several:
            return None
        from airflow_provider_dtrain.notifications.wait_limit import WaitLimit

        return WaitLimit(store, trial_id, self.waiting_after_s, several, log=self.log, context=dict(task.context))

    def straggler(self, store: Store, trial_id: int, task: TaskFacts) -> Callable[[str], None] | None:
        """Return the sender for slow ranks of a trial that runs in this process, None without notifiers for them."""
        several = self.notifiers.get(NotifyEvent.STRAGGLER)
        if not several:
            return None
        from airflow_provider_dtrain.notifications.straggler import StragglerNotification

        return StragglerNotification(store, trial_id, several, log=self.log, context=dict(task.context))

    def packed(self) -> PackedNotifications | None:
        """Return the notifiers that a follower runs for the triggerer, None without them."""
        waited = self._packed(NotifyEvent.WAITED, "if the trial waits long")
        straggler = self._packed(NotifyEvent.STRAGGLER, "about slow ranks")
        if not waited and not straggler:
            return None
        return {"limit_s": self.waiting_after_s, "waited": waited, "straggler": straggler}

    def _packed(self, event: NotifyEvent, occasion: str) -> list[PackedNotifier]:
        from airflow_provider_dtrain.notifications.serialization import PackingError, pack

        found = []
        for notifier in self.notifiers.get(event, ()):
            try:
                found.append(pack(notifier))
            except PackingError as error:
                self.log.warning("No notification %s: %s", occasion, error)
        return found
