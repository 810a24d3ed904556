"""Placement of a gang on a part of one host, or on whole hosts.

Three rules, in this order. A gang that fits one host shares it with other gangs. A larger one, or one that
finds no such host, takes whole hosts of one size. Whole hosts of unequal sizes that sum up exactly are
used only where the pool allows it. A hash of request and host breaks ties, so that the same request has
the same result in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from airflow_provider_dtrain.core.scheduling.free_slots import Board, first_names
from airflow_provider_dtrain.core.scheduling.model import Fit, GangRequest, Host, Placement, PoolOptions, Unplaceable
from airflow_provider_dtrain.core.scheduling.pending_reason import explain
from airflow_provider_dtrain.core.scheduling.subset_sum import cheapest_subset
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
    board = Board(hosts)
    found = find(board, request, options)
    return found if found is not None else explain(board, request, options)


def find(board: Board, request: GangRequest, options: PoolOptions, closed: Set[str] = NO_HOSTS) -> Placement | None:
    """Return slots for a request that are free now, else None. Takes O(hosts).

    :param closed: hosts that are reserved for other requests; a request without slots may still use them
    """
    key = request.request_id
    if request.slots == 0:
        names = _allowed(board.free, request.excluded_hosts)
        return Placement({first_names(key, names)[0]: ()}) if names else None
    banned = request.excluded_hosts | closed
    chosen = _on_one_host(board, request.slots, options.fit, banned, key)
    if not chosen and not request.is_single_host:
        chosen = _on_equal_hosts(board, request.slots, banned, key)
        if not chosen and options.allow_heterogeneous:
            chosen = _on_unequal_hosts(board, request.slots, banned, key)
    return Placement(chosen) if chosen else None


def _allowed(names: Mapping[str, object], banned: Set[str]) -> list[str]:
    return [name for name in names if name not in banned] if banned else list(names)


def _on_one_host(board: Board, slots: int, fit: Fit, banned: Set[str], key: str) -> _Slots:
    for free in sorted((count for count in board.by_free if count >= slots), reverse=fit == "worst"):
        names = _allowed(board.by_free[free], banned)
        if names:
            (name,) = first_names(key, names)
            return {name: board.lowest_free(name, slots)}
    return {}


def _on_equal_hosts(board: Board, slots: int, banned: Set[str], key: str) -> _Slots:
    for size in sorted(board.whole, reverse=True):
        wanted = slots // size
        if slots % size == 0 and len(board.whole[size]) >= wanted:
            names = _allowed(board.whole[size], banned)
            if len(names) >= wanted:
                return _whole(board, first_names(key, names, wanted))
    return {}


def _on_unequal_hosts(board: Board, slots: int, banned: Set[str], key: str) -> _Slots:
    sizes = [size for size in sorted(board.whole, reverse=True) if size <= slots]
    groups = [(size, _allowed(board.whole[size], banned)) for size in sizes]
    counts = cheapest_subset([(size, [0] * len(names)) for size, names in groups], slots)
    if counts is None:
        return {}
    picks = (first_names(key, names, count) for count, (_, names) in zip(counts, groups, strict=True))
    return _whole(board, (name for names in picks for name in names))


def _whole(board: Board, names: Iterable[str]) -> _Slots:
    return {name: board.lowest_free(name, board.size[name]) for name in names}
