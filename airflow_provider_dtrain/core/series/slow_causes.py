"""Cause of a slow rank: the facts of its host beside those of the other ranks, as one sentence.

A fact is a cause only if it is large by itself and larger than that of the other ranks. The facts have an order: a
limit of the machine explains a slow loader, and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_provider_dtrain.core.series.step_times import median_of

#: Mean values over the compared time, by system metric.
Facts = Mapping[str, float]
#: Part of the excess that must be in the loader, so that the loader is the cause.
LOADER_PART = 0.5
#: Part of the other ranks' clock below which a clock is low.
LOW_CLOCK = 0.9


class SlowCause(StrEnum):
    """Cause of a slow rank, as far as facts of its host show it."""

    #: Another program uses its GPU.
    OTHER_PROCESSES = "other_processes"
    #: The clocks of its GPU are reduced because it is hot.
    GPU_THERMAL = "gpu_thermal"
    #: The hardware reduces the clocks of its GPU.
    GPU_HARDWARE = "gpu_hardware"
    #: The power limit reduces the clocks of its GPU.
    GPU_POWER = "gpu_power"
    #: The memory of its GPU has errors.
    GPU_MEMORY = "gpu_memory"
    #: Its GPU has a lower clock, for no reason that the driver gives.
    GPU_CLOCK = "gpu_clock"
    #: The CPU quota of its cgroup is used up.
    CPU_QUOTA = "cpu_quota"
    #: The hypervisor gives the CPU time to other machines.
    CPU_STEAL = "cpu_steal"
    #: It waits for a CPU that other processes use.
    CPU_WAIT = "cpu_wait"
    #: Its host loses packets.
    NETWORK = "network"
    #: Processes of its host wait for the disk.
    DISK = "disk"
    #: Its data loader is slow.
    LOADER = "loader"
    #: The CPUs of its host have a lower clock.
    CPU_CLOCK = "cpu_clock"
    #: No cause is visible.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Facts about one rank: of its host, its GPU and itself."""

    system: Facts = field(default_factory=dict)
    #: Mean time per step of each part of a step, seconds; ``backward`` without the exchange.
    parts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Cause of a slow rank in words."""

    cause: SlowCause
    #: One sentence or two, without the rank.
    text: str
    advice: str


@dataclass(frozen=True)
class _Check:
    cause: SlowCause
    #: Metric that shows it, its least value, and its least distance from the median of the other ranks.
    metric: str
    least: float
    distance: float
    #: Returns a sentence.
    text: Callable[[Facts, Facts], str]
    advice: str


def _clock(own: Facts, peers: Facts) -> str:
    """Return the GPU's clock and temperature in brackets."""
    known = []
    if "gpu_clock" in own:
        other = f", the other GPUs {peers['gpu_clock']:.0f} MHz" if "gpu_clock" in peers else ""
        known.append(f"{own['gpu_clock']:.0f} MHz{other}")
    if "gpu_temperature" in own:
        known.append(f"{own['gpu_temperature']:.0f} °C")
    return f" ({'; '.join(known)})" if known else ""


_BEFORE_LOADER = (
    _Check(
        SlowCause.OTHER_PROCESSES, "gpu_other_processes", 0.5, 0.5,
        lambda own, _: f"{_number(own['gpu_other_processes'], 'process')} of another program use its GPU.",
        "End them, or disable the slot: airflow dtrain hosts disable HOST --slot N.",
    ),
    _Check(
        SlowCause.GPU_THERMAL, "gpu_thermal_slowdown", 10, 10,
        lambda own, peers: f"its GPU is too hot and its clocks are reduced in {own['gpu_thermal_slowdown']:.0f} % of "
        f"the time{_clock(own, peers)}.",
        "Check fans and air flow of the host.",
    ),
    _Check(
        SlowCause.GPU_HARDWARE, "gpu_hardware_slowdown", 10, 10,
        lambda own, peers: f"the hardware reduces the clocks of its GPU in {own['gpu_hardware_slowdown']:.0f} % of the "
        f"time{_clock(own, peers)}.",
        "Check power supply and cooling of the host (nvidia-smi -q -d PERFORMANCE).",
    ),
    _Check(
        SlowCause.GPU_POWER, "gpu_power_slowdown", 10, 25,
        lambda own, peers: f"its power limit reduces the clocks of its GPU in {own['gpu_power_slowdown']:.0f} % of the "
        f"time{_clock(own, peers)}.",
        "Compare the power limits of the hosts: nvidia-smi -q -d POWER.",
    ),
    _Check(
        SlowCause.CPU_QUOTA, "cpu_throttled", 10, 10,
        lambda own, _: f"the CPU quota of its cgroup is used up in {own['cpu_throttled']:.0f} % of the periods.",
        "Raise the quota (cpu.max, CPUQuota=, or the CPU limit of the container), or start fewer workers and threads.",
    ),
    _Check(
        SlowCause.CPU_STEAL, "cpu_steal", 5, 5,
        lambda own, _: f"the hypervisor gives {own['cpu_steal']:.0f} % of the CPU time of its host to other machines.",
        "Move the virtual machine, or give it CPUs of its own.",
    ),
    _Check(
        SlowCause.CPU_WAIT, "cpu_wait", 10, 10,
        lambda own, _: f"it is ready to run and waits for a CPU in {own['cpu_wait']:.0f} % of the time"
        + (f" (CPU utilization of its host {own['cpu_util']:.0f} %)." if "cpu_util" in own else "."),
        "Find the processes that use its CPUs (top), or give the rank CPUs of its own.",
    ),
)  # fmt: skip
_AFTER_LOADER = (
    _Check(
        SlowCause.DISK, "io_pressure", 20, 20,
        lambda own, _: f"processes of its host wait for the disk in {own['io_pressure']:.0f} % of the time.",
        "Find the processes that use the disk (iotop), or copy the data to a local disk.",
    ),
    _Check(
        SlowCause.NETWORK, "net_retransmitted", 1, 1,
        lambda own, _: f"its host sends {own['net_retransmitted']:.1f} % of its TCP segments again.",
        "Check cable, port and MTU of the host.",
    ),
    _Check(
        SlowCause.NETWORK, "net_errors", 1, 1,
        lambda own, _: f"the network interfaces of its host count {own['net_errors']:.1f} errors per second.",
        "Check cable and port of the host (ip -s link).",
    ),
    _Check(
        SlowCause.GPU_MEMORY, "gpu_ecc_errors", 0.5, 0.5,
        lambda own, _: f"its GPU counts {_number(own['gpu_ecc_errors'], 'memory error')} that ECC could not correct.",
        "Reset or replace the GPU.",
    ),
)  # fmt: skip
_LOADER_ADVICE = "Raise num_workers, or copy the data to a local disk of the host."


def usual_facts(peers: Sequence[RankFacts]) -> RankFacts:
    """Return the medians of the facts of several ranks."""
    return RankFacts(system=_middle([one.system for one in peers]), parts=_middle([one.parts for one in peers]))


def find_cause(rank: RankFacts, usual: RankFacts) -> Finding:
    """Return the cause of a slow rank that the facts show.

    :param rank: the slow rank
    :param usual: medians of the ranks of its gang that are not slow
    """
    own, other = rank.system, usual.system
    if (found := _first(_BEFORE_LOADER, own, other)) is not None:
        return found
    part, excess = _slow_part(rank.parts, usual.parts)
    after = _first(_AFTER_LOADER, own, other)
    if part == "dataloader_next" and excess >= LOADER_PART:
        reason = f" Also, {after.text}" if after is not None else ""
        text = f"it waits for its data loader, which is {100 * min(1.0, excess):.0f} % of the difference.{reason}"
        advice = after.advice if after is not None else _LOADER_ADVICE
        return Finding(cause=SlowCause.LOADER, text=text, advice=advice)
    if after is not None:
        return after
    for metric, cause, subject, advice in (
        ("gpu_clock", SlowCause.GPU_CLOCK, "its GPU runs", "Compare nvidia-smi -q -d CLOCK on the hosts."),
        ("cpu_clock", SlowCause.CPU_CLOCK, "the CPUs of its host run", "Check governor and cooling of the host."),
    ):
        if metric in own and metric in other and own[metric] < LOW_CLOCK * other[metric]:
            text = f"{subject} at {own[metric]:.0f} MHz, those of the other ranks at {other[metric]:.0f} MHz."
            return Finding(cause=cause, text=text, advice=advice)
    where = f" Most of the difference is in {part}." if part is not None and excess >= LOADER_PART else ""
    return Finding(
        cause=SlowCause.UNKNOWN,
        text=f"no cause is visible in the measurements of its host.{where}",
        advice="Its batches may be larger or its code may do more: see the parts of a step on the trial's page.",
    )


def straggler_text(rank: int, host: str, ratio: float, cost: float, reason: str, since: str | None = None) -> str:
    """Return the sentences that name a slow rank: its ratio, since when, its cost and its cause.

    :param reason: facts and advice
    :param since: time in words; None: it is shown beside the text
    """
    start = "" if since is None else f" since {since}"
    return (
        f"Rank {rank} on {host} takes {ratio:.1f} times as long as the other ranks{start} (it costs the gang "
        f"{100 * cost:.0f} % of each step): {reason}"
    )


def _first(checks: Sequence[_Check], own: Facts, other: Facts) -> Finding | None:
    for one in checks:
        value = own.get(one.metric)
        if value is not None and value >= one.least and value - other.get(one.metric, 0.0) >= one.distance:
            return Finding(cause=one.cause, text=one.text(own, other), advice=one.advice)
    return None


def _middle(facts: Sequence[Facts]) -> dict[str, float]:
    names = {name for one in facts for name in one}
    found = {name: median_of([one.get(name) for one in facts]) for name in sorted(names)}
    return {name: value for name, value in found.items() if value is not None}


def _slow_part(own: Facts, other: Facts) -> tuple[str | None, float]:
    """Return the part of a step with the largest excess, and its part of the whole excess, 0 to 1."""
    excess = {name: value - other.get(name, 0.0) for name, value in own.items()}
    whole = sum(value for value in excess.values() if value > 0)
    if whole <= 0:
        return None, 0.0
    part = max(excess, key=excess.__getitem__)
    return part, excess[part] / whole


def _number(value: float, noun: str) -> str:
    count = max(1, round(value))
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
