"""Operator that releases a gang shared by several tasks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_dtrain.hooks.arguments import MAP, CheckedArguments, Kind
from airflow_provider_dtrain.hooks.tasks import failing_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dtrain.engine.upkeep.held_gangs import HeldGang
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.gangs import GangView


class ReleaseGangOperator(CheckedArguments, BaseOperator):
    """Releases a gang that a ``GangSensor`` holds.

    It can run repeatedly: a gang that has ended stays as it is. Make it a teardown, so that it runs whether or not the
    tasks in between succeeded::

        gang = GangSensor(task_id="gang", slots=4)
        free = ReleaseGangOperator(task_id="free", allocation=gang.output).as_teardown(setups=gang)
        gang >> TrialOperator(task_id="train", config=..., allocation=gang.output) >> free

    Runs that still use the gang are ended first. Slots of a host that does not answer stay taken until it does.

    :param allocation: XCom of the ``GangSensor`` (templated)
    :param retries: retries of failures of the store (3)
    """

    template_fields: Sequence[str] = ("allocation",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"allocation": "json"}
    ui_color = "#fef7e0"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {"allocation": MAP}

    def __init__(
        self,
        *,
        allocation: Mapping[str, Any] | None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.check_arguments(self.task_id, {"allocation": allocation})
        self.allocation = allocation

    def execute(self, context: Context) -> None:
        """Release the gang.

        :raises AirflowFailException: ``allocation`` is not a gang
        """
        from airflow_provider_dtrain.engine.upkeep.held_gangs import HeldGang
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        if self.allocation is None:
            self.log.info("No gang to release: the task that requests it was not granted one")
            return
        with failing_at_once():
            gang = HeldGang.parse(self.allocation)
            hook = DtrainHook()
            known = hook.store.gangs.get(gang.allocation_id)
            if known.token != gang.token:
                self.log.warning(
                    "Gang %d was not released: it is held under token %s, not %d",
                    gang.allocation_id,
                    known.token,
                    gang.token,
                )
                return
            left = asyncio.run(self._end(hook, gang, f"released by the task '{self.task_id}'"))
        if left.state == "released":
            self.log.info("Gang %d was released (%s)", left.allocation_id, left.ended_because)
        else:
            hosts = ", ".join(left.held_hosts)
            self.log.warning(
                "Gang %d has ended, but its slots on %s stay taken until these hosts answer", gang.allocation_id, hosts
            )

    async def _end(self, hook: DtrainHook, gang: HeldGang, because: str) -> GangView:
        from airflow_provider_dtrain.engine.logs.task_log import TaskLog
        from airflow_provider_dtrain.engine.upkeep.held_gangs import end_held_gang

        log = TaskLog(self.log, hook.settings.task_log_rate_bytes_per_s)
        watcher = f"worker on {socket.gethostname()}"
        return await end_held_gang(hook, gang.allocation_id, because, log, watcher=watcher)
