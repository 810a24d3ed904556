"""What a gang asks for, what hosts have, and who holds what. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

HostState = Literal["ready", "draining", "drained", "disabled", "unreachable", "lost"]
AllocationState = Literal["waiting", "granted", "starting", "running", "stopping", "released", "expired"]
TrialState = Literal["queued", "running", "paused", "completed", "stopped", "errored", "killed"]
SlotType = Literal["cuda", "cpu"]
Fit = Literal["best", "worst"]
PreemptionRule = Literal["off", "priority", "slices"]


@dataclass(frozen=True)
class Host:
    """A registered machine as the placement sees it."""

    #: Name it was registered under.
    name: str
    #: Number of slots, enabled or not.
    slots: int
    #: Indices of slots that live allocations hold.
    held: frozenset[int] = frozenset()
    #: Only ``ready`` hosts are granted from.
    state: HostState = "ready"
    #: Indices of slots that a person switched off: for the placement they do not exist.
    disabled: frozenset[int] = frozenset()
    #: Indices that cannot be granted for now: stuck, or held by somebody outside this store. They
    #: still count when asked whether a request can ever be served.
    blocked: frozenset[int] = frozenset()
    #: (slot index, who holds it) for the held slots, in words for people, e.g. ``(3, "trial 7")``.
    holders: tuple[tuple[int, str], ...] = ()

    @property
    def enabled(self) -> frozenset[int]:
        """Indices of the slots that exist and are switched on."""
        return frozenset(range(self.slots)) - self.disabled

    @property
    def free(self) -> frozenset[int]:
        """Indices that can be granted now; empty unless the host is ready."""
        return self.enabled - self.held - self.blocked if self.state == "ready" else frozenset()


@dataclass(frozen=True)
class GangRequest:
    """One gang that waits for its slots."""

    #: Unique, stable; part of the tie-break.
    request_id: str
    #: Slots wanted, >= 0. 0 is one CPU-only process that needs no slot.
    slots: int
    #: 1 .. 99, smaller first.
    priority: int = 42
    #: All slots on one host.
    is_single_host: bool = False
    #: Hosts that this trial must not use again.
    excluded_hosts: frozenset[str] = frozenset()
    #: Position in the order of submission; grows by one per request, kept over preemption and restart.
    sequence: int = 0
    #: Whose gangs share the pool by weight: the experiment.
    group: str = ""
    #: Share of the group beside other groups, > 0.
    weight: float = 1.0
    #: Most slots that all gangs of the group hold at one time; None = no cap.
    max_slots: int | None = None
    #: Those of the group whose gangs ``max_gangs`` counts: its search; "" = nobody counts them.
    crowd: str = ""
    #: Most gangs of the crowd that are started at one time, those of 0 slots included; None = no cap.
    max_gangs: int | None = None
    #: Wall seconds that its gangs have held slots; kept over preemption and restart.
    held_s: float = 0.0
    #: Seconds that it was eligible and held none, up to now; kept over preemption and restart.
    waited_s: float = 0.0
    #: Seconds after which a run of it is ended; None = it may run for ever.
    max_runtime_s: float | None = None
    #: Slots that are kept for it since an earlier pass ordered a preemption; they come free one by one.
    claim: Placement | None = None
    #: Hosts that an earlier pass reserved for it, () = none.
    reserved_hosts: tuple[str, ...] = ()
    #: It has written a checkpoint, or declared that it can; may then start on hosts reserved for a
    #: request that could interrupt it.
    is_preemptible: bool = False


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
    """One gang that holds slots."""

    #: The request that it was granted to; the same after a preemption.
    request_id: str
    placement: Placement
    #: In words for people, e.g. ``trial 7``.
    who: str
    priority: int = 42
    sequence: int = 0
    group: str = ""
    weight: float = 1.0
    crowd: str = ""
    #: As of a request, this grant included, up to now.
    held_s: float = 0.0
    waited_s: float = 0.0
    #: Seconds since this grant.
    ran_s: float = 0.0
    #: It has written a checkpoint, or declared that it can.
    is_preemptible: bool = False
    #: Measured seconds of a checkpoint and a restart; 0 = not measured.
    cost_s: float = 0.0
    #: It was told to stop and its slots are coming: never chosen as a victim again.
    is_ending: bool = False
    #: Seconds until ``max_runtime`` ends it; None = it may run for ever.
    ends_in_s: float | None = None


@dataclass(frozen=True)
class Unplaceable:
    """Why a request cannot be placed."""

    #: In words, with the numbers and what would work.
    reason: str
    #: True: not even with every host free.
    never: bool
    #: Slots that have to become free before it could start, on the hosts that come closest.
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """How one pool places and orders gangs."""

    fit: Fit = "best"
    allow_heterogeneous: bool = False
    #: How many requests that cannot start may keep hosts reserved.
    reservations: int = 2
    #: Whom a request may interrupt: nobody, gangs of a worse priority, or also of a worse class.
    preemption: PreemptionRule = "priority"
    #: A request that waited so long is protected.
    max_wait_s: float = 36 * 3600.0
    #: Most of the pool's slots that protected requests take together.
    protected_share: float = 0.6
    #: A request whose gangs held slots for less is fresh, or else young.
    fresh_s: float = 2 * 3600.0
    young_s: float = 8 * 3600.0
    #: A gang runs at least so long before it is interrupted; 20 times its ``cost_s`` if that is more.
    min_run_s: float = 1800.0
