"""Trigger that runs the trials of a task in the triggerer: wait, launch, follow and finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dtrain.engine.logs.task_log import FILES
from airflow_provider_dtrain.engine.session.background import alongside, in_background
from airflow_provider_dtrain.triggers._airflow import EARLIEST_EVENT_S, is_deferred, load_engine, prepare_kill
from airflow_provider_dtrain.triggers._followed_trial import FollowedTrial, TrialEvent

if TYPE_CHECKING:
    from airflow_provider_dtrain.notifications.serialization import PackedNotifications


class TrialsEvent(TypedDict, total=False):
    """Event of a task whose trials have ended, in their order."""

    trials: list[TrialEvent]


class TrialTrigger(BaseTrigger):
    """Trigger that takes the watch of each trial's latest attempt and runs it to the end, all at the same time.

    Payload and plan come from the store alone, because a triggerer has no DAG folder.

    :param trial_ids: the trials of the task, usually one
    :param deadline: Unix time when Airflow's ``execution_timeout`` ends them; None = never
    :param notifications: packed notifiers for a long wait, after ``limit_s`` seconds, and for slow ranks; None = no
        notification
    :param with_results: those of the trials that had a result before the task was deferred
    :param has_sections: the task was planned for several trials, so each line of its log begins with its trial
    """

    def __init__(
        self,
        trial_ids: Sequence[int],
        deadline: float | None = None,
        notifications: PackedNotifications | None = None,
        with_results: Sequence[int] = (),
        has_sections: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trial_ids = list(trial_ids)
        self.deadline = deadline
        self.notifications = notifications
        self.with_results = list(with_results)
        self.has_sections = has_sections
        options = (lambda: self._log_file(), deadline, notifications)
        self._trials = {
            one: FollowedTrial(self, one, *options, is_alone=not has_sections, has_result=one in self.with_results)
            for one in self.trial_ids
        }
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        names = ("trial_ids", "deadline", "notifications", "with_results", "has_sections")
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event with the outcomes."""
        started_at = time.monotonic()
        emptied = FILES.reopened(self._log_file())
        for part in emptied:
            # Before anything else, because this trigger may be killed or replaced before it shows them again.
            self.log.warning("%s", part.emptied_mark())
        for trial_id, trial in self._trials.items():
            trial.emptied = [part for part in emptied if part.place.trial_id == trial_id]
        await load_engine()
        async with alongside(prepare_kill(self)):
            ends = await self._follow()
        await asyncio.sleep(max(0.0, EARLIEST_EVENT_S - (time.monotonic() - started_at)))
        self._fired = True
        yield TriggerEvent(TrialsEvent(trials=ends))

    async def _follow(self) -> list[TrialEvent]:
        from airflow_provider_dtrain.engine.attempt.siblings import follow_all

        logs = {trial_id: trial.log() for trial_id, trial in self._trials.items()}
        return await follow_all({trial_id: trial.run for trial_id, trial in self._trials.items()}, logs)

    def _log_file(self) -> Hashable | None:
        """Return the key of this trigger's log file among those of this triggerer."""
        ti = self.task_instance
        return None if ti is None else (str(ti.id), ti.try_number)

    async def on_kill(self) -> None:
        """End the gangs on every host, unless the trials moved to another follower.

        The triggerer cancels a trigger every second until it is gone, and cancels ``on_kill`` with it. The work is
        therefore a separate task, which keeps running.
        """
        await asyncio.shield(in_background(self._kill()))

    async def _kill(self) -> None:
        await load_engine()
        if self._fired or await self._is_wanted():
            return
        ends = await asyncio.gather(*(trial.kill() for trial in self._trials.values()), return_exceptions=True)
        for error in ends:
            # All are killed first, also when the kill of one fails.
            if error is not None:
                raise error

    async def _is_wanted(self) -> bool:
        """Return whether another triggerer follows the trials, or may follow them.

        When Airflow does not report the task's state, the gangs are left to their leases.
        """
        try:
            return await is_deferred(self)
        except Exception as error:  # whatever Airflow's client raises
            self.log.warning("Airflow did not report the state of the task (%s). Its gang is left to its lease", error)
            return True
