"""Carries a trial in the triggerer: wait, launch, follow and finish in one trigger."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dtrain.engine.attempt import AttemptRunner, Superseded
from airflow_provider_dtrain.engine.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.search import drawn_name
from airflow_provider_dtrain.engine.tasklog import TaskLog
from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import StaleWatchError, StoreUnavailableError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.triggers._airflow import EARLIEST_EVENT_S, in_background, is_deferred, warm_up

#: Between two looks at a trial that another process follows.
LOOK_AGAIN_S = 10.0
#: A follower that was silent for so long does nothing any more.
SILENT_S = 60.0
#: The same while it waits in the queue, where the request is renewed and not the attempt.
SILENT_WAITING_S = 600.0


class TrialTrigger(BaseTrigger):
    """Takes the watch of a trial's latest attempt and carries it to the end.

    Payload and plan come from the store alone: a triggerer has no DAG folder.

    :param trial_id: the trial
    :param deadline: Unix time when Airflow's ``execution_timeout`` ends it; None = never
    """

    def __init__(self, trial_id: int, deadline: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trial_id, self.deadline = trial_id, deadline
        self._runtime: Runtime | None = None
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"trial_id": self.trial_id, "deadline": self.deadline}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event with the outcome."""
        started_at = time.monotonic()
        warm_up(self)
        outcome = None
        while outcome is None:
            self._runtime = runtime = await self._take_over()
            try:
                outcome = await AttemptRunner(runtime, deadline=self.deadline).run()
            except Superseded as error:
                self.log.info("Another process follows this trial now (%s)", error)
                await self._until_alone()
        await asyncio.sleep(max(0.0, EARLIEST_EVENT_S - (time.monotonic() - started_at)))
        self._fired = True
        name = await self._drawn_name()
        yield TriggerEvent({"outcome": outcome.to_dict(), "name": name})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the gang on every host, unless the trial only moved to another follower.

        The triggerer cancels a trigger again each second until it is gone, and ``on_kill`` with it: the
        work is a task of its own, which goes on.
        """
        await asyncio.shield(in_background(self._kill()))

    async def _kill(self) -> None:
        if self._fired or await self._is_wanted():
            return
        try:
            runtime = self._runtime or await self._take_over()
            await AttemptRunner(runtime).kill()
        except (StaleWatchError, Superseded):
            self.log.info("Another process follows this trial now; nothing to kill here")

    async def _is_wanted(self) -> bool:
        """Return whether another triggerer goes on, or may: who knows nothing leaves the gang to its lease."""
        try:
            return await is_deferred(self)
        except Exception as error:  # whatever Airflow's client raises
            self.log.warning("Airflow does not say what became of the task (%s): its gang is left to its lease", error)
            return True

    async def _take_over(self) -> Runtime:
        hook = await in_thread(DtrainHook)
        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        return await take_over(hook, self.trial_id, log, watcher=f"triggerer on {socket.gethostname()}")

    async def _drawn_name(self) -> str | None:
        """Return the name of a trial that has drawn since it was planned: the worker that ends it asks no store."""
        assert self._runtime is not None
        with contextlib.suppress(StoreUnavailableError):
            return await in_thread(drawn_name, self._runtime.store, self.trial_id)
        return None

    async def _until_alone(self) -> None:
        """Return when the other process has ended the trial, or follows it no more.

        The trigger that took its place in another triggerer renews the lease; recovery ends what it took.
        """
        assert self._runtime is not None
        store = self._runtime.store
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            with contextlib.suppress(StoreUnavailableError):
                attempt_id = (await in_thread(store.trial, self.trial_id)).attempt_id
                view = await in_thread(store.attempt, attempt_id)
                silent_s = time.time() - view.renewed_at.timestamp() if view.renewed_at else SILENT_S
                if view.ended_at is not None or silent_s >= (SILENT_WAITING_S if view.state == "waiting" else SILENT_S):
                    return
