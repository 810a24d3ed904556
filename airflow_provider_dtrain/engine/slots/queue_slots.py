"""Slots from the queue in the store."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.core.lifecycle.timing import REQUEST_FRESH_S
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.session.wakeup import changed
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, Waiting
from airflow_provider_dtrain.errors import DtrainError, UnplaceableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.slots.slot_port import FollowedGang
    from airflow_provider_dtrain.store.records.trials import Proof


class QueueSlots:
    """Slots from the queue of the attempt's pool.

    Any waiter runs the scheduling pass, so no daemon is needed.

    :param rt: follower of the attempt
    """

    keeps_files = True

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt

    async def request(self) -> Granted | Waiting | Never:
        """Renew the request if that is due, run a scheduling pass, and take a grant up."""
        rt = self.rt
        view = await rt.view()
        is_fresh = 0 <= (rt.store.db.now() - view.asked_at).total_seconds() < REQUEST_FRESH_S
        if not is_fresh or view.watch != rt.watch:
            try:
                await rt.db(rt.store.queue.renew, rt.attempt_id, rt.watch)
            except UnplaceableError as error:
                return Never(reason=str(error))
        if not view.paused:
            await rt.db(rt.store.queue.schedule, view.pool)
            view = await rt.view()
        is_granted = view.allocation_state == AllocationState.GRANTED
        if is_granted and await rt.db(rt.store.queue.take_up, rt.attempt_id, rt.watch) is not None:
            return Granted(slots=view.placement)
        if view.allocation_state == AllocationState.STARTING:
            return Granted(slots=view.placement)
        if view.unplaceable and not view.paused:
            return Never(reason=view.reason)
        return Waiting(reason=f"{view.reason} Pool '{view.pool}'." if view.reason else "", is_paused=view.paused)

    async def changed(self) -> None:
        """Wait for the next change of the pool's queue, or until the request has to be renewed."""
        await changed(self.rt, await self.rt.view())

    def watching(self, gang: FollowedGang) -> contextlib.AbstractAsyncContextManager[None]:
        """Do nothing: a pass of the queue stores that it wants the slots back as a control request."""
        return contextlib.nullcontext()

    async def explained(self, error: DtrainError | None) -> DtrainError | None:
        """Return the error: the queue takes no slots."""
        return error

    async def clear_hosts(self) -> frozenset[str]:
        """Return no host: only hosts themselves know what runs there."""
        return frozenset()

    async def release(self, hosts: Sequence[str], *, proof: Proof) -> None:
        """Release the slots on hosts, and run the pass that grants them again."""
        rt = self.rt
        await rt.db(rt.store.queue.release, rt.attempt_id, rt.watch, hosts, proof=proof)
        with contextlib.suppress(DtrainError):
            # An error of the pass is none of the attempt, whose slots are free. A waiter runs the pass then.
            await in_thread(lambda: rt.store.queue.schedule(rt.store.attempts.get(rt.attempt_id).pool))

    async def leave(self) -> None:
        """Do nothing: the end of an attempt withdraws its request in the same transaction."""

    async def uncleared(self) -> frozenset[str]:
        """Return the hosts whose slots the store has not released."""
        return frozenset((await self.rt.view()).held_hosts)
