"""Choice of the addresses and interfaces between the ranks of a gang, from connections that hosts tried."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.errors import NetworkPathError

#: Up to this many hosts, every pair is tried. Above it, a ring is tried, and rank 0's host with each other host.
ALL_PAIRS_UP_TO = 16

#: host -> the answer of its ``net_listen`` or ``net_connect``.
Answers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class NetworkChoice:
    """Address of rank 0, and interface of each host."""

    #: Address literal of rank 0's host.
    master_addr: str
    #: host -> name of its interface
    interfaces: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class OfferedAddress:
    """Address that a host offers."""

    address: str
    port: int
    interface: str
    #: 0 when the host does not know it.
    speed_mbps: int
    mtu: int


def pairs_to_check(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Return (from, to) for every connection to try, both ways of each pair.

    :param hosts: the gang's hosts in rank order; the first one runs rank 0
    """
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return [(source, target) for source in hosts for target in hosts if source != target]
    links = [(hosts[index - 1], hosts[index]) for index in range(len(hosts))]
    links += [(hosts[0], host) for host in hosts[1:]]
    return list(dict.fromkeys(pair for link in links for pair in (link, link[::-1])))


def connect_targets(hosts: Sequence[str], listens: Answers) -> dict[str, list[dict[str, Any]]]:
    """Return for each host the ``targets`` of its ``net_connect``: every candidate of the hosts it has to reach.

    :param hosts: the gang's hosts in rank order
    :param listens: the answers of ``net_listen`` of all hosts
    """
    offers = candidates(hosts, listens)
    targets: dict[str, list[dict[str, Any]]] = {host: [] for host in hosts}
    for source, target in pairs_to_check(hosts):
        targets[source] += [{"address": offer.address, "port": offer.port} for offer in offers[target]]
    return targets


def candidates(hosts: Sequence[str], listens: Answers) -> dict[str, list[OfferedAddress]]:
    """Return each host's addresses for use by other hosts: no loopback, no link-local, none shared by two hosts."""
    rows = {host: list(listens[host].get("addresses", ())) for host in hosts}
    owners = Counter(address for host in hosts for address in {row["address"] for row in rows[host]})
    return {
        host: [
            _address(row, listens[host]["port"])
            for row in rows[host]
            if owners[row["address"]] == 1 and _is_usable(row["address"])
        ]
        for host in hosts
    }


def choose_network(
    hosts: Sequence[str], listens: Answers, connects: Answers, *, network_interface: str | None = None
) -> NetworkChoice:
    """Return the address of rank 0 and the interface of every host.

    A candidate is an address of rank 0's host that every other host reached, with the way back and the ways
    between the other hosts open on the interfaces that these connections take. Among several candidates, the one
    with the fastest slowest link wins, then the largest smallest MTU, then the name.

    :param hosts: the gang's hosts in rank order; the first one runs rank 0
    :param listens: the answers of ``net_listen`` of all hosts
    :param connects: the answers of ``net_connect`` of all hosts, with the targets of :func:`connect_targets`
    :param network_interface: the user's choice; used on every host
    :raises NetworkPathError: no candidate; names a pair, the address and the port, and carries the host that
        most of the failed connections have in common
    """
    if len(hosts) == 1:
        return NetworkChoice(master_addr="127.0.0.1", interfaces={hosts[0]: "lo"})
    ways = _Routes(hosts, listens, connects, network_interface)
    routes = [_Route(ways, offer) for offer in ways.master_offers()]
    open_routes = [route for route in routes if not route.failures]
    if not open_routes:
        raise _no_way(min(routes, key=lambda route: (len(route.failures), route.rank)))
    best = min(open_routes, key=lambda route: route.rank)
    return NetworkChoice(master_addr=best.offer.address, interfaces=best.interfaces)


def _address(row: Mapping[str, Any], port: int) -> OfferedAddress:
    speed = row.get("speed_mbps") or 0
    mtu = row.get("mtu") or 0
    return OfferedAddress(
        address=row["address"], port=port, interface=row["interface"], speed_mbps=max(0, speed), mtu=max(0, mtu)
    )


def _is_usable(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


def _is_v6(address: str) -> bool:
    return ":" in address


@dataclass(frozen=True)
class _Failure:
    source: str
    target: str
    address: str
    port: int
    error: str


class _Routes:
    """Addresses that all hosts offer, and the connections that were tried."""

    def __init__(self, hosts: Sequence[str], listens: Answers, connects: Answers, interface: str | None) -> None:
        self.hosts = hosts
        self.master = hosts[0]
        self.interface = interface
        self.offers = candidates(hosts, listens)
        self.tried: dict[tuple[str, str, int], Mapping[str, Any]] = {}
        for host in hosts:
            for result in connects.get(host, {}).get("results", ()):
                self.tried[host, result["address"], result["port"]] = result

    def master_offers(self) -> list[OfferedAddress]:
        if self.interface is not None:
            for host in self.hosts:
                self._require(host, self.interface)
        offers = self._on(self.master, self.interface)
        if not offers:
            text = (
                f"Host '{self.master}' has no address that the other hosts of the gang could use: all are loopback, "
                "link-local, or also present on another host. Give it one of its own, or leave it out of the pool."
            )
            raise NetworkPathError(self.master, text)
        return offers

    def _require(self, host: str, interface: str) -> None:
        if not self._on(host, interface):
            known = ", ".join(sorted({offer.interface for offer in self.offers[host]})) or "none"
            text = (
                f"Host '{host}' has no interface '{interface}' with an address that other hosts could use; it has: "
                f"{known}. Change network_interface, or remove it to find one automatically."
            )
            raise NetworkPathError(host, text)

    def _on(self, host: str, interface: str | None) -> list[OfferedAddress]:
        return [offer for offer in self.offers[host] if interface in {None, offer.interface}]

    def local_end(self, source: str, offer: OfferedAddress) -> OfferedAddress | None:
        """Return the source end of a connection: the address that the kernel took, else another on its interface."""
        result = self.tried.get((source, offer.address, offer.port))
        if result is None or not result.get("ok"):
            return None
        interface = self.interface or result.get("interface")
        family = [end for end in self._on(source, interface) if _is_v6(end.address) == _is_v6(offer.address)]
        exact = [end for end in family if end.address == result.get("source_address")]
        return next(iter(exact + family), None)

    def failure(self, source: str, target: str, end: OfferedAddress) -> _Failure | None:
        result = self.tried.get((source, end.address, end.port))
        if result is not None and result.get("ok"):
            return None
        error = "it was not tried" if result is None else str(result.get("error") or "no answer from this run arrived")
        return _Failure(source, target, end.address, end.port, error)


class _Route:
    """All connections of the gang if rank 0 is reached at one address."""

    def __init__(self, ways: _Routes, offer: OfferedAddress) -> None:
        self.ways = ways
        self.offer = offer
        self.ends: dict[str, OfferedAddress] = {ways.master: offer}
        self.failures: list[_Failure] = []
        for host in ways.hosts[1:]:
            self._add(host)
        for source, target in pairs_to_check(ways.hosts):
            if ways.master != target and target in self.ends and source in self.ends:
                self._note(ways.failure(source, target, self.ends[target]))

    def _add(self, host: str) -> None:
        end = self.ways.local_end(host, self.offer)
        if end is not None:
            self.ends[host] = end
            return
        missing = _Failure(
            host, self.ways.master, self.offer.address, self.offer.port, "it came from an unknown address"
        )
        self._note(self.ways.failure(host, self.ways.master, self.offer) or missing)

    def _note(self, failure: _Failure | None) -> None:
        if failure is not None:
            self.failures.append(failure)

    @property
    def interfaces(self) -> dict[str, str]:
        return {host: end.interface for host, end in self.ends.items()}

    @property
    def rank(self) -> tuple[int, int, str, bool, str]:
        """Sort key, best first: the slowest link and smallest MTU of all ends count."""
        ends = self.ends.values()
        slowest = min(end.speed_mbps for end in ends)
        smallest = min(end.mtu for end in ends)
        return (-slowest, -smallest, self.offer.interface, _is_v6(self.offer.address), self.offer.address)


def _no_way(route: _Route) -> NetworkPathError:
    failures = route.failures
    blame = Counter(host for failure in failures for host in (failure.source, failure.target))
    master = route.ways.master
    # Of two hosts, either may be at fault. Blame the one that is not rank 0's host, which other hosts reach as well.
    culprit = max(sorted(blame), key=lambda host: (blame[host], host != master))
    first = next(failure for failure in failures if culprit in {failure.source, failure.target})
    more = f" {len(failures) - 1} more connections of the gang failed." if len(failures) > 1 else ""
    text = (
        f"Host '{first.source}' cannot reach host '{first.target}' at {first.address} port {first.port}: {first.error}."
        f"{more} Open the hosts' firewalls to each other (port_range bounds the ports), or name a network_interface "
        "that all of them share."
    )
    return NetworkPathError(culprit, text)
