"""Wait in the queue for a granted gang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.core.lifecycle.timing import PAUSED_LOOK_S, REQUEST_RENEW_S
from airflow_provider_dtrain.engine.session.wakeup import changed
from airflow_provider_dtrain.errors import UnplaceableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime


class RecoveryRounds(Protocol):
    """Background recovery, which runs in every process that waits for slots. See upkeep/recovery.py."""

    def once(self) -> None:
        """Run one round in the background."""

    def tick(self) -> None:
        """Run rounds in the background from now on."""

    async def close(self) -> None:
        """Stop the rounds, unless other coroutines still wait."""


async def wait_for_gang(rt: Runtime, recovery: RecoveryRounds, *, patient: bool = True) -> None:
    """Wait until this attempt holds its slots and may be launched.

    Any waiter runs the scheduling pass, so no daemon is needed.

    :param patient: False: hand over after the first pass that does not grant
    :raises UnplaceableError: no set of the pool's hosts can serve the request now or later
    :raises GangEndedError: the held gang that it should use has ended
    """
    wait = _wait_to_use if (await rt.view()).is_held_gang else _wait
    try:
        await wait(rt, recovery, patient=patient)
    finally:
        await recovery.close()


async def _wait(rt: Runtime, recovery: RecoveryRounds, *, patient: bool) -> None:
    said = ""
    while True:
        await rt.db(rt.store.renew_request, rt.attempt_id, rt.watch)
        view = await rt.view()
        if view.paused:
            await _until_active(rt, patient=patient)
            continue
        await rt.db(rt.store.schedule, view.pool)
        view = await rt.view()
        is_granted = view.allocation_state == AllocationState.GRANTED
        if is_granted and await rt.db(rt.store.take_up, rt.attempt_id, rt.watch) is not None:
            hosts = ", ".join(f"{host} {list(slots)}" for host, slots in sorted(view.placement.items()))
            rt.log.info("Granted: slots of %s for %s", hosts, view.label)
            rt.taken_up_at = time.monotonic()
            return
        if view.allocation_state == AllocationState.STARTING:
            return
        if view.reason and view.reason != said:
            rt.log.info("Waiting: %s Pool '%s'.", view.reason, view.pool)
            said = view.reason
        if view.unplaceable:
            raise UnplaceableError(view.reason)
        if not patient:
            rt.hand_over()
        recovery.tick()
        await changed(rt, view)


async def _wait_to_use(rt: Runtime, recovery: RecoveryRounds, *, patient: bool) -> None:
    """Wait until this attempt may use its held gang."""
    said = ""
    while await rt.db(rt.store.use_gang, rt.attempt_id, rt.watch) is None:
        view = await rt.view()
        if view.reason != said:
            rt.log.info("Waiting: %s", view.reason)
            said = view.reason
        if not patient:
            rt.hand_over()
        # The follower of the trial that uses it may have died.
        recovery.tick()
        await rt.pause(rt.settings.pass_interval_s)
    rt.taken_up_at = time.monotonic()
    view = await rt.view()
    rt.log.info("Using held gang %s for %s", view.allocation_id, view.label)


async def _until_active(rt: Runtime, *, patient: bool) -> None:
    """Wait until a paused trial is activated. It requests no slots meanwhile."""
    view = await rt.view()
    rt.log.info("Waiting: %s Pool '%s'.", view.reason, view.pool)
    renewed_at = time.monotonic()
    while view.paused:
        if not patient:
            rt.hand_over()
        await rt.pause(PAUSED_LOOK_S)
        if time.monotonic() - renewed_at > REQUEST_RENEW_S:
            renewed_at = time.monotonic()
            # The renewal requests no slots, but shows that the task is still there.
            await rt.db(rt.store.renew_request, rt.attempt_id, rt.watch)
        view = await rt.view()
    rt.log.info("The trial is active again")
