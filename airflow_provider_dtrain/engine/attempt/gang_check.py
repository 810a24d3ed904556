"""Check of the hosts of a gang between its grant and its launch, where the pool requests it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.host_rates import TOLERANCE, HostCheckRule, HostRate, findings, ring_rounds_of
from airflow_provider_dtrain.core.launch.plan import rank_order
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.engine.attempt.host_rates import CheckedHost, Extent, measure
from airflow_provider_dtrain.errors import HostSlowError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView, Pool

#: Name of the check in the audit of a drained host.
CHECKED_BY = "host check"
#: Extent of a check before a gang: windows of 0.2 s, seconds of a transfer, bytes of a file.
WINDOWS, TRANSFER_S, DISK_BYTES = 4, 0.2, 16 << 20


async def check_gang(rt: Runtime, view: AttemptView, job: Job, links: Mapping[str, HostLink]) -> None:
    """Measure hosts of the gang that were not measured of late, and handle slow ones as the pool says.

    CPUs, disk and network are measured only on hosts of which the gang has all slots: other gangs would disturb the
    measurement, and it them.

    :raises HostSlowError: a host is slow, the pool leaves such hosts out, and other hosts can serve the trial
    """
    pool = await rt.db(rt.store.pools.get, view.pool)
    if pool.host_check is HostCheckRule.OFF:
        return
    await _measure(rt, view, job, links, pool)
    faults = await rt.db(rt.store.host_rates.faults, view.placement)
    if not faults:
        return
    can_avoid = pool.host_check is not HostCheckRule.WARN and await rt.db(
        rt.store.host_rates.can_avoid, rt.attempt_id, faults
    )
    for host, texts in sorted(faults.items()):
        message = f"Host '{host}' is slow: {'; '.join(texts)}."
        if can_avoid and pool.host_check is HostCheckRule.EVACUATE:
            await rt.db(rt.store.hosts.condemn, host, "; ".join(texts), CHECKED_BY)
        if can_avoid:
            raise HostSlowError(host, f"{message} Check it again: airflow dtrain hosts check {host}")
        rt.log.warning("%s The gang starts nevertheless.", message)


async def _measure(rt: Runtime, view: AttemptView, job: Job, links: Mapping[str, HostLink], pool: Pool) -> None:
    since = datetime.now(UTC) - timedelta(seconds=pool.host_check_every_s)
    fresh = await rt.db(rt.store.host_rates.fresh, view.placement, since)
    hosts: dict[str, CheckedHost] = {}
    whole = set()
    for host, link in links.items():
        record = await rt.record(host)
        devices = {index: job.devices[host].get(index) for index in view.placement[host]}
        is_whole = len(devices) == len(record.slots)
        is_gpu = any(devices.values())
        due = {index: device for index, device in devices.items() if (host, index if is_gpu else None) not in fresh}
        if is_whole:
            whole.add(host)
        if not due or not (is_gpu or is_whole):
            continue
        hosts[host] = CheckedHost(
            link=link,
            devices=due,
            token=view.token or 0,
            cpu_share=float(is_whole and not is_gpu),
            python=job.python(host),
            disk_bytes=DISK_BYTES if is_whole else 0,
        )
    if not hosts:
        return
    begun = time.monotonic()
    rounds = _rounds(view, whole, set(hosts))
    among = {**{host: _idle(links[host], view) for pairs in rounds for pair in pairs for host in pair}, **hosts}
    extent = Extent(
        store_id=job.store_id,
        windows=WINDOWS,
        transfer_s=TRANSFER_S,
        rounds=rounds,
        tolerance=TOLERANCE,
        port_range=job.port_range,
        network_interface=job.network_interface,
    )

    async def references(rates: Sequence[HostRate]) -> tuple[list[HostRate], list[HostRate]]:
        return await rt.db(rt.store.host_rates.peers, rates), await rt.db(rt.store.host_rates.past, list(among))

    found = await measure(among, extent, references)
    for host, problems in sorted(found.problems.items()):
        rt.log.warning("Check of host '%s': %s", host, "; ".join(problems))
    await rt.db(rt.store.host_rates.record, found.rates, findings(found.rates, found.slow))
    rt.log.info("Checked %s in %.1f s before the launch", ", ".join(sorted(hosts)), time.monotonic() - begun)


def _rounds(view: AttemptView, whole: set[str], due: set[str]) -> list[list[tuple[str, str]]]:
    """Return the links to measure: those of a ring of whole hosts that a due host is part of."""
    ring = [host for host in rank_order(Placement(view.placement)) if host in whole]
    rounds = ring_rounds_of(ring) if len(ring) > 1 else []
    chosen = [[pair for pair in pairs if due.intersection(pair)] for pairs in rounds]
    return [pairs for pairs in chosen if pairs]


def _idle(link: HostLink, view: AttemptView) -> CheckedHost:
    """Return a host of which only links are measured."""
    return CheckedHost(link=link, devices={}, token=view.token or 0, cpu_share=0.0)
