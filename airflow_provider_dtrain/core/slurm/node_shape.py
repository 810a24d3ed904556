"""Nodes of a gang: the smallest number of equal nodes that has its slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Sizes that a message lists.
_SHOWN: Final = 8


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """Nodes of a job and the slots that it takes on each."""

    nodes: int
    #: 0 for a gang of one process that needs no slot.
    slots_per_node: int

    @property
    def slots(self) -> int:
        """Slots of the job."""
        return self.nodes * self.slots_per_node


@dataclass(frozen=True, kw_only=True)
class NoShape:
    """Reason why no number of nodes has the slots of a gang."""

    #: Sentences with the sizes that work.
    reason: str


def node_shape(slots: int, sizes: Mapping[int, int], *, is_single_host: bool = False) -> NodeShape | NoShape:
    """Return the shape with the fewest nodes, each with the same number of slots.

    :param slots: slots of the gang; 0: one process without a slot
    :param sizes: number of slots of a node -> number of such nodes that the partition has
    :param is_single_host: whether one node must have all slots
    """
    sizes = {size: count for size, count in sizes.items() if size > 0 and count > 0}
    total = sum(sizes.values())
    if slots == 0:
        return NodeShape(nodes=1, slots_per_node=0) if total else NoShape(reason="The partition has no node.")
    if not total:
        return NoShape(reason="The partition has no node with a slot.")
    for nodes in range(1, (1 if is_single_host else min(slots, total)) + 1):
        if slots % nodes == 0 and _at_least(sizes, slots // nodes) >= nodes:
            return NodeShape(nodes=nodes, slots_per_node=slots // nodes)
    return NoShape(reason=_reason(slots, sizes, is_single_host))


def _at_least(sizes: Mapping[int, int], slots: int) -> int:
    """Return the number of nodes with at least so many slots."""
    return sum(count for size, count in sizes.items() if size >= slots)


def _reason(slots: int, sizes: Mapping[int, int], is_single_host: bool) -> str:
    have = ", ".join(f"{count} with {_slots(size)}" for size, count in sorted(sizes.items(), reverse=True))
    where = "on one node" if is_single_host else "on nodes with equally many slots each"
    return (
        f"A gang of {_slots(slots)} does not fit {where}. Nodes of the partition: {have}. "
        f"Sizes that work near it: {_near(slots, sizes, is_single_host)}."
    )


def _near(slots: int, sizes: Mapping[int, int], is_single_host: bool) -> str:
    largest = max(sizes)
    works = set(range(1, largest + 1))
    if not is_single_host:
        works |= {each * nodes for each in range(1, largest + 1) for nodes in range(1, _at_least(sizes, each) + 1)}
    near = sorted(sorted(works, key=lambda size: (abs(size - slots), size))[:_SHOWN])
    return ", ".join(map(str, near))


def _slots(count: int) -> str:
    return f"{count} slot" if count == 1 else f"{count} slots"
