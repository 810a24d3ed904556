"""Trigger that runs a trial in the triggerer: wait, launch, follow and finish."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dtrain.core.lifecycle.timing import POLL_AGAIN_S, SILENT_S
from airflow_provider_dtrain.engine.attempt.end_summary import ShownFacts
from airflow_provider_dtrain.engine.logs.task_log import FILES, TaskLog
from airflow_provider_dtrain.engine.session.background import alongside, in_background
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import DtrainError, StaleWatchError, StoreUnavailableError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.triggers._airflow import EARLIEST_EVENT_S, is_deferred, load_engine, prepare_kill

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.documents import JsonObject
    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.engine.logs.buffer import Shown
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.notifications.serialization import PackedWait
    from airflow_provider_dtrain.notifications.wait_limit import WaitLimit


class TrialEvent(ShownFacts, total=False):
    """Event of a trial that has ended, with the facts that its task instance shows."""

    #: An :class:`Outcome` as plain JSON.
    outcome: JsonObject
    #: Marks of the task log that Airflow may not have written.
    log_marks: list[str]


class TrialTrigger(BaseTrigger):
    """Trigger that takes the watch of a trial's latest attempt and runs it to the end.

    Payload and plan come from the store alone, because a triggerer has no DAG folder.

    :param trial_id: the trial
    :param deadline: Unix time when Airflow's ``execution_timeout`` ends it; None = never
    :param waiting: ``limit_s``, seconds after which a wait is notified, and the packed ``notifiers``; None = no
        notification
    """

    def __init__(self, trial_id: int, deadline: float | None = None, waiting: PackedWait | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trial_id = trial_id
        self.deadline = deadline
        self.waiting = waiting
        self._runtime: Runtime | None = None
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"trial_id": self.trial_id, "deadline": self.deadline, "waiting": self.waiting}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event with the outcome."""
        started_at = time.monotonic()
        emptied = FILES.reopened(self._log_file())
        for part in emptied:
            # Before anything else, because this trigger may be killed or replaced before it shows them again.
            self.log.warning("%s", part.emptied_mark())
        await load_engine()
        async with alongside(prepare_kill(self)):
            outcome = await self._outcome(emptied)
        await asyncio.sleep(max(0.0, EARLIEST_EVENT_S - (time.monotonic() - started_at)))
        self._fired = True
        shown = await self._shown()
        assert self._runtime is not None
        # Airflow may never write records that its parent process has not read yet. The resuming worker logs the marks.
        marks = self._runtime.logs.unconfirmed
        event: TrialEvent = {**shown, "outcome": outcome.to_dict(), "log_marks": marks}
        yield TriggerEvent(event)

    async def _outcome(self, emptied: Sequence[Shown]) -> Outcome:
        """Return the outcome of the trial, which this trigger follows to its end.

        :param emptied: parts of rank 0's log that Airflow has removed from the task log
        """
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner, Superseded
        from airflow_provider_dtrain.engine.operations.follower import redacting, serving
        from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery

        outcome = None
        while outcome is None:
            self._runtime = runtime = await self._take_over()
            runtime.logs.repeat(emptied)
            try:
                with serving(runtime.hook, self.trial_id, redacting(runtime)):
                    outcome = await AttemptRunner(runtime, deadline=self.deadline).run(BackgroundRecovery(runtime.hook))
            except Superseded as error:
                emptied = runtime.logs.to_repeat
                self.log.info("Another process follows this trial now (%s)", error)
                await self._until_alone()
        return outcome

    async def on_kill(self) -> None:
        """End the gang on every host, unless the trial moved to another follower.

        The triggerer cancels a trigger every second until it is gone, and cancels ``on_kill`` with it. The work is
        therefore a separate task, which keeps running.
        """
        await asyncio.shield(in_background(self._kill()))

    async def _kill(self) -> None:
        await load_engine()
        from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner, Superseded
        from airflow_provider_dtrain.engine.attempt.spans import trace_trial

        if self._fired or await self._is_wanted():
            return
        try:
            runtime = self._runtime or await self._take_over()
            await AttemptRunner(runtime).kill()
            await runtime.logs.finish(await runtime.view())
            await trace_trial(runtime)
            for mark in runtime.logs.unconfirmed:
                self.log.warning("%s", mark)
        except (StaleWatchError, Superseded):
            self.log.info("Another process follows this trial now; nothing to kill here")

    async def _is_wanted(self) -> bool:
        """Return whether another triggerer follows the trial, or may follow it.

        When Airflow does not report the task's state, the gang is left to its lease.
        """
        try:
            return await is_deferred(self)
        except Exception as error:  # whatever Airflow's client raises
            self.log.warning("Airflow did not report the state of the task (%s). Its gang is left to its lease", error)
            return True

    async def _take_over(self) -> Runtime:
        from airflow_provider_dtrain.engine.session.runtime import take_over

        hook = await in_thread(DtrainHook)
        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s, file=self._log_file())
        runtime = await take_over(hook, self.trial_id, log, watcher=f"triggerer on {socket.gethostname()}")
        runtime.on_waiting = await in_thread(self._wait_limit, hook)
        runtime.trace_parent = getattr(self.task_instance, "context_carrier", None)
        return runtime

    def _wait_limit(self, hook: DtrainHook) -> WaitLimit | None:
        """Return the watch over the wait, None without notifiers for it. Blocks: it imports them."""
        if self.waiting is None:
            return None
        from airflow_provider_dtrain.notifications.serialization import PackingError, unpack
        from airflow_provider_dtrain.notifications.wait_limit import WaitLimit

        notifiers = []
        for packed in self.waiting["notifiers"]:
            try:
                notifiers.append(unpack(packed))
            except PackingError as error:
                self.log.warning("No notification if the trial waits long: %s", error)
        limit_s = float(self.waiting["limit_s"])
        context = {"ti": self.task_instance, "task_instance": self.task_instance}
        return WaitLimit(hook.store, self.trial_id, limit_s, notifiers, log=self.log, context=context)

    def _log_file(self) -> Hashable | None:
        """Return the key of this trigger's log file among those of this triggerer."""
        ti = self.task_instance
        return None if ti is None else (str(ti.id), ti.try_number)

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
