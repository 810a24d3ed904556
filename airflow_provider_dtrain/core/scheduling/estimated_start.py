"""Messages about why a request waits and when it may start. Start times are bounds, never guesses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.scheduling.cycle import SchedulingPass
from airflow_provider_dtrain.core.scheduling.model import Placement, Unplaceable
from airflow_provider_dtrain.core.scheduling.pending_reason import count, explain, missing_text, names, sentences
from airflow_provider_dtrain.core.scheduling.priority_tiers import PROTECTED
from airflow_provider_dtrain.core.scheduling.queue import RequestShape, WaitingRequest
from airflow_provider_dtrain.core.scheduling.unschedulable import shortfall

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.scheduling.pool_state import PoolState
    from airflow_provider_dtrain.core.scheduling.running_gangs import ActiveGang


#: Begin of each reason of :meth:`PendingReasons.reason`; the number and a period follow.
_POSITION = "Position "
#: Fact about a request without a follower.
NO_FOLLOWER = "Its task passes from a worker to the triggerer, and gets slots when it is there."
#: Part of ``max_wait`` before its end in which the protection of a request is shown.
NEAR_RATIO = 0.5


@dataclass(frozen=True)
class Expected:
    """Expected start of a waiting request."""

    #: Seconds within which it starts unless a request before it takes its slots; None = no bound is known.
    within_s: float | None
    #: The same as readable text.
    text: str


class PendingReasons:
    """Messages about the requests of a pool after a pass.

    :param state: the pool as the pass left it
    """

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self._pass = SchedulingPass(state)
        self._due = {held.holder.request.request_id: held.due_s for held in self._pass.held()}
        self._lacks: dict[tuple[RequestShape, frozenset[str]], str] = {}

    def never(self, waiter: WaitingRequest) -> Unplaceable:
        """Return the reason why a request can never start in the pool."""
        return explain(self.state.free_slots, waiter.request, self.state.options)

    def reason(self, waiter: WaitingRequest, position: int) -> str:
        """Return the position of a waiting request, the holders of its slots, and what else is in its way."""
        kept = f" Reserved for it: {names(waiter.reserved)}." if waiter.reserved else ""
        return f"{_POSITION}{position}. {self._fact(waiter)}{kept}"

    def _fact(self, waiter: WaitingRequest) -> str:
        if self.state.shares.is_capped(waiter):
            return self._cap(waiter)
        if not waiter.request.is_followed:
            return NO_FOLLOWER
        if waiter.claim is not None:
            return self._coming(waiter, waiter.claim)
        return self._lack(waiter)

    def _cap(self, waiter: WaitingRequest) -> str:
        if self.state.shares.is_crowded(waiter):
            beside = self.state.shares.gangs_beside(waiter)
            most = waiter.share_group.max_gangs
            return sentences([f"{beside} of {most} trials of the experiment run (max_concurrent_trials)"])
        used = self.state.shares.in_use(waiter)
        cap = waiter.share_group.max_slots
        fact = f"its experiment has {used} of at most {cap} slots, and it needs {waiter.shape.slots}"
        never = cap is not None and waiter.shape.slots > cap
        return sentences([fact, *(["it can never start below that cap: raise max_slots"] if never else [])])

    def _coming(self, waiter: WaitingRequest, claim: Placement) -> str:
        fact = f"{count(claim.size, 'slot')} on {names(sorted(claim.slots))} claimed for it: {waiter.kept.size} free"
        owners = sorted({gang.owner for gang in self._stopping(claim)})
        return sentences([fact, *([f"stopping: {names(owners)}"] if owners else [])])

    def _stopping(self, claim: Placement) -> list[ActiveGang]:
        return [
            gang
            for name, indices in claim.slots.items()
            for gang in self.state.gangs.on(name)
            if gang.is_ending and not set(gang.placement.slots[name]).isdisjoint(indices)
        ]

    def _lack(self, waiter: WaitingRequest) -> str:
        closed = self._pass.closed(waiter)
        key = (waiter.shape, closed)
        if key not in self._lacks:
            state = self.state
            need = shortfall(state.free_slots, waiter.request, state.options, closed)
            self._lacks[key] = missing_text(state.free_slots, waiter.request, need)
        return self._lacks[key]

    def ineligible(self) -> dict[str, str]:
        """Return the reasons why the waiting time of some requests does not count."""
        unplaceable = {request_id: self.never(waiter).reason for request_id, waiter in self.state.never.items()}
        capped = {key: self._cap(waiter) for key, waiter in self.state.waiting.items() if not waiter.is_eligible}
        return {**unplaceable, **capped}

    def expected(self, waiter: WaitingRequest) -> Expected:
        """Return a bound for the start of a request."""
        due_s = self._due.get(waiter.request.request_id)
        if not waiter.is_eligible:
            cap = "max_concurrent_trials" if self.state.shares.is_crowded(waiter) else "max_slots"
            return Expected(None, f"not known; its experiment is at {cap}")
        if waiter.claim is not None:
            return Expected(None, "not known; as soon as the gangs that stop for it have ended")
        if due_s is not None:
            what = "when every gang on its hosts has reached its max_runtime"
            return Expected(due_s, f"in {span(due_s)} at the latest, {what}, unless a request before it takes these")
        if waiter.level <= PROTECTED:
            return Expected(None, "not known; protected: only requests that waited longer pass or preempt it")
        left_s = self.state.wait_left_s(waiter)
        if left_s <= 0:
            return Expected(None, "not known; protected once enough requests that waited longer have ended")
        # Earlier, this bound would be about the same in each row of the queue.
        is_near = left_s <= self.state.options.max_wait_s * NEAR_RATIO
        return Expected(None, f"not known; may be protected in {span(left_s)}" if is_near else "")


def without_position(reason: str) -> str:
    """Return a reason without the position, which changes whenever another request starts."""
    return reason.partition(". ")[2] if reason.startswith(_POSITION) else reason


def span(seconds: float) -> str:
    """Return a duration as text, rounded up: to 10 minutes above an hour, so that it seldom changes."""
    minutes = math.ceil(max(0.0, seconds) / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(math.ceil(minutes / 10) * 10, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"
