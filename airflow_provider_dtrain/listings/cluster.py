"""Hosts and slots as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.resources.hosts import HostLine, SlotLine

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import HostRecord, SlotView


def host_line(host: HostRecord, held: int, own_store: str, *, with_connection: bool) -> HostLine:
    """Return a host as a line of a list.

    :param held: number of its slots that are held
    :param own_store: id of this store
    """
    return HostLine(
        name=host.name,
        pool=host.pool,
        state=host.state,
        slots=len(host.slots),
        held=held,
        device=host.slots[0].device_name if host.slots else host.slot_type,
        connection=host.conn_id if with_connection else None,
        python=_text(host.facts.get("python")),
        torch=_text(host.facts.get("torch")),
        reason=host.state_reason or None,
        other_stores=host.other_stores(own_store),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def slot_line(slot: SlotView, *, is_hidden: bool) -> SlotLine:
    """Return a slot as a line of a list.

    :param is_hidden: its holder is of a DAG that the user may not read
    """
    return SlotLine(
        host=slot.host,
        slot=slot.index,
        pool=slot.pool,
        device=slot.device or "cpu",
        device_name=slot.device_name,
        state=_state(slot),
        # The note of a stuck slot may name its holder.
        note=None if is_hidden else slot.note or None,
        trial=None if is_hidden else slot.trial_id,
        experiment=None if is_hidden else slot.experiment,
        since=slot.held_since,
    )


def _state(slot: SlotView) -> str:
    if slot.allocation_id is not None:
        return "stuck" if slot.state == "stuck" else "held"
    if not slot.enabled:
        return "disabled"
    return "free" if slot.state == "ready" else slot.state
