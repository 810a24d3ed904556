"""From the queue to a granted gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine.recovery import Recovery
from airflow_provider_dtrain.errors import UnplaceableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.runtime import Runtime


async def wait_for_gang(rt: Runtime, *, patient: bool = True) -> None:
    """Return when this attempt holds its slots and may be launched.

    Any waiter runs the scheduling pass, so no daemon is needed.

    :param patient: False: hand over after the first pass that does not grant
    :raises UnplaceableError: no set of the pool's hosts can serve the request any more
    """
    recovery = Recovery(rt.hook)
    try:
        await _wait(rt, recovery, patient=patient)
    finally:
        await recovery.close()


async def _wait(rt: Runtime, recovery: Recovery, *, patient: bool) -> None:
    said = ""
    while True:
        await rt.db(rt.store.renew_request, rt.attempt_id, rt.watch)
        view = await rt.view()
        await rt.db(rt.store.schedule, view.pool)
        view = await rt.view()
        if view.allocation_state == "granted" and (run := await rt.db(rt.store.take_up, rt.attempt_id, rt.watch)):
            hosts = ", ".join(f"{host} {list(slots)}" for host, slots in sorted(view.placement.items()))
            rt.log.info("Granted: %s on %s", run, hosts)
            return
        if view.allocation_state == "starting":
            return
        if view.reason and view.reason != said:
            rt.log.info("Waiting in pool '%s': %s", view.pool, view.reason)
            said = view.reason
        if view.unplaceable:
            raise UnplaceableError(view.reason)
        if not patient:
            rt.hand_over()
        recovery.tick()
        await rt.pause(rt.settings.pass_interval_s)
