"""The rule of placement by brute force: every set of hosts that a gang may take together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from airflow_provider_dtrain.core.scheduling.free_slots import stable_order
from airflow_provider_dtrain.core.scheduling.model import GangRequest

ONE, EQUAL, UNEQUAL = range(3)


class Way(NamedTuple):
    """A set of hosts, and the rule that allows it."""

    rule: int
    names: tuple[str, ...]


def ways(
    request: GangRequest, available: Mapping[str, int], whole: Mapping[str, int], allow_unequal: bool
) -> Iterable[Way]:
    """Yield every set of hosts on which a request may start.

    :param available: host -> slots that it can have there
    :param whole: host that it can have as a whole -> slots
    """
    yield from (Way(ONE, (name,)) for name, slots in available.items() if slots >= request.slots)
    names = [] if request.is_single_host else [name for name, size in whole.items() if size]
    for number in range(2, len(names) + 1):
        for chosen in combinations(names, number):
            is_equal = len({whole[name] for name in chosen}) == 1
            if sum(whole[name] for name in chosen) == request.slots and (is_equal or allow_unequal):
                yield Way(EQUAL if is_equal else UNEQUAL, chosen)


class Preference:
    """Order of choice among ways of the same rule and cost: few large hosts, then cheap ones, then the stable hash."""

    def __init__(self, request: GangRequest, sizes: Mapping[str, int], cost: Callable[[str, bool], Any]) -> None:
        self.sizes, self.cost = sizes, cost
        self.ties = {name: tie for tie, name in stable_order(request.request_id, sizes)}

    def rows(self, way: Way) -> list[tuple[int, Any, int, str]]:
        """Return size, cost, tie-break and name of each host. The size counts only where hosts are taken as a whole."""
        is_whole = way.rule != ONE
        rows = [
            (-self.sizes[name] if is_whole else 0, self.cost(name, is_whole), self.ties[name], name)
            for name in way.names
        ]
        return sorted(rows)

    def key(self, way: Way) -> tuple[Any, ...]:
        rows = self.rows(way)
        return way.rule, len(rows), [row[0] for row in rows], rows
