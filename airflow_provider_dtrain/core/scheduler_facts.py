"""Facts of a scheduler outside of Airflow: partitions with their nodes, limits, and the job that a gang would be.

The store keeps them, so that commands and pages show them without a request to the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class NodeSize:
    """Nodes of a partition that have the same number of slots."""

    slots: int
    nodes: int


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    """Partition of a scheduler."""

    name: str
    #: Jobs of the pool go there.
    is_used: bool
    #: As the scheduler writes it.
    state: str
    nodes: int
    #: Nodes that can get jobs, now or after those that run there.
    usable_nodes: int
    #: Nodes with slots for the pool, whatever they do now, the smallest ones first.
    sizes: list[NodeSize]
    #: Of these, the nodes that can get jobs.
    usable_sizes: list[NodeSize]
    #: Time limit of a job without one, and the longest one, in seconds; None: there is none.
    default_time_s: int | None
    max_time_s: int | None


#: Attributes of a partition that are lists of sizes.
_SIZES = ("sizes", "usable_sizes")


@dataclass(frozen=True, kw_only=True)
class SchedulerFacts:
    """A scheduler as one pool uses it."""

    at: datetime
    #: Name and version of the scheduler.
    program: str
    cluster: str
    partitions: list[PartitionFacts]
    #: Time limit of the pool's jobs in seconds; None: none can be given.
    time_limit_s: int | None
    #: Jobs that the pool may have at one time; None: any number.
    max_jobs: int | None
    #: Options of the pool that may exclude nodes, which sizes and numbers of nodes do not consider.
    excluding: list[str]
    #: Why no job of the pool can be submitted, in sentences; empty: jobs can.
    problem: str

    @property
    def used(self) -> PartitionFacts | None:
        """The partition of the pool's jobs, None without one."""
        return next((one for one in self.partitions if one.is_used), None)


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """Nodes of the job that a gang would be."""

    nodes: int
    #: 0: one process without a slot.
    slots_per_node: int
    partition: str
    time_limit_s: int | None

    @property
    def text(self) -> str:
        """Nodes and slots in words."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        if not self.slots_per_node:
            return f"{nodes} without a slot"
        slots = "1 slot" if self.slots_per_node == 1 else f"{self.slots_per_node} slots"
        return f"{nodes} with {slots}{' each' if self.nodes > 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check of a scheduler, with the remedy if it is not ok."""

    name: str
    is_ok: bool
    message: str


def to_document(facts: SchedulerFacts) -> dict[str, Any]:
    """Return facts in the form that is stored."""
    return {**asdict(facts), "at": facts.at.isoformat()}


def from_document(document: Mapping[str, Any]) -> SchedulerFacts:
    """Return facts from their stored form."""
    partitions = [
        PartitionFacts(**{**one, **{name: [NodeSize(**size) for size in one[name]] for name in _SIZES}})
        for one in document["partitions"]
    ]
    return SchedulerFacts(**{**document, "at": datetime.fromisoformat(document["at"]), "partitions": partitions})
