"""Results of host checks, and everything that is known of one host."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_dtrain.core.host_rates import HostRate, RateMetric
from airflow_provider_dtrain.resources.hosts import ClusterHost, Holder


@dataclass(frozen=True, kw_only=True)
class SlowReference:
    """Reference of a result that was named as slow."""

    #: ``peers`` or ``past``
    basis: str
    #: In the unit of the metric.
    reference: float


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """One result of a host check."""

    host: str
    #: Slot of a GPU; None: it concerns the whole host.
    slot: int | None
    #: Host to which a transfer went; None: it is not of a link.
    to: str | None
    metric: RateMetric
    #: In the unit of the metric: FLOP/s, bytes/s or seconds.
    value: float
    #: Relative standard deviation of its repetitions.
    spread: float
    #: Values of one kind are compared.
    kind: str
    slow: SlowReference | None = None
    #: Sentence that names it as slow.
    finding: str | None
    #: Time of an earlier result; None: it is of the present check.
    at: datetime | None = None

    @classmethod
    def of(
        cls, rate: HostRate, *, finding: str | None, slow: SlowReference | None = None, at: datetime | None = None
    ) -> MeasuredRate:
        """Return a result with what was found about it."""
        return cls(
            host=rate.host,
            slot=rate.slot,
            to=rate.peer,
            metric=rate.metric,
            value=rate.value,
            spread=rate.spread,
            kind=rate.kind,
            slow=slow,
            finding=finding,
            at=at,
        )


@dataclass(frozen=True, kw_only=True)
class HostTexts:
    """Sentences about a host."""

    host: str
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class HostCheck:
    """Outcome of a host check."""

    #: The hosts that were to be measured.
    hosts: list[str]
    rates: list[MeasuredRate]
    #: What could not be measured.
    problems: list[HostTexts] = field(default_factory=list)
    #: Slow hosts.
    findings: list[HostTexts] = field(default_factory=list)
    #: What became of the slow hosts that were to be drained, in sentences.
    evacuated: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class HostFact:
    """A fact of the last probe in words."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class HostDescription:
    """One host: state, slots, holders, facts of its last probe, and the latest results of its checks."""

    host: ClusterHost
    #: Id of the allocation -> the gang, of gangs that hold its slots.
    holders: dict[str, Holder]
    #: Time of the last probe; None: it was not probed yet.
    probed_at: datetime | None
    #: Empty for users who may not edit its connection.
    facts: list[HostFact]
    #: The latest result of each device, disk and link.
    rates: list[MeasuredRate]
