"""Stragglers of a running gang: ranks that were slow over the time of the rule, by the measurements of that time.

The window keeps sums per time bucket, so that its cost does not depend on the length of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_dtrain.core.series.metrics import SYSTEM_METRICS
from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.core.series.slow_causes import Finding, RankFacts, SlowCause, find_cause, usual_facts
from airflow_provider_dtrain.core.series.step_times import (
    BUCKET_S,
    EXCHANGE,
    OF_STEP,
    SLOW_MOMENTS,
    STEP,
    WHOLE,
    Comparison,
    Pace,
    SlowRule,
    compare,
    pace_of,
)

#: Time buckets that are kept in addition to those of the rule: the current one, and those of hosts that are read late.
SPARE_BUCKETS = 3
_TIMINGS = frozenset((*OF_STEP, STEP, WHOLE, EXCHANGE))
#: Consecutive checks with another cause after which the cause of a named rank has changed.
CHANGE_CHECKS = 3


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a rank."""

    host: str
    #: UUID of its GPU; empty without one.
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A slow rank of a running gang."""

    rank: int
    host: str
    #: Unix seconds.
    since_s: int
    #: Its busy time per step divided by that of the other ranks.
    ratio: float
    #: Part of each step that it costs the gang, 0 to 1.
    cost: float
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Differences between two checks of a gang."""

    #: Slow ranks that were not slow before, slowest first.
    named: tuple[Straggler, ...] = ()
    #: Slow ranks whose cause has changed.
    changed: tuple[Straggler, ...] = ()
    #: Rank -> Unix seconds from which it is as fast as the other ranks again.
    ended: Mapping[int, int] = field(default_factory=dict)


class StragglerWatch:
    """Slow ranks of one gang, as measurements arrive.

    :param places: rank -> its place
    :param named: ranks that an earlier follower of the gang has named -> the cause
    """

    def __init__(
        self, places: Mapping[int, Place], rule: SlowRule, named: Mapping[int, SlowCause] | None = None
    ) -> None:
        self._places = places
        self._rule = rule
        self._named: dict[int, SlowCause] = dict(named or {})
        self._other_cause: dict[int, int] = {}
        #: Series -> start of a bucket -> count and sum.
        self._sums: dict[tuple[str, Key], dict[int, list[float]]] = {}
        #: Rank -> steps in the buckets that were removed.
        self._steps_before: dict[int, int] = {}
        self._latest_s = 0

    @property
    def _kept_s(self) -> int:
        return (-int(-self._rule.after_s // BUCKET_S) + SPARE_BUCKETS) * BUCKET_S

    def add(self, host: str, series: Mapping[Key, Points]) -> None:
        """Add measurements of a host. Those of unknown ranks and those before the window are left out."""
        for key, points in series.items():
            is_known = key.metric in SYSTEM_METRICS or key.metric in _TIMINGS
            if not is_known or not points.at or (key.rank is not None and key.rank not in self._places):
                continue
            sums = self._sums.setdefault((host, key), {})
            for at, count, mean in zip(points.at, points.count, points.mean, strict=True):
                bucket = sums.setdefault(at - at % BUCKET_S, [0.0, 0.0])
                bucket[0] += count
                bucket[1] += count * mean
            self._latest_s = max(self._latest_s, points.at[-1])

    def check(self) -> Changes:
        """Return what has changed since the last check, in n log n of the number of ranks."""
        self._remove_old()
        at = self._buckets()
        paces = {rank: pace for rank in self._places if (pace := self._pace(rank, at)) is not None}
        found = compare(paces, self._rule, BUCKET_S)
        slow = sorted((rank for rank, one in found.items() if one.is_slow), key=lambda rank: -found[rank].ratio)
        usual = usual_facts([self._facts(rank) for rank in paces if rank not in slow] if slow else [])
        current = {rank: self._straggler(rank, found[rank], at, usual) for rank in slow}
        named = tuple(current[rank] for rank in slow if rank not in self._named)
        changed = tuple(one for rank, one in current.items() if rank in self._named and self._has_changed(one))
        ended = {rank: self._end(rank, paces, at) for rank in self._named if self._is_over(found.get(rank))}
        self._named.update((one.rank, one.finding.cause) for one in (*named, *changed))
        for rank in ended:
            del self._named[rank]
        return Changes(named=named, changed=changed, ended=ended)

    def _is_over(self, one: Comparison | None) -> bool:
        return one is not None and one.slow_part <= 1 - SLOW_MOMENTS and one.ratio <= self._rule.share

    def _has_changed(self, one: Straggler) -> bool:
        """Return whether a named rank has had another visible cause in the last checks."""
        if one.finding.cause in (self._named[one.rank], SlowCause.UNKNOWN):
            self._other_cause.pop(one.rank, None)
            return False
        self._other_cause[one.rank] = self._other_cause.get(one.rank, 0) + 1
        return self._other_cause[one.rank] >= CHANGE_CHECKS and self._other_cause.pop(one.rank) > 0

    def _straggler(self, rank: int, one: Comparison, at: Sequence[int], usual: RankFacts) -> Straggler:
        return Straggler(
            rank=rank,
            host=self._places[rank].host,
            since_s=at[one.since or 0],
            ratio=one.ratio,
            cost=one.cost,
            finding=find_cause(self._facts(rank), usual),
        )

    def _end(self, rank: int, paces: Mapping[int, Pace], at: Sequence[int]) -> int:
        """Return the start of the first bucket in which a rank was as fast as the others."""
        others = [pace for other, pace in paces.items() if other != rank]
        first = at[-1]
        for index in reversed(range(len(at))):
            own = paces[rank].moments[index]
            known = sorted(moment for pace in others if (moment := pace.moments[index]) is not None)
            if own is None or not known:
                continue
            if own > self._rule.share * known[len(known) // 2]:
                break
            first = at[index]
        return first

    def _remove_old(self) -> None:
        oldest = self._latest_s - self._latest_s % BUCKET_S - self._kept_s
        for (_, key), sums in self._sums.items():
            for start in [start for start in sums if start <= oldest]:
                count = int(sums.pop(start)[0])
                if key.metric in (STEP, WHOLE) and key.rank is not None:
                    self._steps_before[key.rank] = self._steps_before.get(key.rank, 0) + count

    def _buckets(self) -> list[int]:
        starts = [start for (_, key), sums in self._sums.items() if key.rank is not None for start in sums]
        return list(range(min(starts), max(starts) + 1, BUCKET_S)) if starts else []

    def _pace(self, rank: int, at: Sequence[int]) -> Pace | None:
        of = self._places[rank]
        sums = {name: self._sums.get((of.host, Key(name, "", rank)), {}) for name in _TIMINGS}
        whole = sums[STEP] or sums[WHOLE]
        parts = [sums[name] for name in OF_STEP] if sums[STEP] else [whole]
        counts = [int(whole[start][0]) if start in whole else 0 for start in at]
        totals = [sum(part[start][1] for part in parts if start in part) for start in at]
        steps = [total / count if count else None for total, count in zip(totals, counts, strict=True)]
        exchanges = [_mean(sums[EXCHANGE].get(start)) for start in at]
        return pace_of(steps, exchanges, counts, self._steps_before.get(rank, 0))

    def _facts(self, rank: int) -> RankFacts:
        """Return the means of a rank's facts over the time of the rule."""
        of = self._places[rank]
        system = {
            name: mean
            for name in SYSTEM_METRICS
            for key in (Key(name), Key(name, of.device), Key(name, "", rank))
            if (mean := self._recent(of.host, key)) is not None
        }
        count = sum(sums[0] for sums in self._sums.get((of.host, Key(STEP, "", rank)), {}).values())
        parts = {name: self._total(of.host, Key(name, "", rank)) / count for name in OF_STEP} if count else {}
        exchange = _mean([sum(column) for column in zip(*self._values(of.host, Key(EXCHANGE, "", rank)), strict=True)])
        if "backward" in parts:
            parts["backward"] = max(0.0, parts["backward"] - (exchange or 0.0))
        return RankFacts(system=system, parts=parts)

    def _values(self, host: str, key: Key) -> Iterable[list[float]]:
        return self._sums.get((host, key), {}).values()

    def _total(self, host: str, key: Key) -> float:
        return sum(total for _, total in self._values(host, key))

    def _recent(self, host: str, key: Key) -> float | None:
        since = self._latest_s - self._rule.after_s
        sums = [one for start, one in self._sums.get((host, key), {}).items() if start + BUCKET_S > since]
        return _mean([sum(column) for column in zip(*sums, strict=True)]) if sums else None


def _mean(sums: Sequence[float] | None) -> float | None:
    return sums[1] / sums[0] if sums and sums[0] else None
