"""Watchdog of one gang: names the ranks that block it, and decides when the gang must end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.failure_cause import CauseKind, kind_of_error
from airflow_provider_dtrain.core.lifecycle.rank_text import clock
from airflow_provider_dtrain.core.lifecycle.timing import HANG_SEEN_S, REPORT_FRESH_S, STOPPED_S
from airflow_provider_dtrain.core.lifecycle.watchdog import Behind, GangVerdict, RankReport, judge, places_text
from airflow_provider_dtrain.errors import DtrainError, ProcessStuckError, RankHangsError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hosts.wire import ProgressFrame

#: Consecutive reports after which a live rank is named. A single one may have been written right after a pause of the
#: whole machine, before any rank could make progress.
POLLS = 2


class GangWatchdog:
    """State of the watchdog for one gang and one follower.

    :param hosts: hosts of the gang
    :param hang_timeout_s: seconds that a rank may block its gang before the gang is ended
    :param log: gets one line when a rank is named, one when it resumes
    """

    def __init__(self, hosts: Iterable[str], hang_timeout_s: float, log: logging.Logger | TaskLog) -> None:
        self._hosts = tuple(hosts)
        self._hang_timeout_s = hang_timeout_s
        self._log = log
        #: host -> time.monotonic() when its latest report arrived, and the report
        self._reports: dict[str, tuple[float, ProgressFrame]] = {}
        #: rank -> number of consecutive reports in which it is behind
        self._polls: dict[int, int] = {}
        #: rank -> time.monotonic() when it was named, and its latest state
        self.named: dict[int, tuple[float, Behind]] = {}
        self._lagging: dict[int, float] = {}
        #: Longest stall of a live rank that ended by itself, seconds.
        self._longest_s = 0.0
        self._judged: dict[str, float] = {}
        self._verdict = GangVerdict()
        self._supervisors: set[str] = set()

    def take(self, host: str, progress: ProgressFrame) -> None:
        """Record a host's report. The link's reader thread calls it, so it returns at once."""
        self._reports[host] = time.monotonic(), progress

    def check(self, ended: Mapping[str, str] | Iterable[str] = ()) -> DtrainError | None:
        """Judge the latest reports, and return the error that ends the gang, or None.

        :param ended: hosts whose part of the gang has ended
        """
        now = time.monotonic()
        over = set(ended)
        fresh = {
            host: report
            for host, (came_at, report) in list(self._reports.items())
            if now - came_at < REPORT_FRESH_S and host not in over
        }
        readings = {host: report.boottime_s for host, report in fresh.items()}
        if readings == self._judged:
            return self._end(now)
        self._judged = readings
        self._check_supervisors(fresh)
        reports = [rank for report in fresh.values() for rank in report.ranks]
        complete = len(fresh) == len(set(self._hosts) - over)
        verdict = judge(reports, complete=complete, longest_s=self._longest_s)
        self._verdict = verdict
        self._learn(verdict, {one.rank: one for one in reports})
        # Without a report from every host, nothing is claimed about live ranks: they may hang or have resumed.
        quiet = set() if complete else {rank for rank, (_, one) in self.named.items() if not one.report.is_stopped}
        self._name(verdict, {one.rank for one in reports} - quiet, now)
        return self._end(now)

    def _learn(self, verdict: GangVerdict, reports: Mapping[int, RankReport]) -> None:
        """Record the longest stall after which a live rank resumed by itself."""
        for rank, stood_s in self._lagging.items():
            report = reports.get(rank)
            if report is not None and report.still_s < stood_s and not report.is_stopped:
                self._longest_s = max(self._longest_s, stood_s)
        stopped = {one.report.rank for one in verdict.behind if one.kind == "infra"}
        self._lagging = {rank: stood_s for rank, stood_s in verdict.lagging.items() if rank not in stopped}

    def _name(self, verdict: GangVerdict, seen: set[int], now: float) -> None:
        behind = {one.report.rank: one for one in verdict.behind}
        self._polls = {rank: self._polls.get(rank, 0) + 1 for rank in behind}
        fresh = []
        for rank, one in behind.items():
            if rank in self.named:
                self.named[rank] = self.named[rank][0], one
            elif one.why in ("stopped", "traced") or self._polls[rank] >= POLLS:
                self.named[rank] = now, one
                fresh.append(one)
        if fresh:
            self._log.warning("%s", text_of(fresh, verdict))
        for rank in sorted(set(self.named) & seen - set(behind)):
            one = self.named.pop(rank)[1]
            self._log.info("Rank %d on %s resumed after %.0f s", rank, one.report.host, one.for_s)

    def _end(self, now: float) -> DtrainError | None:
        least_s = min(HANG_SEEN_S, self._hang_timeout_s)
        for named_at, one in sorted(self.named.values(), key=lambda pair: -pair[1].for_s):
            if now - named_at < least_s:
                continue
            if one.why == "mismatch":
                apart = [other for _, other in self.named.values() if other.why == "mismatch"]
                mismatch = _mismatch_text(apart)
                return RankHangsError(mismatch, rank=one.report.rank, host=one.report.host, cause_kind="mismatch")
            if one.for_s < self._hang_timeout_s:
                continue
            limit = f"The gang is ended: hang_timeout is {self._hang_timeout_s:g} s."
            if one.why == "together":
                together = [other for _, other in self.named.values() if other.why == "together"]
                return RankHangsError(f"{_together_text(together)} {limit}", cause_kind="mismatch")
            if one.why == "raised":
                kind = kind_of_error(one.report.raised) or CauseKind.EXCEPTION
                message = _after_error_text(one, limit)
                return RankHangsError(message, rank=one.report.rank, host=one.report.host, cause_kind=kind.value)
            waits = self._verdict.waits_text(one, time.time())
            message = f"{_sentence(f'{one.text}: {waits}' if waits else one.text)} {limit}"
            if one.kind == "infra":
                return ProcessStuckError(one.report.host, f"{message} Find out on that host which process stopped it.")
            return RankHangsError(message, rank=one.report.rank, host=one.report.host)
        return None

    def _check_supervisors(self, fresh: Mapping[str, ProgressFrame]) -> None:
        stopped = {host for host, report in fresh.items() if report.supervisor_stopped_s >= STOPPED_S}
        for host in sorted(stopped - self._supervisors):
            self._log.warning(
                "The supervisor on %s is stopped by a signal: its ranks keep running, but their time limits are "
                "suspended. Send it SIGCONT.",
                host,
            )
        for host in sorted((self._supervisors - stopped) & set(fresh)):
            self._log.info("The supervisor on %s has resumed", host)
        self._supervisors = stopped | (self._supervisors - set(fresh))


def text_of(behind: list[Behind], verdict: GangVerdict) -> str:
    """Return one line that names the ranks that block the gang, and the ranks that wait."""
    if all(one.why == "mismatch" for one in behind):
        return f"{_mismatch_text(behind)} The gang is ended in {HANG_SEEN_S:.0f} s, because this cannot pass."
    if all(one.why == "together" for one in behind):
        return _together_text(behind)
    waiting = verdict.waiting_text.replace(" for it ", " for them " if len(behind) > 1 else " for it ")
    text = _sentence(", ".join(one.text for one in behind))
    return text.removesuffix(".") + (f"; {waiting}" if waiting else "")


def _after_error_text(one: Behind, limit: str) -> str:
    """Return the cause of a gang in which a rank waits in its cleanup while the other ranks wait for its next step."""
    report, since = one.report, clock(time.time() - one.for_s)
    return (
        f"Rank {report.rank} on host '{report.host}' cannot end after {report.raised.rstrip(' .')}: its cleanup waits "
        f"since {since} in a collective that no other rank enters. Leave collectives out of cleanups. {limit}"
    )


def _together_text(behind: list[Behind]) -> str:
    numbers = sorted({one.report.collectives for one in behind})
    entered = "" if len(numbers) < 2 else f" Their latest collectives have the numbers {numbers[0]} to {numbers[-1]}."
    return (
        f"No rank has made progress for {min(one.for_s for one in behind):.0f} s and none is behind: "
        f"{places_text(behind)}.{entered} Messages between the hosts are lost, or the ranks call their collectives in "
        "different orders."
    )


def _mismatch_text(behind: list[Behind]) -> str:
    return (
        f"The ranks wait for each other in different exchanges for {min(one.for_s for one in behind):.0f} s: "
        f"{places_text(behind)}. Their loops have different lengths, or they call collectives in different orders. "
        "Let all ranks do the same steps."
    )


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}."
