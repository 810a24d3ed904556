"""One pass over the queue of a pool: grants, preemptions, reservations, and the reasons of waiting requests.

The parts of a decision are separate, so that each can be replaced on its own: the tiers of priority
(``priority_tiers``), the order (``queue``), the hosts that a gang may take together (``layouts``), the slots of one
request (``placement.find``), the victims (``preemption``), the reserved hosts (``reservations``), and the reasons of
waiting requests (``pending_reason``, ``estimated_start``). ``pool_state.PoolState`` is the state that a pass changes,
and may persist between passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_dtrain.core.scheduling.cycle import PassOutcome, step
from airflow_provider_dtrain.core.scheduling.estimated_start import Expected, PendingReasons
from airflow_provider_dtrain.core.scheduling.model import (
    GangRequest,
    Host,
    Placement,
    PoolOptions,
    RunningGang,
    Unplaceable,
)
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState

__all__ = ["Expected", "PassDecision", "run_pass"]


@dataclass(frozen=True)
class PassDecision:
    """Decision of one pass. It depends on the arguments only."""

    #: (request id, its slots) in the order in which they were granted.
    grants: tuple[tuple[str, Placement], ...]
    #: request id -> why it waits, for every request that is neither granted nor unplaceable.
    reasons: Mapping[str, str]
    #: request id -> why it can never start in this pool.
    unplaceable: Mapping[str, Unplaceable]
    #: request id -> position among the waiting requests, from 1.
    positions: Mapping[str, int] = field(default_factory=dict)
    #: host -> the waiting request that it is reserved for.
    reserved: Mapping[str, str] = field(default_factory=dict)
    #: (request id of a gang to stop now, request id of the claimant).
    preemptions: tuple[tuple[str, str], ...] = ()
    #: request id -> slots that it claims, for every claimant that waits.
    claims: Mapping[str, Placement] = field(default_factory=dict)
    #: request id -> why its ``waited_s`` does not grow.
    ineligible: Mapping[str, str] = field(default_factory=dict)
    #: Seconds until time alone may change the decision; None = never.
    next_due_s: float | None = None
    #: request id -> when it may start, for every request that waits.
    expected: Mapping[str, Expected] = field(default_factory=dict)


def run_pass(
    hosts: Sequence[Host],
    requests: Iterable[GangRequest],
    options: PoolOptions,
    running: Sequence[RunningGang] = (),
) -> PassDecision:
    """Return the decision of one pass: requests that may start, and gangs that must stop for them.

    A request that finds no slots and no gang to preempt may reserve the hosts on which it would start first.
    Requests behind it may not use those hosts, so that narrow gangs do not starve a wide one.

    :param hosts: all registered hosts of the pool, whatever their state; ``held`` contains the slots of
        running gangs and of those that are ending
    :param requests: every request that waits, in any order, with its counters, claim and reserved hosts
    :param options: the pool's options for placement and order
    :param running: every gang that holds slots, in any order; if empty, no gang is preempted
    """
    state = PoolState(hosts, options, running)
    for request in sorted(requests, key=lambda request: (request.sequence, request.request_id)):
        state.submit(request)
    outcome = step(state, 0.0)
    return _decision(state, outcome)


def _decision(state: PoolState, outcome: PassOutcome) -> PassDecision:
    pending = PendingReasons(state)
    waiting = sorted(state.waiting.values(), key=state.queue.key)
    return PassDecision(
        grants=outcome.grants,
        reasons={waiter.request.request_id: pending.reason(waiter, place) for place, waiter in enumerate(waiting, 1)},
        unplaceable={request_id: pending.never(waiter) for request_id, waiter in state.never.items()},
        positions={waiter.request.request_id: place for place, waiter in enumerate(waiting, 1)},
        reserved={host: request_id for request_id, holder in state.holders.items() for host in holder.reserved},
        preemptions=outcome.preemptions,
        claims={waiter.request.request_id: waiter.claim for waiter in waiting if waiter.claim is not None},
        ineligible=pending.ineligible(),
        next_due_s=state.next_due(),
        expected={waiter.request.request_id: pending.expected(waiter) for waiter in waiting},
    )
