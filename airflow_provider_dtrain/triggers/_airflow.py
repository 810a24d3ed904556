"""Helpers shared by the triggers: Airflow's rules for events and kills."""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.engine.session.background import in_background
from airflow_provider_dtrain.engine.session.threads import in_thread

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

#: Airflow fails a task whose trigger fires before the scheduler has seen the end of the worker that deferred the task.
#: See docs/decisions/0092.
EARLIEST_EVENT_S = 12.0

#: Modules of the engine, of Airflow and of its libraries that triggers use.
_ENGINE = (
    "airflow_provider_dtrain.engine.attempt.runner", "airflow_provider_dtrain.engine.attempt.siblings",
    "airflow_provider_dtrain.engine.upkeep.held_gangs",
    "airflow_provider_dtrain.engine.operations.execution",
    "airflow_provider_dtrain.engine.submission.search", "airflow_provider_dtrain.hosts.channel.link_pool",
    "airflow.sdk.execution_time.task_runner", "asgiref.sync",
)  # fmt: skip

#: Seconds after its start for which a trigger prepares no kill. The other triggers of a search have started by then.
PREPARE_KILL_AFTER_S = 60.0

_ASKED: set[int] = set()


async def load_engine() -> None:
    """Import the engine in a thread.

    Airflow imports a trigger's module in the event loop that all triggers share. Importing the engine takes half a
    second, so triggers import it inside their methods, after this coroutine has returned.
    """
    await in_thread(_load_engine)


def _load_engine() -> None:
    from airflow_provider_dtrain.hosts.transport.registry import MODULES

    for name in (*_ENGINE, *MODULES.values()):
        importlib.import_module(name)


async def prepare_kill(trigger: BaseTrigger) -> None:
    """Send the request of :func:`is_deferred` once per triggerer, so that a kill need not wait for the first one.

    The first request of a triggerer takes 6 s of CPU time. Meanwhile its parent process starts no trigger and delivers
    no event, on a loaded machine for 44 s. So it must not come while the trials of a search are deferred and start.
    A triggerer that only runs short trials never sends it.
    """
    await asyncio.sleep(PREPARE_KILL_AFTER_S)
    if os.getpid() not in _ASKED:
        _ASKED.add(os.getpid())
        await asyncio.shield(in_background(is_deferred(trigger)))


async def is_deferred(trigger: BaseTrigger) -> bool:
    """Return whether Airflow still waits for a trigger, which then was moved and not killed."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    ti = trigger.task_instance
    if ti is None:
        return False
    states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
    )
    found: Any = (states or {}).get(ti.run_id, {})
    name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
    return str(found.get(name, found.get(ti.task_id))) == "deferred"
