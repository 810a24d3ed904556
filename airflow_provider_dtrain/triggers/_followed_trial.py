"""One trial of a trigger: its follower, its end, its kill."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import POLL_AGAIN_S, SILENT_S
from airflow_provider_dtrain.engine.attempt.end_summary import ShownFacts
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError, StaleWatchError, StoreUnavailableError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.engine.logs.buffer import Shown
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.notifications.serialization import PackedNotifications, PackedNotifier
    from airflow_provider_dtrain.store.store import Store


class TrialEvent(ShownFacts, total=False):
    """End of a trial, with the facts that its task instance shows."""

    #: An :class:`Outcome` as plain JSON.
    outcome: JsonObject
    #: Marks of the task log that Airflow may not have written.
    log_marks: list[str]


def stored_end(store: Store, trial_id: int) -> TrialEvent:
    """Return the end of a trial that has ended before its task was deferred. Blocks."""
    from airflow_provider_dtrain.engine.attempt.end_summary import shown_of
    from airflow_provider_dtrain.engine.attempt.trial_end import ended

    outcome = ended(store.attempts.get(store.trials.get(trial_id).attempt_id))
    return {**shown_of(store, trial_id), "outcome": outcome.to_dict(), "log_marks": []}


class FollowedTrial:
    """A trial that a trigger takes to its end. Its methods run in the trigger's event loop.

    :param trigger: for its log and its task instance
    :param log_file: returns the key of the trigger's log file among those of its triggerer
    :param deadline: Unix time when Airflow's ``execution_timeout`` ends it; None = never
    :param notifications: notifiers for a long wait, and for slow ranks; None = no notification
    :param is_alone: the task has no other trial, so its lines in the task log need no mark
    :param has_result: the trial had ended with a result before the task was deferred
    """

    def __init__(
        self,
        trigger: BaseTrigger,
        trial_id: int,
        log_file: Callable[[], Hashable | None],
        deadline: float | None,
        notifications: PackedNotifications | None,
        *,
        is_alone: bool,
        has_result: bool,
    ) -> None:
        self.trigger = trigger
        self.log_file = log_file
        self.trial_id = trial_id
        self.deadline = deadline
        self.notifications = notifications
        self.section = None if is_alone else trial_id
        #: Parts of rank 0's log that Airflow has removed from the task log.
        self.emptied: Sequence[Shown] = ()
        self._runtime: Runtime | None = None
        self._has_ended = has_result

    def log(self, *, rate_bytes_per_s: int | None = None) -> TaskLog:
        """Return the trial's part of the task log."""
        return TaskLog(self.trigger.log, rate_bytes_per_s, file=self.log_file(), section=self.section)

    async def run(self) -> TrialEvent:
        """Follow the trial to its end and return it."""
        if self._has_ended:
            hook = await in_thread(DtrainHook)
            return await in_thread(lambda: stored_end(hook.store, self.trial_id))
        outcome = await self._outcome()
        self._has_ended = True
        shown = await self._shown()
        assert self._runtime is not None
        if self.section is not None:
            self._runtime.log.info("--- The trial ended: %s ---", shown.get("ending") or outcome.state)
        # Airflow may never write records that its parent process has not read yet. The resuming worker logs the marks.
        return {**shown, "outcome": outcome.to_dict(), "log_marks": self._runtime.logs.unconfirmed}

    async def _outcome(self) -> Outcome:
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner, Superseded
        from airflow_provider_dtrain.engine.operations.follower import redacting, serving
        from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery

        outcome = None
        while outcome is None:
            self._runtime = runtime = await self.take_over()
            runtime.logs.repeat(self.emptied)
            try:
                with serving(runtime.hook, self.trial_id, redacting(runtime)):
                    outcome = await AttemptRunner(runtime, deadline=self.deadline).run(BackgroundRecovery(runtime.hook))
            except Superseded as error:
                self.emptied = runtime.logs.to_repeat
                self.log().info("Another process follows this trial now (%s)", error)
                await self._until_alone()
        return outcome

    async def kill(self) -> None:
        """End the gang on every host, unless the trial has ended or moved to another follower."""
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner, Superseded
        from airflow_provider_dtrain.engine.attempt.spans import trace_trial

        if self._has_ended:
            return
        try:
            runtime = self._runtime or await self.take_over()
            await AttemptRunner(runtime).kill()
            await runtime.logs.finish(await runtime.view())
            await trace_trial(runtime)
            for mark in runtime.logs.unconfirmed:
                self.trigger.log.warning("%s", mark)
        except (StaleWatchError, Superseded):
            self.log().info("Another process follows this trial now; nothing to kill here")

    async def take_over(self) -> Runtime:
        """Take over the trial's latest attempt, and return the runtime of its new follower."""
        from airflow_provider_dtrain.engine.session.runtime import take_over

        hook = await in_thread(DtrainHook)
        log = self.log(rate_bytes_per_s=hook.settings.task_log_rate_bytes_per_s)
        runtime = await take_over(hook, self.trial_id, log, watcher=f"triggerer on {socket.gethostname()}")
        await in_thread(self._set_notifications, hook, runtime)
        runtime.trace_parent = getattr(self.trigger.task_instance, "context_carrier", None)
        return runtime

    def _set_notifications(self, hook: DtrainHook, runtime: Runtime) -> None:
        """Let the follower run the notifiers for a long wait and for slow ranks. Blocks: it imports them."""
        if self.notifications is None:
            return
        from airflow_provider_dtrain.notifications.straggler import StragglerNotification
        from airflow_provider_dtrain.notifications.wait_limit import WaitLimit

        log = self.trigger.log
        context = {"ti": self.trigger.task_instance, "task_instance": self.trigger.task_instance}
        if waited := self._unpacked(self.notifications["waited"], "if the trial waits long"):
            limit_s = float(self.notifications["limit_s"])
            runtime.on_waiting = WaitLimit(hook.store, self.trial_id, limit_s, waited, log=log, context=context)
        if slow := self._unpacked(self.notifications["straggler"], "about slow ranks"):
            runtime.on_straggler = StragglerNotification(hook.store, self.trial_id, slow, log=log, context=context)

    def _unpacked(self, several: Sequence[PackedNotifier], occasion: str) -> list[BaseNotifier]:
        from airflow_provider_dtrain.notifications.serialization import PackingError, unpack

        notifiers = []
        for packed in several:
            try:
                notifiers.append(unpack(packed))
            except PackingError as error:
                self.trigger.log.warning("No notification %s: %s", occasion, error)
        return notifiers

    async def _shown(self) -> ShownFacts:
        """Return what the task instance shows of the trial: its name, the words about its end, its ids.

        The event carries them, because the worker that ends the task does not query the store.
        """
        from airflow_provider_dtrain.engine.attempt.end_summary import shown_of

        assert self._runtime is not None
        with contextlib.suppress(DtrainError):
            return await in_thread(shown_of, self._runtime.store, self.trial_id)
        return {"trial_id": self.trial_id}

    async def _until_alone(self) -> None:
        """Return when the other process has ended the trial, or no longer follows it.

        A trigger that replaced this one in another triggerer renews the lease. Recovery ends what it took over.
        """
        assert self._runtime is not None
        store = self._runtime.store
        while True:
            await asyncio.sleep(POLL_AGAIN_S)
            with contextlib.suppress(StoreUnavailableError):
                attempt_id = (await in_thread(store.trials.get, self.trial_id)).attempt_id
                view = await in_thread(store.attempts.get, attempt_id)
                if view.ended_at is not None or await in_thread(store.attempts.silent_for_s, attempt_id) >= SILENT_S:
                    return
