"""Messages that explain why a request does not start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, PoolOptions, Unplaceable
from airflow_provider_dtrain.core.scheduling.unschedulable import (
    NO_HOSTS,
    Shortfall,
    could_ever,
    shortfall,
    sums,
    works,
)

#: Maximum number of names in one list. The rest is counted.
SHOWN = 6


def explain(
    free_slots: FreeSlots, request: GangRequest, options: PoolOptions, closed: Set[str] = NO_HOSTS
) -> Unplaceable:
    """Return the reason why a request gets no slots.

    It names what is missing now, or why the request can never start and which size would work.

    :param closed: hosts that are reserved for other requests
    """
    if not could_ever(free_slots, request, options):
        return Unplaceable(_never_text(free_slots, request, options), never=True)
    need = shortfall(free_slots, request, options, closed)
    return Unplaceable(missing_text(free_slots, request, need), never=False, missing=need.missing)


def missing_text(free_slots: FreeSlots, request: GangRequest, need: Shortfall) -> str:
    """Return the message about the slots that are in the way of a request that the pool can serve."""
    states = _state_text(free_slots, request, need)
    if request.slots == 0:
        return sentences(["no host is ready for a process without slots", *states])
    where = count(len(need.hosts), "whole host") if need.is_whole else "one host"
    wanted = count(request.slots, "slot")
    if need.is_free:
        return sentences([f"{wanted} on {where}: free on {names(need.hosts)}", *states])
    closest = f"closest is {names(need.hosts)}" if len(need.hosts) == 1 else f"closest are {names(need.hosts)}"
    # Airflow's log does not wrap, so the holders of the slots come first.
    lack = f"{need.missing} of {wanted} missing{_owner_text(free_slots, need)}"
    return sentences([lack, f"{wanted} on {where} needed, {closest}", *_other_text(free_slots, need), *states])


def sentences(parts: Sequence[str]) -> str:
    """Return the parts as sentences of one line."""
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts)


def count(number: int, noun: str) -> str:
    """Return the number with its noun in the singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def names(items: Sequence[str]) -> str:
    """Return the items as an enumeration, at most six by name."""
    shown = list(items[:SHOWN])
    if len(items) > SHOWN:
        shown.append(f"{len(items) - SHOWN} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _state_text(free_slots: FreeSlots, request: GangRequest, need: Shortfall) -> list[str]:
    why: str
    groups: dict[str, list[str]] = {}
    for name in (*need.unusable, *(one for one in need.reserved if one not in need.unusable)):
        if name not in need.unusable:
            why = "free, but reserved for requests before it"
        elif name not in free_slots.free:
            why = free_slots.hosts[name].state
        elif name in request.excluded_hosts:
            why = "excluded for this trial"
        else:
            why = "reserved for requests before it"
        groups.setdefault(why, []).append(name)
    return [f"{why}: {names(listed)}" for why, listed in groups.items()]


def _owner_text(free_slots: FreeSlots, need: Shortfall) -> str:
    """Return the holders of slots on the hosts, with the number of slots when there are several holders."""
    hosts = _usable(free_slots, need)
    owners = Counter(owner for host in hosts for index, owner in host.holders if index in host.held)
    if not owners:
        return ""
    if len(owners) == 1:
        return f", held by {next(iter(owners))}"
    return f", held: {names([f'{held} by {owner}' for owner, held in owners.most_common()])}"


def _usable(free_slots: FreeSlots, need: Shortfall) -> list[Host]:
    return [free_slots.hosts[name] for name in need.hosts if name not in need.unusable]


def _other_text(free_slots: FreeSlots, need: Shortfall) -> list[str]:
    hosts = _usable(free_slots, need)
    blocked = sum(len((host.blocked - host.held) & host.enabled) for host in hosts)
    granted = sum(free_slots.taken(host.name) for host in hosts)
    claimed = sum(free_slots.claimed[host.name] for host in hosts)
    parts = []
    if granted:
        parts.append(f"{count(granted, 'slot')} just granted to other requests")
    if claimed:
        parts.append(f"{count(claimed, 'slot')} claimed by requests for which other gangs stop")
    if blocked:
        parts.append(f"{count(blocked, 'slot')} stuck, or in use by a process outside this store")
    return parts


def _never_text(free_slots: FreeSlots, request: GangRequest, options: PoolOptions) -> str:
    if not free_slots.hosts:
        return "The pool has no hosts. Register one with: airflow dtrain hosts add."
    if not free_slots.size:
        listed = names(sorted(free_slots.hosts))
        return f"Every host of the pool is disabled ({listed}). Enable one with: airflow dtrain hosts enable NAME."
    if not any(free_slots.sizes):
        return "No host of the pool has an enabled slot. Enable slots, or register a host with slots."
    wanted = count(request.slots, "slot")
    have = f"the pool has {_sizes_text(free_slots.sizes)}"
    if request.is_single_host:
        fact = f"{wanted} on one host can never be granted: {have}"
        return sentences([fact, _single_host_advice(free_slots, request, options)])
    rule = "whole hosts that sum up exactly" if options.allow_heterogeneous else "whole hosts of one size"
    fact = f"{wanted} can never be granted: {have}, and a gang larger than a host takes {rule}"
    return sentences([fact, _advice(free_slots, request, options)])


def _sizes_text(sizes: Mapping[int, int]) -> str:
    listed = [f"{count(sizes[size], 'host')} of {count(size, 'slot')}" for size in sorted(sizes, reverse=True) if size]
    return names(listed)


def _single_host_advice(free_slots: FreeSlots, request: GangRequest, options: PoolOptions) -> str:
    advice = f"use at most {max(free_slots.sizes)}"
    without = works(free_slots.sizes, request.slots, is_single_host=False, unequal=options.allow_heterogeneous)
    return advice + (", or drop is_single_host" if without else "")


def _advice(free_slots: FreeSlots, request: GangRequest, options: PoolOptions) -> str:
    near = [str(size) for size in nearest_sizes(free_slots.sizes, request.slots, options.allow_heterogeneous)]
    advice = f"use {' or '.join(near)}"
    if options.allow_heterogeneous or request.slots > sum(free_slots.size.values()):
        return advice
    if works(free_slots.sizes, request.slots, is_single_host=False, unequal=True):
        return f"{advice}, or allow hosts of unequal sizes: airflow dtrain pools set POOL --heterogeneous on"
    return f"{advice} (--heterogeneous on would not help: no hosts sum up to {request.slots})"


def nearest_sizes(sizes: Mapping[int, int], slots: int, unequal: bool) -> list[int]:
    """Return the next smaller and the next larger number of slots that would work, if they exist.

    :param sizes: slots of a host -> number of such hosts
    :param slots: a number that does not work and is larger than every host
    """
    largest = max(sizes)
    fits = {largest} | {size * min(number, slots // size) for size, number in sizes.items() if size}
    fits |= {size * (slots // size + 1) for size, number in sizes.items() if size and slots // size < number}
    if unequal:
        # One more host spans any gap, so the next larger sum is at most one host away.
        bits = sums(sizes, slots + largest)
        fits.add((bits & ((1 << slots) - 1)).bit_length() - 1)
        above = bits >> (slots + 1)
        fits |= {slots + (above & -above).bit_length()} if above else set()
    below = [size for size in fits if 0 < size < slots]
    over = [size for size in fits if size > slots]
    return [max(below)] + ([min(over)] if over else [])
