"""Wait in the queue for a granted gang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from airflow_provider_dtrain.core.lifecycle.timing import PAUSED_POLL_S, REQUEST_RENEW_S
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, Waiting
from airflow_provider_dtrain.engine.slots.source import slots_of
from airflow_provider_dtrain.errors import UnplaceableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.slots.slot_port import SlotPort
    from airflow_provider_dtrain.store.records.trials import AttemptView


class RecoveryRounds(Protocol):
    """Background recovery, which runs in every process that waits for slots. See upkeep/recovery.py."""

    def once(self) -> None:
        """Run one round in the background."""

    def tick(self) -> None:
        """Run rounds in the background from now on."""

    async def close(self) -> None:
        """Stop the rounds, unless other coroutines still wait."""


async def wait_for_gang(rt: Runtime, view: AttemptView, recovery: RecoveryRounds, *, patient: bool = True) -> None:
    """Wait until an attempt holds its slots and may be launched.

    :param view: the attempt, which waits
    :param patient: False: hand over after the first pass that does not grant
    :raises UnplaceableError: no set of the pool's hosts can serve the request now or later
    :raises GangEndedError: the held gang that it should use has ended
    """
    try:
        await _wait(rt, view, recovery, patient=patient)
    finally:
        await recovery.close()


async def _wait(rt: Runtime, view: AttemptView, recovery: RecoveryRounds, *, patient: bool) -> None:
    logged = ""
    slots = slots_of(rt, view)
    while True:
        match await slots.request():
            case Granted(slots=granted):
                return _taken_up(rt, view, granted)
            case Never(reason=reason):
                raise UnplaceableError(reason)
            case Waiting(reason=reason, is_paused=True):
                await _until_active(rt, slots, reason, patient=patient)
                continue
            case Waiting(reason=reason):
                if reason and reason != logged:
                    rt.log.info("Waiting: %s", reason)
                    logged = reason
        if not patient:
            rt.hand_over()
        if rt.on_waiting is not None:
            rt.on_waiting()
        # The follower of the attempt that holds the slots may have died.
        recovery.tick()
        await slots.changed()


def _taken_up(rt: Runtime, view: AttemptView, granted: Mapping[str, tuple[int, ...]]) -> None:
    rt.taken_up_at = time.monotonic()
    if view.is_held_gang:
        rt.log.info("Using held gang %s for %s", view.allocation_id, view.label)
        return
    hosts = ", ".join(f"{host} {list(slots)}" for host, slots in sorted(granted.items()))
    rt.log.info("Granted: slots of %s for %s", hosts, view.label)


async def _until_active(rt: Runtime, slots: SlotPort, reason: str, *, patient: bool) -> None:
    """Wait until a paused trial is activated. It requests no slots meanwhile."""
    rt.log.info("Waiting: %s", reason)
    renewed_at = time.monotonic()
    while (await rt.view()).paused:
        if not patient:
            rt.hand_over()
        await rt.pause(PAUSED_POLL_S)
        if time.monotonic() - renewed_at > REQUEST_RENEW_S:
            renewed_at = time.monotonic()
            # The renewal requests no slots, but shows that the task is still there.
            await slots.request()
    rt.log.info("The trial is active again")
