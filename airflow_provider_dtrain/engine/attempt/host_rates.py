"""Measurement of hosts whose slots the caller holds: devices, disks, and the links between the hosts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.host_rates import (
    HostRate,
    RateMetric,
    SlowRate,
    is_plausible,
    link_kind,
    merged,
    rates_of,
    slow_rates,
    summary,
)
from airflow_provider_dtrain.core.launch.network import candidates, choose_network, connect_targets
from airflow_provider_dtrain.core.lifecycle.timing import PEER_CONNECT_S
from airflow_provider_dtrain.engine.session.runtime import answer
from airflow_provider_dtrain.errors import HostError, HostProtocolError, NetworkPathError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.launch.network import NetworkChoice
    from airflow_provider_dtrain.hosts.channel.link import HostLink

#: Further measurements of what seems slow: a disturbance passes, a fault stays.
REPEATS = 3
#: Time for the import of PyTorch and the end of the program, and time for each GPU.
START_S, GPU_S = 60.0, 15.0
#: Connections of one transfer, as several channels of NCCL, and transfers of which the better half counts.
STREAMS, TRANSFERS = 4, 3

#: Rounds of pairs of hosts; in a round each host is in one pair.
Rounds = Sequence[Sequence[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class CheckedHost:
    """A host that is measured, with the slots that the caller holds there."""

    link: HostLink
    #: Slot index -> UUID of its GPU; None for a CPU slot.
    devices: Mapping[int, str | None]
    token: int
    #: Part of the host's CPUs that belongs to these slots, from 0 to 1; 0 = do not measure CPUs.
    cpu_share: float
    #: Interpreter with PyTorch; None: the supervisor's.
    python: str | None = None
    #: Bytes of a file on its disk; 0 = do not measure the disk.
    disk_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Extent of a check."""

    store_id: str
    #: Windows of 0.2 s for each rate of a device.
    windows: int
    #: Seconds of each transfer between hosts.
    transfer_s: float
    rounds: Rounds
    tolerance: float
    port_range: Sequence[int] | None = None
    network_interface: str | None = None


@dataclass(kw_only=True)
class Measured:
    """Results of a check."""

    rates: list[HostRate] = field(default_factory=list)
    slow: list[SlowRate] = field(default_factory=list)
    #: Host -> texts about what could not be measured.
    problems: dict[str, list[str]] = field(default_factory=dict)

    def note(self, host: str, problem: str) -> None:
        """Note a problem of a host once."""
        texts = self.problems.setdefault(host, [])
        if problem not in texts:
            texts.append(problem)


async def measure(
    hosts: Mapping[str, CheckedHost],
    extent: Extent,
    references: Callable[[Sequence[HostRate]], Awaitable[tuple[Sequence[HostRate], Sequence[HostRate]]]],
) -> Measured:
    """Measure hosts, and measure again what seems slow.

    A host that fails is a problem in the result, and the rest is measured.

    :param references: returns the results of peers that are not measured, and the past of these hosts
    """
    found = Measured()
    found.rates = await _devices(hosts, extent, found)
    found.rates += await _links(hosts, extent, extent.rounds, found)
    peers, past = await references(found.rates)
    for _ in range(REPEATS):
        found.slow = slow_rates(found.rates, peers, past, tolerance=extent.tolerance)
        if not found.slow:
            break
        again = {one.rate.host: hosts[one.rate.host] for one in found.slow if one.rate.peer is None}
        pairs = {frozenset((one.rate.host, one.rate.peer)) for one in found.slow if one.rate.peer is not None}
        rounds = [[pair for pair in one if frozenset(pair) in pairs] for one in extent.rounds]
        more = await _devices(again, extent, found)
        more += await _links(hosts, extent, [one for one in rounds if one], found)
        known = {rate.subject for rate in found.rates}
        found.rates = merged(found.rates, (rate for rate in more if rate.subject in known))
    found.slow = slow_rates(found.rates, peers, past, tolerance=extent.tolerance)
    return found


async def _devices(hosts: Mapping[str, CheckedHost], extent: Extent, found: Measured) -> list[HostRate]:
    """Measure devices and disks of all hosts at the same time."""
    hosts = {host: checked for host, checked in hosts.items() if checked.devices or checked.disk_bytes}

    async def one(host: str, checked: CheckedHost) -> list[HostRate]:
        gpus = sum(device is not None for device in checked.devices.values())
        limit_s = START_S + gpus * GPU_S + extent.windows
        try:
            reply = await answer(
                checked.link,
                "measure",
                timeout_s=limit_s + 20.0,
                slots=[{"index": index, "device": device} for index, device in sorted(checked.devices.items())],
                store=extent.store_id,
                token=checked.token,
                python=checked.python,
                windows=extent.windows,
                disk_bytes=checked.disk_bytes,
                cpu_share=checked.cpu_share,
                limit_s=limit_s,
            )
        except HostError as error:
            found.note(host, str(error))
            return []
        rates, problems = rates_of(host, reply["results"], checked.devices)
        if reply.get("exit_code") != 0:
            problems.append(f"the measurement did not end within {limit_s:.0f} s, or was killed")
        for problem in problems:
            found.note(host, problem)
        return rates

    results = await asyncio.gather(*(one(host, checked) for host, checked in hosts.items()))
    return [rate for rates in results for rate in rates]


async def _links(hosts: Mapping[str, CheckedHost], extent: Extent, rounds: Rounds, found: Measured) -> list[HostRate]:
    """Measure transfers of the rounds, one round after the other."""
    of_rounds = [host for host in hosts if any(host in pair for pairs in rounds for pair in pairs)]
    if len(of_rounds) < 2:
        return []
    nonce, key = secrets.token_hex(16), secrets.token_hex(16)
    links = {host: hosts[host].link for host in of_rounds}
    try:
        listening = await _listening(links, extent, nonce, key, found)
        if len(listening) < 2:
            return []
        ends = await _ends(links, extent, listening, nonce, found)
        rates: list[HostRate] = []
        for pairs in rounds:
            usable = [pair for pair in pairs if pair[0] in ends and pair[1] in ends]
            both = await asyncio.gather(
                *(_pair(links, extent, ends, pair, nonce=nonce, key=key, found=found) for pair in usable)
            )
            rates += [rate for of_pair in both for rate in of_pair]
        return rates
    finally:
        closing = (answer(link, "net_close", nonce=nonce) for link in links.values())
        await asyncio.gather(*closing, return_exceptions=True)


async def _listening(
    links: Mapping[str, HostLink], extent: Extent, nonce: str, key: str, found: Measured
) -> dict[str, dict[str, Any]]:
    async def one(host: str, link: HostLink) -> tuple[str, dict[str, Any] | None]:
        asked: dict[str, Any] = {
            "nonce": nonce,
            "key": key,
            "port_range": extent.port_range,
            "interface": extent.network_interface,
        }
        try:
            return host, await answer(link, "net_listen", **asked)
        except HostError as error:
            found.note(host, str(error))
            return host, None

    answers = await asyncio.gather(*(one(host, link) for host, link in links.items()))
    return {host: reply for host, reply in answers if reply is not None}


@dataclass(frozen=True, kw_only=True)
class _End:
    """Address of a host for transfers to it."""

    address: str
    port: int
    speed_mbps: int


async def _ends(
    links: Mapping[str, HostLink], extent: Extent, listening: Mapping[str, dict[str, Any]], nonce: str, found: Measured
) -> dict[str, _End]:
    """Return the address of each host on the network that a gang of these hosts would use.

    Hosts that the others cannot reach are left out one after the other, each with its problem.
    """
    names = list(listening)
    targets = connect_targets(names, listening)

    async def connect(host: str) -> tuple[str, dict[str, Any]]:
        asked: dict[str, Any] = {"nonce": nonce, "targets": targets[host], "timeout_s": PEER_CONNECT_S}
        try:
            return host, await answer(links[host], "net_connect", **asked)
        except HostError as error:
            found.note(host, str(error))
            return host, {"results": []}

    connects = dict(await asyncio.gather(*(connect(host) for host in names)))
    while len(names) > 1:
        try:
            network = choose_network(names, listening, connects, network_interface=extent.network_interface)
        except NetworkPathError as error:
            found.note(error.host, str(error))
            names = [name for name in names if name != error.host]
            continue
        return _chosen(names, listening, network)
    return {}


def _chosen(names: Sequence[str], listening: Mapping[str, dict[str, Any]], network: NetworkChoice) -> dict[str, _End]:
    is_v6 = ":" in network.master_addr
    ends = {}
    for host, offers in candidates(names, listening).items():
        usable = [one for one in offers if one.interface == network.interfaces[host] and (":" in one.address) == is_v6]
        if usable:
            own = next((one for one in usable if one.address == network.master_addr), usable[0])
            ends[host] = _End(address=own.address, port=own.port, speed_mbps=own.speed_mbps)
    return ends


async def _pair(
    links: Mapping[str, HostLink],
    extent: Extent,
    ends: Mapping[str, _End],
    pair: tuple[str, str],
    *,
    nonce: str,
    key: str,
    found: Measured,
) -> list[HostRate]:
    """Measure the link between two hosts, in both directions one after the other."""
    rates = []
    kind = link_kind(ends[host].speed_mbps for host in pair)
    for source, target in (pair, pair[::-1]):
        end = ends[target]
        asked: dict[str, Any] = {"nonce": nonce, "key": key, "address": end.address, "port": end.port}
        replies = []
        try:
            for _ in range(TRANSFERS):
                replies.append(
                    await answer(
                        links[source],
                        "net_transfer",
                        timeout_s=4 * extent.transfer_s + 30.0,
                        seconds=extent.transfer_s,
                        streams=STREAMS,
                        **asked,
                    )
                )
        except HostProtocolError as error:
            found.note(source, str(error))
            continue
        except HostError as error:
            found.note(source, f"no transfer to {target}: {error}")
            continue
        value, spread = summary([reply["bytes_per_s"] for reply in replies])
        trip_s = min(reply["round_trip_s"] for reply in replies)
        if not is_plausible(RateMetric.LINK, value) or not is_plausible(RateMetric.ROUND_TRIP, trip_s):
            found.note(source, f"it reported {value:g} bytes/s and {trip_s:g} s for a transfer to {target}")
            continue
        of: Any = {"host": source, "peer": target, "kind": kind}
        rates.append(HostRate(metric=RateMetric.LINK, value=value, spread=spread, **of))
        rates.append(HostRate(metric=RateMetric.ROUND_TRIP, value=trip_s, **of))
    return rates
