"""The queue, hosts and slots as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.follower_text import Silence, reason_text, state_text
from airflow_provider_dtrain.resources.gangs import GangLine
from airflow_provider_dtrain.resources.hosts import HostLine, SlotLine
from airflow_provider_dtrain.terminal.output import placement_text, task_name

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import HostRecord, SlotView, TaskView


def gang_line(task: TaskView, silence: Silence) -> GangLine:
    """Return a gang as a line of the queue.

    :param silence: of the process that follows it
    """
    waits = task.position is not None
    return GangLine(
        gang=task.allocation_id,
        trial=task.trial_id,
        experiment=task.experiment,
        attempt=task.attempt_number,
        task=task_name(task.key),
        dag_run=task.key.run_id,
        pool=task.pool,
        slots=task.slots,
        priority=task.priority,
        state=task.state,
        position=None if silence.is_loss else task.position,
        hosts=placement_text(task.placement) or None,
        since=task.since,
        expected=None if silence.is_loss else task.expected or None,
        paused=task.paused,
        unfollowed_since=silence.lost_since,
        reason=reason_text(task.reason, silence, waits=waits, paused=task.paused, trial_id=task.trial_id),
        state_words=state_text(task.state, task.position, paused=task.paused, silence=silence),
    )


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
