"""Pools."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.model import SlotType


@dataclass(frozen=True, kw_only=True)
class PoolCounts:
    """Slots and gangs of one pool."""

    name: str
    slot_type: SlotType
    #: ``hosts``: the queue gives out the slots of registered hosts. Else the name of an external scheduler: its slots
    #: and hosts are those of the jobs that run.
    backend: str
    hosts: int
    #: Hosts that have not answered for so long that their runs must have ended.
    lost_hosts: int
    slots: int
    #: Free slots of ready hosts.
    free: int
    held: int
    #: Neither free nor held: disabled, stuck, or on a host that gets no gangs.
    unavailable: int
    #: Gangs that wait.
    waiting: int
    #: Gangs that hold slots.
    running: int
