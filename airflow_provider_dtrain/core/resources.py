"""What a gang asks for, what hosts have, and who holds what. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

HostState = Literal["ready", "draining", "drained", "disabled", "unreachable", "lost"]
AllocationState = Literal["waiting", "granted", "starting", "running", "stopping", "released", "expired"]
TrialState = Literal["queued", "running", "paused", "completed", "stopped", "errored", "killed"]
SlotType = Literal["cuda", "cpu"]
Fit = Literal["best", "worst"]


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
    #: Position in the order of submission; grows by one per request.
    sequence: int = 0


@dataclass(frozen=True)
class Placement:
    """The slots of a gang: host name -> slot indices, ascending."""

    slots: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Number of slots over all hosts."""
        return sum(len(indices) for indices in self.slots.values())


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


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to hold the slots of an allocation."""

    allocation_id: int
    #: One growing number per store, raised by each grant.
    token: int
    #: host name -> slot indices
    slots: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
