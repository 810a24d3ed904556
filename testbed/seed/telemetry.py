"""System metrics and timings of a simulated run, as its hosts would measure them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry
from testbed.seed.run import Run
from testbed.seed.simulation import Life

#: Seconds of a run that one commit holds: in the history, and in real time.
COMMIT_S, LIVE_S = 300, 10
GIB = 2.0**30
#: Parts of a step, with their share of it on a rank of usual speed. The exchange overlaps ``backward``.
STEP_PARTS = {
    "dataloader_next": 0.05, "to_device": 0.02, "train_batch": 0.93, "forward": 0.31, "backward": 0.5,
    "gradient_exchange": 0.22, "step_optimizer": 0.12,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Figures of a run's machines.

    :param every_s: seconds between two points
    :param step_s: seconds of one training step
    :param slow_rank: this rank needs longer for its own part of a step, so that the other ranks wait for it
    :param has_timings: False leaves the timings of the ranks out
    """

    every_s: int = 10
    step_s: float = 0.6
    slow_rank: int | None = None
    has_timings: bool = True
    seed: int = 0


def recorded(run: Run, machines: Machines) -> Life:
    """Store the telemetry of a trial while its attempts run."""
    since = int(run.site.clock.unix)
    while run.store.trials.get(run.trial_id).state in {"queued", "running", "paused"}:
        yield float(COMMIT_S if run.site.clock.now < run.site.end else LIVE_S)
        now = int(run.site.clock.unix)
        if run.ticket.attempt_id in run.site.leases:
            begin = max(since, int(run.started_s))
            record(run, machines, begin + -begin % machines.every_s, now)
        since = now


def record(run: Run, machines: Machines, start: int, end: int) -> None:
    """Store the telemetry of a span of time, in Unix seconds."""
    times = range(start, end, machines.every_s)
    if not times:
        return
    parts = []
    for index, (host, ranks) in enumerate(run.ranks.items()):
        noise = random.Random(f"{machines.seed}-{host}-{start}")  # noqa: S311
        series = {Key(metric): value for metric, value in _of_host(times, machines, index, noise).items()}
        for rank, slot in zip(ranks, run.placement[host], strict=True):
            if slot >= 0 and run.has_gpus:
                load = _curve(times, machines, 93 if rank != machines.slow_rank else 98, 4, noise, 0, 100)
                free = _curve(times, machines, 11 * GIB, 0.2 * GIB, noise, 0, 80 * GIB)
                device = f"GPU-{host}-{slot}"
                hot = _curve(times, machines, 58 + 3 * slot, 1, noise, 0, 110)
                power = _curve(times, machines, 285 + 11 * slot, 9, noise, 0, 400)
                series |= {Key("gpu_util", device): load, Key("gpu_free_memory", device): free}
                series |= {Key("gpu_temperature", device): hot, Key("gpu_power", device): power}
            if machines.has_timings:
                series |= _of_rank(times, machines, rank, noise)
        parts.append(HostTelemetry(host=host, series=series))
    run.store.telemetry.add(run.ticket.attempt_id, run.watch, parts)


def _of_host(times: range, machines: Machines, index: int, noise: random.Random) -> dict[str, Points]:
    usual = {
        "cpu_util": (38 + 5 * index, 6, 100), "memory_available": (620 * GIB, 4 * GIB, 1024 * GIB),
        "net_sent": (1.9e9, 2e8, 1e11), "net_recv": (1.9e9, 2e8, 1e11), "disk_iops": (420, 90, 1e6),
        "disk_read": (3.1e8, 6e7, 1e10), "disk_write": (4e6, 3e6, 1e10),
    }  # fmt: skip
    return {name: _curve(times, machines, mean, width, noise, 0, most) for name, (mean, width, most) in usual.items()}


def _of_rank(times: range, machines: Machines, rank: int, noise: random.Random) -> dict[Key, Points]:
    is_slow = rank == machines.slow_rank
    steps = max(1, round(machines.every_s / machines.step_s))
    found = {}
    for name, share in STEP_PARTS.items():
        # A slow rank computes for as long as the other ranks wait.
        factor = 0.06 if is_slow and name == "gradient_exchange" else 1.0
        found[Key(name, "", rank)] = _sampled(times, machines, steps, lambda _, share=share, factor=factor: (
            machines.step_s * share * factor * noise.uniform(0.97, 1.03)))  # fmt: skip
    return found


def _curve(times: range, machines: Machines, mean: float, width: float, noise: random.Random,
           least: float, most: float) -> Points:  # fmt: skip
    """Return points around a mean, which dip once in ten minutes as during a validation."""

    def value(at: int) -> float:
        dip = 0.35 if at % 600 < 40 else 1.0
        wave = math.sin(at / 170) * width / 2
        return min(most, max(least, (mean + wave + noise.gauss(0, width / 3)) * dip))

    return _sampled(times, machines, machines.every_s, value, spread=width / 4, most=most)


def _sampled(times: range, machines: Machines, count: int, value: Callable[[int], float], *,
             spread: float = 0.0, most: float = math.inf) -> Points:  # fmt: skip
    found = Points()
    for at in times:
        mean = value(at)
        found.add(at, count, mean, max(0.0, mean - spread), min(most, mean + spread))
    return found
