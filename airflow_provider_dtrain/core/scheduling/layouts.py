"""The rule of placement: one host, or equal whole hosts, or unequal whole hosts that sum up.

The generator says which hosts a gang may take together. Its callers choose among them, each by its own cost: free
slots (``placement``), lost work (``preemption``), slots in the way for good (``reservations``) or now
(``unschedulable``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import GangRequest
from airflow_provider_dtrain.core.scheduling.subset_sum import cheapest_subset, reachable

#: Cost of a host, then the host after its tie-break. Sorts in the order of choice.
Row = tuple[int, tuple[int, str]]


class GangLayout(NamedTuple):
    """Hosts that a gang may take together."""

    #: Number of slots of the gang.
    slots: int
    #: Sizes of the whole hosts that it takes, largest first. Empty: it takes a part of one host, or all of it.
    sizes: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Every slot of its hosts is needed, and there are several."""
        return bool(self.sizes)

    @property
    def is_unequal(self) -> bool:
        """Its hosts may differ in size."""
        return len(self.sizes) > 1

    def numbers(self, costs: Callable[[int], Sequence[int]]) -> dict[int, int]:
        """Return how many whole hosts of each size cost the least, or {} when those with costs do not sum up.

        :param costs: returns the costs of the hosts of one size, ascending. Called only for unequal sizes
        """
        if not self.is_unequal:
            return {size: self.slots // size for size in self.sizes}
        counts = cheapest_subset([(size, costs(size)) for size in self.sizes], self.slots)
        return dict(zip(self.sizes, counts, strict=True)) if counts is not None else {}

    def cheapest(self, rows: Callable[[int], Iterable[Row]]) -> list[Row]:
        """Return the whole hosts with the least total cost, ties by the order of the rows.

        :param rows: returns the hosts of one size, in any order
        """
        listed = {size: list(rows(size)) for size in self.sizes}
        numbers = self.numbers(lambda size: sorted(cost for cost, _ in listed[size]))
        return [row for size, number in numbers.items() for row in heapq.nsmallest(number, listed[size])]


def layouts(request: GangRequest, sizes: Mapping[int, int], allow_unequal: bool) -> Iterator[GangLayout]:
    """Yield the layouts that a request may get, in the order of preference.

    :param request: the request, for at least one slot
    :param sizes: slots of a host -> number of such hosts that may be taken as a whole
    :param allow_unequal: whole hosts of unequal sizes may form one gang
    """
    yield GangLayout(request.slots)
    if not request.is_single_host:
        yield from whole_layouts(request.slots, sizes, allow_unequal)


def whole_layouts(slots: int, sizes: Mapping[int, int], allow_unequal: bool) -> Iterator[GangLayout]:
    """Yield the layouts of several whole hosts: equal ones, largest first, then unequal ones that sum up.

    :param slots: number of slots, > 0
    :param sizes: as for :func:`layouts`
    """
    fitting = tuple(size for size in sorted(sizes, reverse=True) if 0 < size <= slots)
    for size in fitting:
        count, rest = divmod(slots, size)
        if not rest and 1 < count <= sizes[size]:
            yield GangLayout(slots, (size,))
    if allow_unequal and len(fitting) > 1 and reachable(((size, sizes[size]) for size in fitting), slots) >> slots & 1:
        yield GangLayout(slots, fitting)
