"""Placement of a gang on a part of one host, or on whole hosts.

Three rules, in this order. A gang that fits one host shares it with other gangs. A larger one, or one that
finds no such host, takes whole hosts of one size. Whole hosts of unequal sizes that sum up exactly are
used only where the pool allows it. A hash of request and host breaks ties, so that the same request has
the same result in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots, first_names
from airflow_provider_dtrain.core.scheduling.layouts import GangLayout, layouts
from airflow_provider_dtrain.core.scheduling.model import Fit, GangRequest, Host, Placement, PoolOptions, Unplaceable
from airflow_provider_dtrain.core.scheduling.pending_reason import explain
from airflow_provider_dtrain.core.scheduling.unschedulable import NO_HOSTS

_Slots = dict[str, tuple[int, ...]]


def place(
    request: GangRequest, hosts: Sequence[Host], *, allow_heterogeneous: bool = False, fit: Fit = "best"
) -> Placement | Unplaceable:
    """Return the slots for one gang, or the reason why it cannot have them now or ever.

    :param request: the requested gang
    :param hosts: all registered hosts of the pool, whatever their state
    :param allow_heterogeneous: whole hosts of unequal sizes may form one gang
    :param fit: on a shared host leave the fewest (``best``) or the most (``worst``) slots free
    """
    options = PoolOptions(fit=fit, allow_heterogeneous=allow_heterogeneous)
    free_slots = FreeSlots(hosts)
    found = find(free_slots, request, options)
    return found if found is not None else explain(free_slots, request, options)


def find(
    free_slots: FreeSlots, request: GangRequest, options: PoolOptions, closed: Set[str] = NO_HOSTS
) -> Placement | None:
    """Return slots for a request that are free now, else None. Takes O(hosts).

    :param closed: hosts that are reserved for other requests; a request without slots may still use them
    """
    key = request.request_id
    if request.slots == 0:
        names = _allowed(free_slots.free, request.excluded_hosts)
        return Placement({first_names(key, names)[0]: ()}) if names else None
    banned = request.excluded_hosts | closed
    # Before the bans. A size of which too many hosts are banned is passed over when its hosts are chosen.
    sizes = {size: len(names) for size, names in free_slots.whole.items()}
    for layout in layouts(request, sizes, options.allow_heterogeneous):
        if layout.is_whole:
            chosen = _on_whole_hosts(free_slots, layout, banned, key)
        else:
            chosen = _on_one_host(free_slots, request.slots, options.fit, banned, key)
        if chosen:
            return Placement(chosen)
    return None


def _allowed(names: Mapping[str, object], banned: Set[str]) -> list[str]:
    return [name for name in names if name not in banned] if banned else list(names)


def _on_one_host(free_slots: FreeSlots, slots: int, fit: Fit, banned: Set[str], key: str) -> _Slots:
    for free in sorted((count for count in free_slots.by_free if count >= slots), reverse=fit == "worst"):
        names = _allowed(free_slots.by_free[free], banned)
        if names:
            (name,) = first_names(key, names)
            return {name: free_slots.lowest_free(name, slots)}
    return {}


def _on_whole_hosts(free_slots: FreeSlots, layout: GangLayout, banned: Set[str], key: str) -> _Slots:
    """Return the slots of hosts that cost nothing, because they are free: only the tie-break counts."""
    names = {size: _allowed(free_slots.whole[size], banned) for size in layout.sizes}
    numbers = layout.numbers(lambda size: [0] * len(names[size]))
    if any(number > len(names[size]) for size, number in numbers.items()):
        return {}
    picks = (first_names(key, names[size], number) for size, number in numbers.items())
    return {name: free_slots.lowest_free(name, free_slots.size[name]) for chosen in picks for name in chosen}
