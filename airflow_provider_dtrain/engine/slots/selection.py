"""Choice of the source of an attempt's slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine.slots.gang_slots import GangTurn
from airflow_provider_dtrain.engine.slots.queue_slots import QueueSlots

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.slots.slot_port import SlotPort
    from airflow_provider_dtrain.store.records.trials import AttemptView


def slots_of(rt: Runtime, view: AttemptView) -> SlotPort:
    """Return the port to the slots of a follower's attempt."""
    return GangTurn(rt) if view.is_held_gang else QueueSlots(rt)
