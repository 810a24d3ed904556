"""Statistics of host checks: rates of devices, disks and links, compared with those of peers and of the past."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from airflow_provider_dtrain.core.control_characters import escaped

#: Share by which a rate must be below its reference to be named.
TOLERANCE = 0.15
#: Robust standard deviations by which it must be below as well, and the share from which scatter is no excuse.
DEVIATIONS, SURELY = 3.0, 0.5
#: Values of the past that are compared, and the fewest that count.
PAST_MOST, PAST_LEAST = 20, 3
#: A round trip is named from this multiple of its reference on, and only above this many seconds: it varies more.
TRIP_RATIO, TRIP_LEAST_S = 3.0, 0.001
#: A link with this part of the speed of its interface is well, whatever its peers have.
NOMINAL = 0.8
#: The same for disks, which the cache of the system and other machines on the same storage change.
DISK_TOLERANCE = 0.5
#: Devices that are each compared with all others but themselves.
FEW = 64
_KIND_CHARS = 200


class RateMetric(StrEnum):
    """Metric of a host check."""

    #: FLOP/s of matrix products of a GPU, or of the CPUs of a host.
    MATMUL = "matmul"
    #: Bytes per second of copies in the memory of a GPU, or by one CPU.
    MEMORY = "memory"
    #: Bytes per second to the disk with the run folders, with flush.
    DISK_WRITE = "disk_write"
    #: Bytes per second from there.
    DISK_READ = "disk_read"
    #: Bytes per second to another host.
    LINK = "link"
    #: Seconds of a round trip to another host.
    ROUND_TRIP = "round_trip"


class HostCheckRule(StrEnum):
    """Check of the hosts of a gang between its grant and its launch."""

    #: No check.
    OFF = "off"
    #: A warning in the task log names slow hosts, and the gang starts.
    WARN = "warn"
    #: The trial leaves slow hosts out, if other hosts can serve it.
    EXCLUDE = "exclude"
    #: The same, and such a host is drained: other gangs there resume elsewhere.
    EVACUATE = "evacuate"


#: Metric -> name in sentences, unit, and divisor for it.
_SHOWN: Mapping[RateMetric, tuple[str, str, float]] = {
    RateMetric.MATMUL: ("matrix products", "TFLOP/s", 1e12),
    RateMetric.MEMORY: ("memory", "GB/s", 1e9),
    RateMetric.DISK_WRITE: ("disk writes", "MB/s", 1e6),
    RateMetric.DISK_READ: ("disk reads", "MB/s", 1e6),
    RateMetric.LINK: ("network", "MB/s", 1e6),
    RateMetric.ROUND_TRIP: ("round trip", "ms", 1e-3),
}
#: Largest believable value. A host that answers with more is in error.
_MOST: Mapping[RateMetric, float] = {
    RateMetric.MATMUL: 1e18,
    RateMetric.MEMORY: 1e15,
    RateMetric.DISK_WRITE: 1e13,
    RateMetric.DISK_READ: 1e13,
    RateMetric.LINK: 1e13,
    RateMetric.ROUND_TRIP: 60.0,
}


@dataclass(frozen=True, kw_only=True)
class HostRate:
    """One result of a host check."""

    host: str
    metric: RateMetric
    #: Values of one kind are compared: name of the device and how it was measured.
    kind: str
    #: In the unit of its metric.
    value: float
    #: Relative standard deviation of its repetitions.
    spread: float = 0.0
    #: Slot of a GPU; None: it concerns the whole host.
    slot: int | None = None
    #: Host to which a transfer went; None: it is not of a link.
    peer: str | None = None
    at: datetime | None = None

    @property
    def subject(self) -> tuple[str, RateMetric, str, int | None, str | None]:
        """Identity of what was measured, for its past."""
        return self.host, self.metric, self.kind, self.slot, self.peer

    @property
    def place(self) -> str:
        """Text for what was measured."""
        if self.peer is not None:
            return f"{self.host} to {self.peer}"
        return self.host if self.slot is None else f"{self.host} slot {self.slot}"

    @property
    def shown(self) -> str:
        """Value with its unit."""
        return shown_value(self.metric, self.value)


@dataclass(frozen=True, kw_only=True)
class SlowRate:
    """A rate that is below its reference, and is named."""

    rate: HostRate
    reference: float
    #: ``peers`` or ``past``
    basis: str

    @property
    def ratio(self) -> float:
        """Rate as a share of the reference, and for a round trip the reference as a share of it."""
        pair = (self.rate.value, self.reference)
        return pair[0] / pair[1] if self.rate.metric is not RateMetric.ROUND_TRIP else pair[1] / pair[0]

    @property
    def sentence(self) -> str:
        """Sentence for users, without the name of the host if it concerns the host alone."""
        rate = self.rate
        name = _SHOWN[rate.metric][0]
        if rate.peer is not None:
            name = f"{name} {rate.place}"
        elif rate.slot is not None:
            name = f"{name} of slot {rate.slot}"
        against = "its peers have" if self.basis == "peers" else "it had before"
        reference = shown_value(rate.metric, self.reference)
        if rate.metric is RateMetric.ROUND_TRIP:
            return f"{name}: {rate.shown}, {against} {reference}"
        return f"{name}: {rate.shown}, {below(self.ratio)} below the {reference} that {against}"


@dataclass(frozen=True, kw_only=True)
class HostFinding:
    """A sentence that names one host, or the two hosts of a link: a single link is no proof against either of them."""

    sentence: str
    hosts: tuple[str, ...]
    #: What it is about.
    rates: tuple[HostRate, ...]
    #: Share of the reference.
    ratio: float


def below(ratio: float) -> str:
    """Return by how much a rate is below its reference."""
    return f"{min(0.99, 1 - ratio):.0%}"


def shown_value(metric: RateMetric, value: float) -> str:
    """Return a value with its unit."""
    _, unit, divisor = _SHOWN[metric]
    return f"{value / divisor:.3g} {unit}" if value / divisor < 1000 else f"{value / divisor:.0f} {unit}"


def rates_of(host: str, results: Iterable[Any], slots: Iterable[int]) -> tuple[list[HostRate], list[str]]:
    """Return the rates and the problems that a host reports. What is no result is a problem.

    :param results: parsed JSON of a host, which is not trusted
    :param slots: slots that were measured
    """
    rates: list[HostRate] = []
    problems: list[str] = []
    known = {None, *slots}
    for result in results:
        if isinstance(result, Mapping) and isinstance(result.get("problem"), str):
            problems.append(escaped(result["problem"])[:500])
        elif isinstance(result, Mapping) and (rate := _rate(host, result, known)) is not None:
            if rate.subject not in {one.subject for one in rates}:
                rates.append(rate)
        else:
            problems.append("it sent a result that no measurement can have")
    return rates, list(dict.fromkeys(problems))


def in_order(rates: Iterable[HostRate]) -> list[HostRate]:
    """Return results in the order of lists: hosts with their slots, then links."""
    return sorted(rates, key=lambda one: (one.peer is not None, one.host, one.slot or 0, one.peer or ""))


def metric_name(metric: str) -> str:
    """Return the name of a metric in sentences."""
    return _SHOWN[RateMetric(metric)][0]


def metric_text(metric: str, value: float) -> str:
    """Return a value with its unit."""
    return shown_value(RateMetric(metric), value)


_DISK = frozenset({RateMetric.DISK_WRITE, RateMetric.DISK_READ})
#: Metrics that a host measures alone.
_REPORTED = (RateMetric.MATMUL, RateMetric.MEMORY, RateMetric.DISK_WRITE, RateMetric.DISK_READ)


def _rate(host: str, result: Mapping[str, Any], slots: set[int | None]) -> HostRate | None:
    kind, slot = result.get("kind"), result.get("slot")
    value: Any = result.get("value")
    spread: Any = result.get("spread", 0.0)
    of = next((one for one in _REPORTED if one == result.get("metric")), None)
    if of is None or not isinstance(kind, str):
        return None
    if not is_plausible(of, value) or isinstance(slot, bool) or not isinstance(slot, int | None) or slot not in slots:
        return None
    scatter = float(spread) if _is_number(spread) and 0 <= spread <= 10 else 10.0
    return HostRate(
        host=host, metric=of, kind=escaped(kind)[:_KIND_CHARS], value=float(value), spread=scatter, slot=slot
    )


def is_plausible(metric: RateMetric, value: Any) -> bool:
    """Return whether a value of a host can be a rate."""
    return _is_number(value) and 0 < value <= _MOST[metric]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rounds_of(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return the pairs of hosts in rounds. In a round each host is in one pair at most, and each pair comes once.

    Source: the circle method for round-robin tournaments.
    """
    ring: list[str | None] = list(hosts)
    if len(ring) % 2:
        ring.append(None)
    rounds = []
    for _ in range(len(ring) - 1):
        pairs = [(ring[i], ring[-1 - i]) for i in range(len(ring) // 2)]
        rounds.append([(one, other) for one, other in pairs if one is not None and other is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def ring_rounds_of(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return rounds in which each host has two neighbours: few rounds for any number of hosts."""
    if len(hosts) <= 4:
        return rounds_of(hosts)
    links = [(hosts[i], hosts[(i + 1) % len(hosts)]) for i in range(len(hosts))]
    last = links[-1:] if len(hosts) % 2 else []
    even = links[: len(links) - len(last)]
    return [one for one in (even[::2], even[1::2], last) if one]


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of the better half of repeated rates, and its relative deviation."""
    half = sorted(values)[len(values) // 2 :]
    middle = statistics.median(half)
    return middle, 1.4826 * statistics.median(abs(value - middle) for value in half) / middle


def better(one: HostRate, other: HostRate) -> HostRate:
    """Return the better of two measurements of the same subject."""
    is_trip = one.metric is RateMetric.ROUND_TRIP
    return min(one, other, key=lambda rate: rate.value) if is_trip else max(one, other, key=lambda rate: rate.value)


def slow_rates(
    now: Iterable[HostRate], peers: Iterable[HostRate], past: Iterable[HostRate], *, tolerance: float = TOLERANCE
) -> list[SlowRate]:
    """Return the measurements that are below those of their peers or of their own past, the slowest first.

    :param now: measurements of this check
    :param peers: latest measurements of hosts that this check has not measured
    :param past: earlier measurements of the subjects, the latest first
    :param tolerance: share below the reference that is still well, from 0 to 1
    """
    measured = list(now)
    alike = _Alike([*measured, *peers])
    before: dict[Any, list[HostRate]] = {}
    for rate in past:
        before.setdefault(rate.subject, []).append(rate)
    found = []
    for rate in measured:
        slow = [_slow(rate, alike.reference_of(rate), "peers", tolerance)]
        own = before.get(rate.subject, [])[:PAST_MOST]
        if len(own) >= PAST_LEAST:
            slow.append(_slow(rate, _Reference.of([one.value for one in own]), "past", tolerance))
        if named := [one for one in slow if one is not None]:
            found.append(min(named, key=lambda one: one.ratio))
    return sorted(found, key=lambda one: one.ratio)


@dataclass(frozen=True)
class _Reference:
    """Median of values, and their relative deviation."""

    value: float
    scatter: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Reference | None:
        if not values:
            return None
        middle = statistics.median(values)
        return cls(middle, 1.4826 * statistics.median(abs(value - middle) for value in values) / middle)


class _Alike:
    """Rates by metric and kind, and what each of them is compared with."""

    def __init__(self, rates: Iterable[HostRate]) -> None:
        self._rates: dict[tuple[RateMetric, str], list[HostRate]] = {}
        for rate in rates:
            self._rates.setdefault((rate.metric, rate.kind), []).append(rate)
        self._shared: dict[tuple[RateMetric, str], _Reference | None] = {}

    def reference_of(self, rate: HostRate) -> _Reference | None:
        """Return what a rate is compared with, None without peers.

        Links are compared with the links of each host, and devices with the other devices. Among many devices the own
        value has no weight, so that all of them share one reference.
        """
        key = rate.metric, rate.kind
        rates = self._rates[key]
        if rate.peer is None and len(rates) <= FEW:
            return _Reference.of([one.value for one in rates if one.subject != rate.subject])
        if key not in self._shared:
            values = [one.value for one in rates] if rate.peer is None else _of_hosts(rates)
            self._shared[key] = _Reference.of(values)
        return self._shared[key]


def _of_hosts(links: Sequence[HostRate]) -> list[float]:
    """Return for each host the median of the better half of its links.

    A host with a slow interface slows every link that it is part of, and its links may be the majority.
    """
    of_hosts: dict[str, list[float]] = {}
    for one in links:
        for host in (one.host, one.peer or one.host):
            of_hosts.setdefault(host, []).append(one.value)
    is_trip = links[0].metric is RateMetric.ROUND_TRIP
    halves = (sorted(values, reverse=is_trip)[len(values) // 2 :] for values in of_hosts.values())
    return [statistics.median(half) for half in halves]


def _slow(rate: HostRate, reference: _Reference | None, basis: str, tolerance: float) -> SlowRate | None:
    if reference is None:
        return None
    slow = SlowRate(rate=rate, reference=reference.value, basis=basis)
    if rate.metric is RateMetric.ROUND_TRIP:
        return slow if rate.value > max(TRIP_LEAST_S, TRIP_RATIO * reference.value) else None
    least = max(tolerance, DISK_TOLERANCE) if rate.metric in _DISK else tolerance
    limit = max(least, min(SURELY, DEVIATIONS * max(reference.scatter, rate.spread)))
    return slow if slow.ratio < 1 - limit and not _is_nominal(rate) else None


def _is_nominal(rate: HostRate) -> bool:
    """Return whether a link has the speed of its interface, which its kind names."""
    if rate.metric is not RateMetric.LINK:
        return False
    mbps, _, _ = rate.kind.partition(" ")
    return mbps.isdigit() and int(mbps) > 0 and rate.value >= NOMINAL * int(mbps) * 125_000


def link_kind(speeds_mbps: Iterable[int]) -> str:
    """Return the kind of a link between interfaces of these speeds, 0 or less for an unknown one."""
    speed = min(speeds_mbps)
    return f"{speed} Mbit/s" if speed > 0 else "unknown speed"


def blamed_links(now: Sequence[HostRate], slow: Sequence[SlowRate]) -> Iterator[tuple[str, str, list[SlowRate]]]:
    """Yield hosts of which every link in one direction is slow: host, direction and the slow links.

    Two links are needed: a single one may be the fault of the other host.
    """
    bad = {one.rate.subject: one for one in slow if one.rate.metric is RateMetric.LINK}
    links = [one for one in now if one.metric is RateMetric.LINK]
    hosts = sorted({one.host for one in links})
    for host in hosts:
        for direction, own in (
            ("sends", [one for one in links if one.host == host]),
            ("receives", [one for one in links if one.peer == host]),
        ):
            if len(own) >= 2 and all(one.subject in bad for one in own):
                yield host, direction, [bad[one.subject] for one in own]


def findings(now: Sequence[HostRate], slow: Sequence[SlowRate]) -> list[HostFinding]:
    """Return the sentences about slow hosts, the gravest first.

    A slow link is named at both of its hosts, unless all links of one host in one direction are slow: then this host
    is named, and the links are not.
    """
    found = []
    explained: set[Any] = set()
    for host, direction, links in blamed_links(now, slow):
        explained.update(one.rate.subject for one in links)
        best = max(links, key=lambda one: one.ratio)
        text = (
            f"network: it {direction} {best.rate.shown} at most, {below(best.ratio)} below the "
            f"{shown_value(RateMetric.LINK, best.reference)} that its peers have"
        )
        of = tuple(one.rate for one in links)
        found.append(HostFinding(sentence=text, hosts=(host,), rates=of, ratio=best.ratio))
    for one in slow:
        rate = one.rate
        if rate.subject not in explained:
            hosts = (rate.host,) if rate.peer is None else (rate.host, rate.peer)
            found.append(HostFinding(sentence=one.sentence, hosts=hosts, rates=(rate,), ratio=one.ratio))
    return sorted(found, key=lambda finding: finding.ratio)


def by_host(found: Iterable[HostFinding]) -> dict[str, list[str]]:
    """Return the sentences about each host that is named."""
    texts: dict[str, list[str]] = {}
    for finding in found:
        for host in finding.hosts:
            texts.setdefault(host, []).append(finding.sentence)
    return texts


def merged(first: Iterable[HostRate], again: Iterable[HostRate]) -> list[HostRate]:
    """Return the better measurement of each subject. A fault shows in every repetition, a disturbance does not."""
    found: dict[Any, HostRate] = {}
    for rate in (*first, *again):
        found[rate.subject] = better(found[rate.subject], rate) if rate.subject in found else rate
    return list(found.values())
