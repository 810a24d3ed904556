"""Answers about hosts and slots. Fields of the models ``Host`` and ``Slot`` at their defaults are left out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NotRequired, TypedDict

from airflow_provider_dtrain.api.models.cluster import SlotState
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.resources.pools import PoolCounts
from airflow_provider_dtrain.store.records.pages import HostCells, SlotCell


class SlotRecordOf(TypedDict, total=False):
    """A ``Slot``."""

    state: SlotState
    holder: int
    disabled: bool
    device: str
    note: str


class HostRecordOf(TypedDict):
    """A ``Host``."""

    name: str
    pool: str
    state: NotRequired[HostState]
    state_reason: NotRequired[str]
    state_since: NotRequired[datetime]
    slot_type: NotRequired[SlotType]
    device_name: NotRequired[str]
    slots: list[SlotRecordOf]


class ClusterRecord(TypedDict):
    """A ``Cluster`` without its hosts and holders, which are rendered already."""

    at: datetime
    pools: list[PoolCounts]


def host_record(view: HostCells, *, with_devices: bool) -> HostRecordOf:
    """Return a host with its slots by index."""
    found: Any = {"name": view.name, "pool": view.pool}
    if view.state != "ready":
        found["state"] = view.state
    if view.state_reason:
        found["state_reason"] = view.state_reason
    if view.state_since is not None:
        found["state_since"] = view.state_since
    if view.slot_type != "cuda":
        found["slot_type"] = view.slot_type
    if view.device_name is not None:
        found["device_name"] = view.device_name
    # Most slots of a host are alike.
    known: dict[int, SlotRecordOf] = {}
    found["slots"] = [
        known[id(cell)] if id(cell) in known else known.setdefault(id(cell), _slot(cell, with_device=with_devices))
        for cell in view.cells
    ]
    record: HostRecordOf = found
    return record


def _slot(cell: SlotCell, *, with_device: bool) -> SlotRecordOf:
    found: SlotRecordOf = {}
    if cell.allocation_id is not None:
        found["state"] = "held"
        found["holder"] = cell.allocation_id
        if not cell.enabled:
            found["disabled"] = True
    elif not cell.enabled:
        found["state"] = "disabled"
    elif cell.state in ("stuck", "busy_elsewhere"):
        found["state"] = cell.state
    if with_device and cell.device is not None:
        found["device"] = cell.device
    if cell.note:
        found["note"] = cell.note
    return found
