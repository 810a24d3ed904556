"""Classes of requests inside one pool and priority, and the rules of preemption between them."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import PoolOptions

#: Waited ``max_wait`` and is among the oldest of those: no request behind it passes or preempts it.
PROTECTED = 0
#: Its gangs have held slots for less than ``fresh_s`` slot-seconds.
FRESH = 1
#: Waited most of ``max_wait``: it is protected soon, or as soon as older requests leave it a part of the share.
OVERDUE = 2
#: Its gangs have held slots for less than ``young_s`` slot-seconds.
YOUNG = 3
REST = 4

#: A threshold counts as reached this many seconds early, because a sum of intervals may be rounded down.
EPSILON = 1e-3
#: Part of ``max_wait`` after which a request that no single host can serve is protected.
WIDE_RATIO = 0.75
#: Part of its wait until protection after which a request is overdue.
OVERDUE_RATIO = 0.85


class PriorityRank(NamedTuple):
    """Fields that decide which request may preempt which gang."""

    priority: int
    level: int
    sequence: int
    request_id: str


def wait_limit_s(slots: int, largest_host: int, options: PoolOptions) -> float:
    """Return the seconds of waiting after which a request may be protected.

    :param largest_host: slots of the largest host of the pool
    """
    return options.max_wait_s * (WIDE_RATIO if slots > largest_host else 1.0)


def may_be_protected(waited_s: float, limit_s: float) -> bool:
    """Return whether a request has waited for as long as its limit."""
    return waited_s + EPSILON >= limit_s


def level_of(slots: int, held_s: float, waited_s: float, limit_s: float, options: PoolOptions) -> int:
    """Return the class of a request that is not protected.

    :param slots: slots of its gang
    :param held_s: seconds that its gangs held them
    :param limit_s: from :func:`wait_limit_s`
    """
    used = (held_s + EPSILON) * slots
    if used < options.fresh_s:
        return FRESH
    if may_be_protected(waited_s, limit_s * OVERDUE_RATIO):
        return OVERDUE
    return YOUNG if used < options.young_s else REST


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
