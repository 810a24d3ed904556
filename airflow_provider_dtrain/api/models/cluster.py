"""Utilization of hosts, and actions on them."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.resources.hosts import ClusterHost


class DeviceUtilization(Model):
    """Utilization of one GPU."""

    device: str
    #: Index of its slot; None: no slot has this device now.
    slot: int | None
    mean: list[float | None]


class HostUtilization(Model):
    """Utilization of one host: of its GPUs, and without any of its CPUs."""

    name: str
    metric: str
    #: Mean over the devices at each point; None: no data.
    mean: list[float | None]
    devices: list[DeviceUtilization]


class Utilization(Model):
    """Utilization of hosts at common points in time."""

    at_s: list[float]
    hosts: list[HostUtilization]


class Reason(Model):
    """Body of an action on a host."""

    #: Shown to all users; empty: the user's name.
    reason: str = Field(default="", max_length=1000)


class DrainBody(Reason):
    """Body of the request to drain a host."""

    #: Time by which no gang may be left: those that can resume save and resume elsewhere. None: all may finish.
    by: AwareDatetime | None = None
    #: The deadline is now. ``by`` is not given then.
    now: bool = False
    #: Gangs that cannot resume from a checkpoint are ended at the deadline, and start again.
    kill_at_deadline: bool = False
    #: Only answer what would happen.
    dry_run: bool = False


class HostAction(Model):
    """Outcome of an action on a host or slot."""

    message: str
    host: ClusterHost
