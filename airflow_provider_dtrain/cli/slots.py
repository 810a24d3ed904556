"""``airflow dtrain slots``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command, hint, show

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.store.records.trials import SlotView


@command
def list_slots(args: Namespace) -> None:
    """List slots and the trials that hold them."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    rows = [_row(slot) for slot in DtrainHook().store.hosts.slots(args.pool)]
    show(args, rows, empty="No slots. Register a host: airflow dtrain hosts add NAME --conn SSH_CONN_ID")
    if any(row["trial"] is not None for row in rows):
        hint("airflow dtrain queue list")


def _row(slot: SlotView) -> dict[str, object]:
    return {
        "host": slot.host,
        "slot": slot.index,
        "pool": slot.pool,
        "device": slot.device or "cpu",
        "device_name": slot.device_name,
        "state": _state(slot),
        "note": slot.note or None,
        "trial": slot.trial_id,
        "experiment": slot.experiment,
        "since": slot.held_since,
    }


def _state(slot: SlotView) -> str:
    if slot.allocation_id is not None:
        return "stuck" if slot.state == "stuck" else "held"
    if not slot.enabled:
        return "disabled"
    return "free" if slot.state == "ready" else slot.state
