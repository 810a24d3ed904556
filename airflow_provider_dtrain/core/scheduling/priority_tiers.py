"""Classes of requests inside one pool and priority, and the rules of preemption between them."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import PoolOptions

#: Waited ``max_wait`` and is among those that waited longest. Each step of waiting beyond that lowers the class by 1,
#: so that no request that waited fewer steps passes or preempts it.
PROTECTED = 0
#: Its gangs have held slots for less than ``fresh_s`` slot-seconds.
FRESH = 1
#: Its gangs have held slots for less than ``young_s`` slot-seconds.
YOUNG = 2
#: Waited most of ``max_wait``, or all of it: it is protected soon, or as soon as others leave it a part of the share.
OVERDUE = 3
REST = 4

#: A threshold counts as reached this many seconds early, because a sum of intervals may be rounded down.
EPSILON = 1e-3
#: Part of ``max_wait`` after which a request that no single host can serve is protected.
WIDE_RATIO = 0.9
#: Steps of waiting into which the wait until protection is divided. The last one is that of overdue requests.
STEPS = 16
#: A step is at least this long, and at least ``min_run``: each one may need a pass.
LEAST_STEP_S = 60.0


class PriorityRank(NamedTuple):
    """Fields that decide which request may preempt which gang."""

    priority: int
    level: int


def wait_limit_s(slots: int, largest_host: int, options: PoolOptions) -> float:
    """Return the seconds of waiting after which a request may be protected.

    :param largest_host: slots of the largest host of the pool
    """
    return options.max_wait_s * (WIDE_RATIO if slots > largest_host else 1.0)


def step_s(limit_s: float, options: PoolOptions) -> float:
    """Return the length of a step of waiting.

    :param limit_s: from :func:`wait_limit_s`
    """
    return max(limit_s / STEPS, options.min_run_s, LEAST_STEP_S)


def late_steps(waited_s: float, limit_s: float, options: PoolOptions) -> int | None:
    """Return the steps that a request waited beyond its limit: -1 in the last step before it, None earlier.

    :param limit_s: from :func:`wait_limit_s`
    """
    beyond = waited_s + EPSILON - limit_s
    if beyond >= 0:
        return int(beyond / step_s(limit_s, options))
    return -1 if beyond >= -limit_s / STEPS else None


def next_step_s(waited_s: float, limit_s: float, options: PoolOptions) -> float:
    """Return the seconds of waiting after which :func:`late_steps` increases."""
    steps = late_steps(waited_s, limit_s, options)
    if steps is None:
        return limit_s - limit_s / STEPS - waited_s
    return limit_s + (steps + 1) * step_s(limit_s, options) - waited_s


def level_of(slots: int, held_s: float, late: int | None, options: PoolOptions) -> int:
    """Return the class of a request.

    :param slots: slots of its gang
    :param held_s: seconds that its gangs held them
    :param late: its class by its wait alone: protected, overdue or none
    """
    if late is not None and late <= PROTECTED:
        return late
    used = (held_s + EPSILON) * slots
    if used < options.young_s:
        return FRESH if used < options.fresh_s else YOUNG
    return REST if late is None else late


def order_in_class(slots: int, held_s: float, level: int, options: PoolOptions) -> float:
    """Return the sort key of a request inside its class, before its submission: smaller ones come first.

    Protected requests: more slots first. Others, where gangs of the same priority interrupt each other: fewer
    slot-seconds used first, so those that never ran go by submission. Overdue ones: by submission alone.

    :param slots: slots of its gang
    :param held_s: seconds that its gangs held them
    :param level: its class
    """
    if level <= PROTECTED:
        return -slots
    if level == OVERDUE or options.preemption != "slices":
        return 0
    return slots * held_s


def may_interrupt(mine: PriorityRank, other: PriorityRank, options: PoolOptions) -> bool:
    """Return whether the pool's rule lets one request preempt the gang of another, apart from ``min_run``."""
    if options.preemption == "off":
        return False
    if other.priority != mine.priority or options.preemption == "priority":
        return other.priority > mine.priority
    return other.level > mine.level


def min_run_s(cost_s: float, options: PoolOptions) -> float:
    """Return how many seconds a gang runs before it may be preempted, from the cost of a preemption."""
    return max(options.min_run_s, 20 * cost_s)
