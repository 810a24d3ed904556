"""Reconciliation of the store with a host: tokens, forgotten runs, and slots that were not ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import FENCE_WAIT_S, LEASE_TTL_S
from airflow_provider_dtrain.engine.attempt import teardown

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime


async def reconcile_host(rt: Runtime, host: str) -> list[str]:
    """Reconcile the store with a host, and return the host's live runs that the store has forgotten.

    It covers tokens, forgotten runs and slots. After a restore from a backup, a host knows of grants that the store
    does not. Such a run is fenced once it was not renewed for a minute, by the host's own clock.

    :raises HostError: the host does not answer
    """
    status = await rt.call(host, "status")
    seen = (status.get("stores") or {}).get(rt.store.store_id)
    if isinstance(seen, int):
        await accept_token(rt, host, seen)
    runs = {name: run for name, run in (status.get("runs") or {}).items() if isinstance(run, Mapping)}
    live = {name: run.get("launch") for name, run in runs.items() if run.get("state") not in ("ended", "gone")}
    unknown = await rt.db(rt.store.hosts.unknown_runs, host, live)
    for name in unknown:
        ago = runs[name].get("unrenewed_s")
        if isinstance(ago, int | float) and ago <= LEASE_TTL_S:
            continue
        token = int(name.rpartition(".")[2])
        wait_s = FENCE_WAIT_S
        found = await rt.call(host, "fence", timeout_s=wait_s + 20.0, run=name, token=token, wait_s=wait_s)
        message = "It is gone." if found.get("clear") else f"Still there: {teardown.survivors_text(found)}"
        rt.log.warning(
            "Run %s on host '%s' is unknown to the store. Was the store restored from a backup? %s", name, host, message
        )
    await free_slots(rt, host)
    return unknown


async def accept_token(rt: Runtime, host: str, token: int) -> bool:
    """Raise the store's token counter to a token that a host has seen, and return False when it is implausible."""
    counter = await rt.db(rt.store.queue.raise_token, token)
    if counter < token:
        rt.log.warning(
            "Host '%s' recorded token %d of this store, too far above the store's own counter %d. The counter stays. "
            "User code may have changed the host's files. Once no run of this store is left on the host, remove "
            "store.json and slots/*.token from its state folder.",
            host,
            token,
            counter,
        )
    return counter >= token


async def free_slots(rt: Runtime, host: str) -> None:
    """Mark slots as ready again that were stuck or in use elsewhere, once no process holds them."""
    record = await rt.db(rt.store.hosts.get, host)
    doubtful = [slot for slot in record.slots if slot.state != "ready"]
    if not doubtful:
        return
    asked = [{"slot": slot.index, "device": slot.device} for slot in doubtful]
    locks = (await rt.call(host, "status", slots=asked)).get("slots") or {}
    for index in (slot.index for slot in doubtful):
        lock = locks.get(str(index))
        if lock is None or (isinstance(lock, Mapping) and lock.get("held_by") is None):
            await rt.db(rt.store.hosts.mark_slot, host, index, "ready")
