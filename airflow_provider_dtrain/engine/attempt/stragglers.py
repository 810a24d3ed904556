"""Slow ranks of a running gang: named in the task log, in the store and by a notification, with their cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.series.slow_causes import straggler_text
from airflow_provider_dtrain.core.series.stragglers import Changes, Place, Straggler, StragglerWatch
from airflow_provider_dtrain.engine.session.threads import in_telemetry_thread

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.series.points import Key, Points
    from airflow_provider_dtrain.core.series.step_times import SlowRule
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Slow ranks of one host and cause that one check logs. The store has all of them.
LOGGED_MOST = 3


class StragglerReporter:
    """Reporter of the slow ranks of one gang, from the telemetry that its follower collects anyway."""

    def __init__(self, rt: Runtime, view: AttemptView, rule: SlowRule) -> None:
        self.rt = rt
        self._attempt_id = view.attempt_id
        self._places = places_of(view)
        self._rule = rule
        self._watch: StragglerWatch | None = None

    async def take(self, parts: Mapping[str, Mapping[Key, Points]]) -> None:
        """Add measurements, and report what has changed.

        :param parts: host -> its new points
        :raises StaleWatchError: another process follows the attempt
        """
        if len(self._places) < 2:
            return
        if self._watch is None:
            named = await in_telemetry_thread(self.rt.store.stragglers.current, self._attempt_id)
            self._watch = StragglerWatch(self._places, self._rule, named)
        changes = await in_telemetry_thread(_checked, self._watch, parts)
        if changes != Changes():
            watch, self._watch = self._watch, None
            await self.rt.db(self.rt.store.stragglers.record, self._attempt_id, self.rt.watch, changes)
            # Only now: what could not be stored is found again by a new watch.
            self._watch = watch
            self._log(changes)

    def _log(self, changes: Changes) -> None:
        for word, several in (("", changes.named), ("Another cause: ", changes.changed)):
            logged: Counter[tuple[str, str]] = Counter()
            for one in several:
                logged[one.host, one.finding.cause] += 1
                if logged[one.host, one.finding.cause] <= LOGGED_MOST:
                    self.rt.log.warning("%s%s", word, text_of(one))
            for (host, _), count in logged.items():
                if count > LOGGED_MOST:
                    self.rt.log.warning("%d further ranks on %s are slow for this reason", count - LOGGED_MOST, host)
        for rank, at_s in changes.ended.items():
            host = self._places[rank].host
            self.rt.log.info("Rank %d on %s is as fast as the other ranks again since %s", rank, host, _time(at_s))
        if changes.named and self.rt.on_straggler is not None:
            self.rt.on_straggler(text_of(changes.named[0]))


def _checked(watch: StragglerWatch, parts: Mapping[str, Mapping[Key, Points]]) -> Changes:
    for host, series in parts.items():
        watch.add(host, series)
    return watch.check()


def text_of(one: Straggler) -> str:
    """Return the sentences that name a slow rank in the task log."""
    reason = f"{one.finding.text} {one.finding.advice}"
    return straggler_text(one.rank, one.host, one.ratio, one.cost, reason, _time(one.since_s))


def places_of(view: AttemptView) -> dict[int, Place]:
    """Return rank -> its place, by the launch plan of an attempt."""
    plans = (view.plan or {}).get("plans") or {}
    return {
        int(rank["rank"]): Place(host=host, device=str(rank.get("device") or ""))
        for host, plan in plans.items()
        for rank in plan.get("ranks", ())
    }


def _time(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S UTC")
