"""The cluster page. Fields at their defaults are left out, because a cluster has thousands of slots."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from airflow_provider_dtrain.api.models.common import Model, unchecked
from airflow_provider_dtrain.core.lifecycle.states import AllocationState, HostState
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.resources.pools import PoolCounts
from airflow_provider_dtrain.resources.tasks import TaskRef

#: ``held`` prevails over the other states: a slot can be held and disabled at the same time.
SlotState = Literal["free", "held", "disabled", "stuck", "busy_elsewhere"]


@unchecked
class Holder(TypedDict):
    """A gang that holds slots."""

    allocation_id: int
    #: None: a held gang that no trial uses now.
    trial_id: int | None
    experiment_id: int | None
    #: Name of the experiment; of a held gang: its task, in words.
    experiment: str
    #: Number of the trial with its hyperparameters, as in Airflow's list of mapped task instances.
    trial_name: str | None
    #: The task that requested the gang.
    task: TaskRef | None
    since: datetime
    slots: int
    state: AllocationState
    #: The holder is of a DAG that the user may not read: its names are left out.
    hidden: bool


class Slot(Model):
    """One slot. Its index is its place in the list of its host."""

    state: SlotState = "free"
    #: Key in ``holders``.
    holder: int | None = None
    #: True for a held slot that is disabled as well, and gets no other gang afterwards.
    disabled: bool = False
    #: UUID of the GPU; only with ``?host=``.
    device: str | None = None
    #: The processes that are left in it, or its holder.
    note: str = ""


class Host(Model):
    """One host with its slots."""

    name: str
    pool: str
    state: HostState = HostState.READY
    state_reason: str = ""
    state_since: datetime | None = None
    slot_type: SlotType = "cuda"
    device_name: str | None = None
    slots: list[Slot]


class Cluster(Model):
    """All pools, holders and hosts."""

    at: datetime
    pools: list[PoolCounts]
    #: Id of the allocation -> the gang.
    holders: dict[str, Holder]
    hosts: list[Host]


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


class HostAction(Model):
    """Outcome of an action on a host or slot."""

    message: str
    host: Host
