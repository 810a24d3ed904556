"""Measurements of hosts: lines of their files become points, and everything else becomes a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dtrain.core.event_log import read_measurements
from airflow_provider_dtrain.core.series.metrics import CALLBACKS, OF_RANKS, SYSTEM_METRICS, CallbackNames, is_of_gpu
from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.core.series.step_times import RANK_METRICS

#: Largest value, and largest number of measurements in one line.
LARGEST, COUNT_MOST = 1e18, 10**9
#: Microseconds in the unit of timings.
_SECOND = 1e6
_RANK_METRICS = frozenset(RANK_METRICS) - {CALLBACKS}
_NUMBERS = frozenset((int, float))
#: Count, sum, minimum and maximum of one second.
_Second = list[float]
#: A value that is not accepted.
_REFUSED = (None, None)


_LIMITS = {name: 100.0 if unit == "%" else LARGEST for name, unit in SYSTEM_METRICS.items()}
_GPU_METRICS = {name: limit for name, limit in _LIMITS.items() if is_of_gpu(name)}
_RANK_FACTS = {name: limit for name, limit in _LIMITS.items() if name in OF_RANKS}
_HOST_METRICS = {name: _LIMITS[name] for name in _LIMITS if name not in _GPU_METRICS and name not in _RANK_FACTS}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A file of measurements: its writer, and the devices whose figures it may have.

    :param rank: None for the file of the host
    :param devices: UUIDs of the GPUs that the attempt has on the host
    :param callbacks: callbacks that the rank has measured so far
    :param ranks: ranks that the attempt has on the host
    """

    rank: int | None
    devices: frozenset[str] = frozenset()
    callbacks: CallbackNames = field(default_factory=CallbackNames, compare=False)
    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Clocks of a host relative to the one of the Airflow machine.

    :param boot_s: the host's time since its boot minus Unix time here; a step of the host's clock does not change it
    :param wall_s: the host's Unix time minus the one here, for lines of a host without that clock
    """

    boot_s: float | None
    wall_s: float

    def at(self, line: Mapping[str, Any]) -> float:
        """Return the Unix time here at which a line was written."""
        boot = line.get("boot")
        if self.boot_s is not None and isinstance(boot, int | float):
            return float(boot) - self.boot_s if 0 <= boot < LARGEST else -1.0
        return float(line["at"]) - self.wall_s


@dataclass
class Reading:
    """Content of some bytes of a file of measurements."""

    series: dict[Key, Points] = field(default_factory=dict)
    #: Code -> lines, bytes, and Unix time of the first one.
    gaps: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    #: Bytes up to the end of the last whole line.
    taken: int = 0
    #: Unix time of the latest line.
    last_s: float = 0.0

    def miss(self, code: str, at: float, lines: int, size: int) -> None:
        """Count lines that are left out."""
        found = self.gaps.get(code, (0, 0, at))
        self.gaps[code] = (found[0] + lines, found[1] + size, min(found[2], at))


def read(data: bytes, source: Measured, clock: Clock, *, earliest_s: float, latest_s: float) -> Reading:
    """Return the points in some bytes of a file of measurements, one per second and series. Raises nothing.

    :param data: bytes of the file; an unfinished line at their end is left for the next call
    :param earliest_s: Unix time before which a line is a gap: clocks jump, and hosts lie
    :param latest_s: Unix time after which a line is a gap
    """
    found = Reading()
    seconds: dict[Key, dict[int, _Second]] = {}
    for line in read_measurements(data):
        found.taken = line.start + line.size
        if line.event is None:
            found.miss(line.code, latest_s, 1, line.size)
            continue
        values = _VALUES.get((line.event["kind"], source.rank is None))
        if values is None:
            continue
        at = clock.at(line.event)
        if not earliest_s <= at <= latest_s:
            found.miss("clock", latest_s, 1, line.size)
            continue
        found.last_s = max(found.last_s, at)
        refused = 0
        for key, second in values(line.event, source):
            if key is None or second is None:
                refused += 1
            else:
                _add(seconds.setdefault(key, {}), int(at), second)
        if refused:
            found.miss("value", at, refused, 0)
    found.series = {key: _points(by_second) for key, by_second in seconds.items()}
    return found


def _add(by_second: dict[int, _Second], at: int, second: _Second) -> None:
    known = by_second.get(at)
    if known is None:
        by_second[at] = second
    else:
        known[0] += second[0]
        known[1] += second[1]
        known[2] = min(known[2], second[2])
        known[3] = max(known[3], second[3])


def _points(by_second: Mapping[int, _Second]) -> Points:
    at = sorted(by_second)
    seconds = [by_second[second] for second in at]
    means = [min(max(total / count, low), high) for count, total, low, high in seconds]
    lows, highs = [float(second[2]) for second in seconds], [float(second[3]) for second in seconds]
    return Points(at, [int(second[0]) for second in seconds], means, lows, highs)


Values = Iterator[tuple[Key | None, _Second | None]]


def _system(line: Mapping[str, Any], source: Measured) -> Values:
    """Yield the values of a line of a host, None for one that is not accepted."""
    yield from _figures(line, _HOST_METRICS)
    gpus, ranks = line.get("gpus"), line.get("ranks")
    for gpu in gpus if isinstance(gpus, list) else ():
        uuid = gpu.get("uuid") if isinstance(gpu, dict) else None
        if isinstance(uuid, str) and uuid in source.devices:
            yield from _figures(gpu, _GPU_METRICS, uuid)
        else:
            yield _REFUSED
    for one in ranks if isinstance(ranks, list) else ():
        rank = one.get("rank") if isinstance(one, dict) else None
        if type(rank) is int and rank in source.ranks:
            yield from _figures(one, _RANK_FACTS, rank=rank)
        else:
            yield _REFUSED


def _figures(values: Mapping[str, Any], most: Mapping[str, float], device: str = "", rank: int | None = None) -> Values:
    for name, limit in most.items():
        if (value := values.get(name)) is not None:
            fits = type(value) in _NUMBERS and 0 <= value <= limit
            yield Key(name, device, rank), [1, value, value, value] if fits else None


def _timings(line: Mapping[str, Any], source: Measured) -> Values:
    """Yield the timings of a line of a rank, None for one that is not accepted."""
    durations = line.get("us")
    rank = source.rank
    for name, sums in durations.items() if isinstance(durations, dict) else ():
        if name in _RANK_METRICS:
            yield Key(name, "", rank), _sums(sums)
        elif (callback := source.callbacks.series_of(name)) is not None:
            yield Key(CALLBACKS, callback, rank), _sums(sums)
        else:
            yield _REFUSED


def _sums(sums: object) -> _Second | None:
    """Return count, total, shortest and longest in seconds, None if they do not fit together."""
    if not isinstance(sums, list) or len(sums) != 4 or not _NUMBERS.issuperset(map(type, sums)):
        return None
    count, total, shortest, longest = sums
    if not (1 <= count <= COUNT_MOST and 0 <= shortest <= longest <= LARGEST and 0 <= total <= LARGEST):
        return None
    return [int(count), total / _SECOND, shortest / _SECOND, longest / _SECOND]


#: Kind of a line and whether the host writes it -> its values. Lines of other kinds have none.
_VALUES: Mapping[tuple[str, bool], Callable[[Mapping[str, Any], Measured], Values]] = {
    ("system", True): _system,
    ("timings", False): _timings,
}
