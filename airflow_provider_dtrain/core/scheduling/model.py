"""Value types for hosts, requests, placements, running gangs, and options of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_provider_dtrain.core.lifecycle.states import HostState

SlotType = Literal["cuda", "cpu"]
Fit = Literal["best", "worst"]
PreemptionRule = Literal["off", "priority", "slices"]


@dataclass(frozen=True)
class Host:
    """Registered machine, with the fields that the placement needs."""

    #: Name it was registered under.
    name: str
    #: Number of slots, enabled or not.
    slots: int
    #: Indices of slots that live allocations hold.
    held: frozenset[int] = frozenset()
    #: Only ``ready`` hosts are granted from.
    state: HostState = HostState.READY
    #: Indices of slots that a user disabled. For the placement they do not exist.
    disabled: frozenset[int] = frozenset()
    #: Indices that cannot be granted for now: stuck, or held by a process outside this store. They
    #: still count for the decision whether a request can ever be served.
    blocked: frozenset[int] = frozenset()
    #: (slot index, holder) for the held slots, as readable text, e.g. ``(3, "trial 7")``.
    holders: tuple[tuple[int, str], ...] = ()

    @property
    def enabled(self) -> frozenset[int]:
        """Indices of the slots that exist and are enabled."""
        return frozenset(range(self.slots)) - self.disabled

    @property
    def free(self) -> frozenset[int]:
        """Indices that can be granted now. Empty unless the host is ready."""
        return self.enabled - self.held - self.blocked if self.state == "ready" else frozenset()


@dataclass(frozen=True)
class GangRequest:
    """Request of one gang for its slots."""

    #: Unique, stable; part of the tie-break.
    request_id: str
    #: Requested slots, >= 0. 0 is one CPU-only process that needs no slot.
    slots: int
    #: 1 .. 99, smaller first.
    priority: int = 42
    #: All slots on one host.
    is_single_host: bool = False
    #: Hosts that this trial must not use again.
    excluded_hosts: frozenset[str] = frozenset()
    #: Position in the order of submission; grows by one per request, kept over preemption and restart.
    sequence: int = 0
    #: Group that shares the pool with other groups by weight: the experiment.
    group: str = ""
    #: Share of the group beside other groups, > 0.
    weight: float = 1.0
    #: Maximum slots that all gangs of the group hold at one time; None = no cap.
    max_slots: int | None = None
    #: Part of the group whose gangs ``max_gangs`` counts: the search; "" = not counted.
    crowd: str = ""
    #: Maximum gangs of the crowd that are started at one time, including those of 0 slots; None = no cap.
    max_gangs: int | None = None
    #: Wall seconds that its gangs have held slots; kept over preemption and restart.
    held_s: float = 0.0
    #: Seconds that it was eligible and held none, and those that preemptions cost it; kept over preemption and restart.
    waited_s: float = 0.0
    #: Seconds after which a run of it is ended; None = no limit.
    max_runtime_s: float | None = None
    #: Slots that are kept for it since an earlier pass ordered a preemption. They become free one by one.
    claim: Placement | None = None
    #: Hosts that an earlier pass reserved for it, () = none.
    reserved_hosts: tuple[str, ...] = ()
    #: It has written a checkpoint, or declared that it can. It may then start on hosts reserved for a
    #: request that could preempt it.
    is_preemptible: bool = False
    #: A process runs that would start it. Without one, the request keeps its place, its claim and its reserved hosts,
    #: but gets no slots.
    is_followed: bool = True


@dataclass(frozen=True)
class Placement:
    """The slots of a gang: host name -> slot indices, ascending."""

    slots: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Number of slots over all hosts."""
        return sum(len(indices) for indices in self.slots.values())


@dataclass(frozen=True, kw_only=True)
class RunningGang:
    """Gang that holds slots."""

    #: The request that it was granted to; the same after a preemption.
    request_id: str
    placement: Placement
    #: Readable name, e.g. ``trial 7``.
    owner: str
    priority: int = 42
    sequence: int = 0
    group: str = ""
    weight: float = 1.0
    crowd: str = ""
    #: As in a request, including this grant, up to now.
    held_s: float = 0.0
    waited_s: float = 0.0
    #: Seconds since this grant.
    ran_s: float = 0.0
    #: It has written a checkpoint, or declared that it can.
    is_preemptible: bool = False
    #: Measured seconds of a checkpoint and a restart; 0 = not measured.
    cost_s: float = 0.0
    #: It was asked to stop and its slots are becoming free. It is never chosen as a victim again.
    is_ending: bool = False
    #: Seconds until ``max_runtime`` ends it; None = no limit.
    ends_in_s: float | None = None


@dataclass(frozen=True)
class Unplaceable:
    """Reason why a request cannot be placed."""

    #: Readable text, with the numbers and with sizes that would work.
    reason: str
    #: True: it cannot be placed even when every host is free.
    never: bool
    #: Slots that have to become free before it could start, on the hosts that come closest.
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Options of one pool for the placement and the order of gangs."""

    fit: Fit = "best"
    allow_heterogeneous: bool = False
    #: Maximum number of requests that cannot start and may have reserved hosts.
    reservations: int = 2
    #: Gangs that a request may preempt: none, those of a worse priority, or also those of a worse class.
    preemption: PreemptionRule = "priority"
    #: A request that waited this long is protected; one that no single host can serve, after a part of it.
    max_wait_s: float = 28 * 3600.0
    #: Maximum share of the pool's slots that protected requests take together.
    protected_share: float = 0.49
    #: A request whose gangs used less than ``fresh_s`` slot-seconds is fresh, less than ``young_s`` young.
    fresh_s: float = 5 * 3600.0
    young_s: float = 17 * 3600.0
    #: A gang runs at least this long before it is preempted, or 20 times its ``cost_s`` if that is more.
    min_run_s: float = 1200.0
