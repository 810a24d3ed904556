"""Host checks that a user requests: they hold all slots of the hosts, measure, and store the results."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.host_rates import TOLERANCE, HostRate, findings, rounds_of
from airflow_provider_dtrain.core.lifecycle.timing import CHECK_HOLD_S
from airflow_provider_dtrain.engine.attempt.host_rates import CheckedHost, Extent, Measured, measure
from airflow_provider_dtrain.engine.session.background import alongside
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.upkeep.host_actions import refuse_node
from airflow_provider_dtrain.errors import DtrainError, NotNowError, UserError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import HeldForCheck, HostRecord

#: Extent of a check that a user requests: windows of 0.2 s, seconds of a transfer, bytes of a file.
WINDOWS, TRANSFER_S, DISK_BYTES = 8, 0.4, 64 << 20
#: Period in which a check tries to get slots that are in use.
POLL_S = 1.0
PARALLEL_HOSTS = 8


def check_hosts(
    hook: DtrainHook,
    records: Sequence[HostRecord],
    *,
    by: str,
    tolerance: float = TOLERANCE,
    python: str | None = None,
    wait_s: float = 0.0,
    on_wait: Callable[[str], None] = lambda _: None,
    on_poll: Callable[[], None] = lambda: None,
) -> Measured:
    """Check hosts on all their slots, and store results and findings. Blocks.

    The slots are free again at its end. If this process is killed, the measurements end with its channels, and the
    slots become free after :data:`.CHECK_HOLD_S`.

    :param by: the user
    :param tolerance: share below the reference that is still well
    :param python: interpreter with PyTorch on the hosts; None: that of each host
    :param wait_s: seconds to wait for slots that are in use
    :param on_wait: called with the reason of the wait
    :param on_poll: called before each try to get slots; it may raise
    :raises NotNowError: slots are in use
    :raises UserError: there is no host to check
    """
    if not records:
        raise UserError("There is no host to check. Register one: airflow dtrain hosts add")
    for record in records:
        refuse_node(hook.store, record, "be checked")
    held = _held(hook, records, by, wait_s, on_wait, on_poll)
    try:
        return asyncio.run(_check(hook, records, held, tolerance, python))
    finally:
        for pool in hook.store.host_rates.release([one.allocation_id for one in held]):
            with contextlib.suppress(DtrainError):
                hook.store.queue.schedule(pool)


def _held(
    hook: DtrainHook,
    records: Sequence[HostRecord],
    by: str,
    wait_s: float,
    on_wait: Callable[[str], None],
    on_poll: Callable[[], None],
) -> list[HeldForCheck]:
    """Hold the slots as soon as all of them are free. Requests that wait for slots come first."""
    deadline = time.monotonic() + wait_s
    reason = ""
    while True:
        on_poll()
        for pool in sorted({record.pool for record in records}):
            hook.store.queue.schedule(pool)
        try:
            return hook.store.host_rates.hold([record.name for record in records], by=by)
        except NotNowError as error:
            if time.monotonic() >= deadline:
                raise
            if str(error) != reason:
                reason = str(error)
                on_wait(reason)
        time.sleep(POLL_S)


async def _check(
    hook: DtrainHook, records: Sequence[HostRecord], held: Sequence[HeldForCheck], tolerance: float, python: str | None
) -> Measured:
    store = hook.store
    names = [record.name for record in records]
    slots = {one.host: one for one in held}
    problems: dict[str, list[str]] = {}
    hosts: dict[str, CheckedHost] = {}

    def connect(record: HostRecord) -> tuple[str, CheckedHost | str]:
        try:
            own = slots[record.name]
            return record.name, CheckedHost(
                link=hook.link(record),
                devices=own.devices,
                token=own.token,
                cpu_share=len(own.devices) / len(record.slots),
                python=python,
                disk_bytes=DISK_BYTES,
            )
        except DtrainError as error:
            return record.name, str(error)

    with ThreadPoolExecutor(PARALLEL_HOSTS) as threads:
        for name, checked in threads.map(connect, records):
            if isinstance(checked, str):
                problems[name] = [checked]
            else:
                hosts[name] = checked
    extent = Extent(
        store_id=store.store_id,
        windows=WINDOWS,
        transfer_s=TRANSFER_S,
        rounds=rounds_of(list(hosts)),
        tolerance=tolerance,
        **_network(hook, records),
    )

    async def references(rates: Sequence[HostRate]) -> tuple[list[HostRate], list[HostRate]]:
        return await in_thread(store.host_rates.peers, rates), await in_thread(store.host_rates.past, names)

    async with _renewing(hook, held):
        found = await measure(hosts, extent, references)
        await in_thread(store.host_rates.renew, [one.allocation_id for one in held])
    found.problems = {**problems, **found.problems}
    await in_thread(store.host_rates.record, found.rates, findings(found.rates, found.slow))
    return found


@contextlib.asynccontextmanager
async def _renewing(hook: DtrainHook, held: Sequence[HeldForCheck]) -> AsyncIterator[None]:
    """Hold the slots while the block runs. A check whose slots were released ends with the block's last renewal."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(CHECK_HOLD_S / 3)
            with contextlib.suppress(DtrainError):
                await in_thread(hook.store.host_rates.renew, [one.allocation_id for one in held])

    async with alongside(renew()):
        yield


def _network(hook: DtrainHook, records: Sequence[HostRecord]) -> dict[str, Any]:
    """Return ports and interface that the pool's defaults give to gangs."""
    defaults = hook.store.pools.get(records[0].pool).defaults
    ports = defaults.get("port_range")
    interface = defaults.get("network_interface")
    low, _, high = ports.partition("-") if isinstance(ports, str) else ("", "", "")
    return {
        "port_range": [int(low), int(high)] if low.isdigit() and high.isdigit() else None,
        "network_interface": interface if isinstance(interface, str) and interface != "auto" else None,
    }
