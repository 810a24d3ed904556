"""One pass over the queue of a pool: who starts, who keeps hosts reserved, and why the rest waits.

The pieces of a decision are separate functions, so that each can be replaced on its own: the order
(:func:`ordered`), the slots of one request (``placement.find``), the hosts that are kept for it
(:func:`reservation`), and the words (``_reason``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_dtrain.core.board import Board
from airflow_provider_dtrain.core.placement import find
from airflow_provider_dtrain.core.resources import GangRequest, Host, Placement, PoolOptions, Unplaceable
from airflow_provider_dtrain.core.shortage import Shortfall, could_ever, shortfall
from airflow_provider_dtrain.core.shortage_words import count, explain, missing_words, names, sentences

#: What decides, besides free slots, whether a request can be placed.
Shape = tuple[int, bool, frozenset[str]]


@dataclass(frozen=True)
class PassDecision:
    """What one pass decided; a function of its arguments only."""

    #: (request id, its slots) in the order in which they were granted.
    grants: tuple[tuple[str, Placement], ...]
    #: request id -> why it waits, for every request that is neither granted nor unplaceable.
    reasons: Mapping[str, str]
    #: request id -> why it can never start in this pool.
    unplaceable: Mapping[str, Unplaceable]
    #: request id -> place among those that wait, from 1.
    positions: Mapping[str, int] = field(default_factory=dict)
    #: host -> the waiting request that it is reserved for.
    reserved: Mapping[str, str] = field(default_factory=dict)


def run_pass(hosts: Sequence[Host], requests: Iterable[GangRequest], options: PoolOptions) -> PassDecision:
    """Return everything that may start now, looking at the whole queue once.

    A request that finds no slots may keep the hosts on which it would start first; requests after it may
    not use those, so that a wide gang is not starved by narrow ones. All other hosts stay open to them.

    :param hosts: all registered hosts of the pool, whatever their state
    :param requests: every request that waits, in any order
    :param options: ``reservations`` bounds how many requests keep hosts
    """
    work = _Pass(Board(hosts), options)
    for request in ordered(requests):
        work.look_at(request)
    return work.decision()


def ordered(requests: Iterable[GangRequest]) -> list[GangRequest]:
    """Return the requests in the order in which a pass looks at them."""
    return sorted(requests, key=lambda request: (request.priority, request.sequence, request.request_id))


def reservation(
    board: Board, request: GangRequest, options: PoolOptions, closed: Mapping[str, str]
) -> Shortfall | None:
    """Return the hosts to keep for a request that found no slots, else None.

    None where no set of usable hosts would do, even if free: to keep some of them would only leave them idle.

    :param closed: hosts that are kept for earlier requests
    """
    if request.slots == 0:
        return None
    need = shortfall(board, request, options, closed.keys())
    return None if need.unusable else need


class _Pass:
    """The state of one pass."""

    def __init__(self, board: Board, options: PoolOptions) -> None:
        self.board, self.options = board, options
        self.grants: list[tuple[str, Placement]] = []
        self.unplaceable: dict[str, Unplaceable] = {}
        #: Requests that wait, each with the number of reserved hosts that were closed to it.
        self.waiting: list[tuple[GangRequest, int]] = []
        self.reserved: dict[str, str] = {}
        self.holders: set[str] = set()
        self.possible: dict[Shape, bool] = {}
        self.failed: set[Shape] = set()

    def look_at(self, request: GangRequest) -> None:
        if not self._is_possible(request):
            self.unplaceable[request.request_id] = explain(self.board, request, self.options)
            return
        placement = self._find(request)
        if placement is not None:
            self.board.take(placement)
            self.grants.append((request.request_id, placement))
            return
        self.waiting.append((request, len(self.reserved)))
        if len(self.holders) < self.options.reservations:
            self._reserve(request)

    def _is_possible(self, request: GangRequest) -> bool:
        shape = (request.slots, request.is_single_host, frozenset[str]())
        if shape not in self.possible:
            self.possible[shape] = could_ever(self.board, request, self.options)
        return self.possible[shape]

    def _find(self, request: GangRequest) -> Placement | None:
        # Within a pass slots are only taken and hosts only closed: what failed once fails for all that follow.
        shape = _shape(request)
        if shape in self.failed:
            return None
        placement = find(self.board, request, self.options, self.reserved.keys())
        if placement is None:
            self.failed.add(shape)
        return placement

    def _reserve(self, request: GangRequest) -> None:
        need = reservation(self.board, request, self.options, self.reserved)
        if need is not None:
            self.holders.add(request.request_id)
            self.reserved.update(dict.fromkeys(need.hosts, request.request_id))

    def decision(self) -> PassDecision:
        lacks: dict[tuple[Shape, int], str] = {}
        reasons, positions = {}, {}
        for position, (request, closed) in enumerate(self.waiting, start=1):
            key = (_shape(request), closed)
            if request.request_id in self.holders or key not in lacks:
                lacks[key] = self._lack(request, closed)
            positions[request.request_id] = position
            reasons[request.request_id] = _reason(lacks[key], position, self._kept(request))
        return PassDecision(tuple(self.grants), reasons, self.unplaceable, positions, self.reserved)

    def _lack(self, request: GangRequest, closed: int) -> str:
        before = dict(list(self.reserved.items())[:closed])
        need = shortfall(self.board, request, self.options, before.keys())
        return missing_words(self.board, request, need)

    def _kept(self, request: GangRequest) -> list[str]:
        if request.request_id not in self.holders:
            return []
        return sorted(host for host, holder in self.reserved.items() if holder == request.request_id)


def _shape(request: GangRequest) -> Shape:
    return (request.slots, request.is_single_host, request.excluded_hosts)


def _reason(lack: str, position: int, kept: Sequence[str]) -> str:
    place = f"position {position}, {count(position - 1, 'request')} before it"
    parts = [place, f"reserved for it: {names(kept)}"] if kept else [place]
    return f"{lack} {sentences(parts)}"
