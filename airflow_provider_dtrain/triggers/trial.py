"""Carries a trial in the triggerer: wait, launch, follow and finish in one trigger."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dtrain.engine.attempt import AttemptRunner, Superseded
from airflow_provider_dtrain.engine.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.tasklog import TaskLog
from airflow_provider_dtrain.engine.threads import in_thread
from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook

#: Airflow may fail a task whose trigger fires within seconds of its deferral.
EARLIEST_EVENT_S = 12.0

#: The loop holds tasks weakly.
_BACKGROUND: set[asyncio.Future[Any]] = set()
_ASKED: set[int] = set()


def _in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Return a task that goes on when its caller is cancelled."""
    task = asyncio.ensure_future(work)
    _BACKGROUND.add(task)
    task.add_done_callback(_BACKGROUND.discard)
    return task


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
        self._warm_up()
        self._runtime = runtime = await self._take_over()
        try:
            outcome = await AttemptRunner(runtime, deadline=self.deadline).run()
        except Superseded as error:
            self.log.info("Another process follows this trial now (%s)", error)
            await asyncio.Event().wait()
            return
        assert outcome is not None
        await asyncio.sleep(max(0.0, EARLIEST_EVENT_S - (time.monotonic() - started_at)))
        self._fired = True
        yield TriggerEvent({"outcome": outcome.to_dict()})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the gang on every host, unless the trial only moved to another follower.

        The triggerer cancels a trigger again each second until it is gone, and ``on_kill`` with it: the
        work is a task of its own, which goes on.
        """
        await asyncio.shield(_in_background(self._kill()))

    async def _kill(self) -> None:
        if self._fired or await self._is_deferred():
            return
        try:
            runtime = self._runtime or await self._take_over()
            await AttemptRunner(runtime).kill()
        except (StaleWatchError, Superseded):
            self.log.info("Another process follows this trial now; nothing to kill here")

    async def _take_over(self) -> Runtime:
        hook = await in_thread(DtrainHook)
        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        return await take_over(hook, self.trial_id, log, watcher=f"triggerer on {socket.gethostname()}")

    def _warm_up(self) -> None:
        """Ask once per triggerer what a kill will ask: its first question costs seconds (seen: 9), later ones none."""
        if os.getpid() not in _ASKED:
            _ASKED.add(os.getpid())
            _in_background(self._is_deferred())

    async def _is_deferred(self) -> bool:
        """Return whether Airflow still waits for this trigger: then it was moved, not killed."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti = self.task_instance
        if ti is None:
            return False
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
        )
        found: Any = (states or {}).get(ti.run_id, {})
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
        return str(found.get(name, found.get(ti.task_id))) == "deferred"
