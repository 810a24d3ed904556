"""Classes of requests inside one pool and priority, and the rules of preemption between them."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import PoolOptions

#: Waited ``max_wait`` and is among the oldest of those: no request behind it passes or preempts it.
PROTECTED = 0
#: Its gangs have held slots for less than ``fresh_s``.
FRESH = 1
#: Waited ``max_wait``, but older requests already take the protected share of the pool.
OVERDUE = 2
#: Its gangs have held slots for less than ``young_s``.
YOUNG = 3
REST = 4

#: A threshold counts as reached this many seconds early, because a sum of intervals may be rounded down.
EPSILON = 1e-3


class PriorityRank(NamedTuple):
    """Fields that decide which request may preempt which gang."""

    priority: int
    level: int
    sequence: int
    request_id: str


def is_overdue(waited_s: float, options: PoolOptions) -> bool:
    """Return whether a request has waited ``max_wait``."""
    return waited_s + EPSILON >= options.max_wait_s


def level_of(held_s: float, waited_s: float, options: PoolOptions) -> int:
    """Return the class of a request that is not protected."""
    if held_s + EPSILON < options.fresh_s:
        return FRESH
    if is_overdue(waited_s, options):
        return OVERDUE
    return YOUNG if held_s + EPSILON < options.young_s else REST


def may_interrupt(mine: PriorityRank, other: PriorityRank, options: PoolOptions) -> bool:
    """Return whether the pool's rule lets one request preempt the gang of another, apart from ``min_run``."""
    if options.preemption == "off":
        return False
    if other.priority != mine.priority or options.preemption == "priority":
        return other.priority > mine.priority
    if mine.level == PROTECTED:
        return (other.sequence, other.request_id) > (mine.sequence, mine.request_id)
    return other.level > mine.level


def min_run_s(cost_s: float, options: PoolOptions) -> float:
    """Return how many seconds a gang runs before it may be preempted, from the cost of a preemption."""
    return max(options.min_run_s, 20 * cost_s)
