"""Choice of the source of slots. Nothing else in the engine knows who gives out the slots of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
from airflow_provider_dtrain.engine.slots.external_slots import ExternalGangSlots, ExternalGangTurn, ExternalSlots
from airflow_provider_dtrain.engine.slots.gang_slots import GangSlots, GangTurn
from airflow_provider_dtrain.engine.slots.queue_slots import QueueSlots

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.slots.slot_port import SlotPort, SlotRequest
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.gangs import GangView
    from airflow_provider_dtrain.store.records.trials import AttemptView


def slots_of(rt: Runtime, view: AttemptView) -> SlotPort:
    """Return the port to the slots of a follower's attempt: a turn on a held gang, or a request of its own."""
    if view.backend == OWN_BACKEND:
        return GangTurn(rt) if view.is_held_gang else QueueSlots(rt)
    return ExternalGangTurn(rt) if view.is_held_gang else ExternalSlots(rt)


def gang_request(hook: DtrainHook, view: GangView, watch: int, log: TaskLog) -> SlotRequest:
    """Return the request of a task that acquires a gang for several tasks.

    :param watch: number of this waiter; every write carries it
    """
    kind = GangSlots if view.backend == OWN_BACKEND else ExternalGangSlots
    return kind(hook, view.allocation_id, watch, log)
