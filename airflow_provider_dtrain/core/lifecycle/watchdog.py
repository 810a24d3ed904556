"""Detection of ranks that make no progress while other ranks of the gang wait for them. Pure functions.

A stopped process is reported regardless of the other ranks. A live rank is reported only while another rank waits
for it in an exchange: soon when it is idle, later when it computes or loads data, because a slow step is not a hang.
Declared waits (a checkpoint, the searcher's decision, a download by one rank) are exempt. Before the first step a
rank may take any time, unless all ranks rest in collectives, so that each of them waits for another one. A host
without fresh reports must not make a rank seem behind: the caller omits its reports and passes ``complete=False``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_provider_dtrain.core.lifecycle.rank_text import clock, ranks_text
from airflow_provider_dtrain.core.lifecycle.timing import STOPPED_S
from airflow_provider_dtrain.core.untrusted_fields import Count, ShortText, Span
from airflow_provider_dtrain.errors import Kind

#: A rank is reported after it neither moved nor used its CPU for STILL_S, and another one waited for WAITING_S.
STILL_S, WAITING_S = 6.0, 4.0
#: The same for a rank that computes or loads data, and for a gang in which no rank is behind.
PATIENT_S = 60.0
#: Most places, and most ranks at a place, that a message names.
MOST_PLACES = 8

Why = Literal[
    "stopped", "traced", "uninterruptible", "unresponsive", "idle", "busy", "loading", "together", "mismatch", "raised"
]

_CAUSES: dict[Why, str] = {
    "stopped": "stopped by a signal",
    "traced": "held by a debugger",
    "uninterruptible": "in an uninterruptible system call",
    "unresponsive": "alive, but none of its threads runs",
    "idle": "alive, uses no CPU",
    "busy": "alive, computes",
    "loading": "alive",
    "together": "alive",
    "mismatch": "alive",
    "raised": "alive, handles an error",
}


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """State of a rank at one poll. All durations end at the poll."""

    rank: Count
    host: str
    pid: Count = 0
    #: Letter of the process state in /proc.
    state: ShortText = "S"
    #: Seconds in that state.
    state_s: Span = 0.0
    #: Seconds for which it has used less than a twentieth of a CPU.
    idle_s: Span = 0.0
    #: Seconds since its last heartbeat; None: it does not use the library.
    silent_s: Span | None = None
    #: Seconds at the same place.
    still_s: Span = 0.0
    #: ``start``, ``compute``, ``data``, ``exchange``, ``wait``, ``ended``; empty without the library.
    phase: ShortText = ""
    #: That place as readable text.
    what: ShortText = ""
    steps: Count = 0
    #: The first step is done.
    started: bool = False
    #: Collectives of the default process group that it has entered; 0: not known.
    collectives: Count = 0
    #: Seconds for which its main thread has waited in a collective of the program.
    held_s: Span = 0.0
    #: The error that the main thread handles there, e.g. in a cleanup; empty: none.
    raised: ShortText = ""

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal or a debugger holds the process."""
        return self.state in ("T", "t")

    @property
    def is_watched(self) -> bool:
        """Return whether the rank is expected to make progress."""
        return self.started and self.silent_s is not None and self.phase in ("compute", "data", "exchange")


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Rank that holds up its gang."""

    report: RankReport
    why: Why
    #: Seconds without progress.
    for_s: float

    @property
    def kind(self) -> Kind:
        """Kind of failure: ``infra`` for a process that cannot run, ``user`` for one that could.

        A live rank that hangs in the user's code would hang again on another host, so it counts against
        ``max_restarts``. A rank that is stopped, or stuck in the kernel, says nothing about the code.
        """
        return "infra" if self.why in ("stopped", "traced", "uninterruptible", "unresponsive") else "user"

    @property
    def text(self) -> str:
        """Message with rank, host, duration, state and place."""
        report = self.report
        if self.why == "raised":
            return (
                f"rank {report.rank} on {report.host} waits in a collective after {report.raised.rstrip(' .')}, for "
                f"{self.for_s:.0f} s: no other rank enters that collective (pid {report.pid})"
            )
        where = f", in {report.what}, step {report.steps}" if report.what else ""
        return (
            f"rank {report.rank} on {report.host} has made no progress for {self.for_s:.0f} s "
            f"({_CAUSES[self.why]}{where}, pid {report.pid})"
        )


@dataclass(frozen=True, kw_only=True)
class GangVerdict:
    """Result of one poll of a gang."""

    behind: tuple[Behind, ...] = ()
    #: Ranks that wait for other ranks, longest first.
    waiting: tuple[RankReport, ...] = ()
    #: rank -> seconds for which it has held up other ranks, reported or not
    lagging: dict[int, float] = field(default_factory=dict)

    @property
    def waiting_text(self) -> str:
        """Message with number, place and waiting time of the waiting ranks. Empty when no rank waits."""
        if not self.waiting:
            return ""
        first = self.waiting[0]
        count = len(self.waiting)
        return f"{count} rank{'s wait' if count > 1 else ' waits'} for it in {first.what} (for {first.still_s:.0f} s)"

    def waits_text(self, one: Behind, at: float) -> str:
        """Return a message about the collective that a rank has not entered, empty when no rank waits in one.

        :param at: time of this poll, Unix seconds
        """
        entered = max((report.collectives for report in self.waiting), default=0)
        ranks = [report for report in self.waiting if report.collectives == entered]
        if not ranks:
            return ""
        verb = "waits" if len(ranks) == 1 else "wait"
        number = f", collective number {entered}" if entered else ""
        since = clock(at - max(report.still_s for report in ranks))
        never = ", which it never entered" if 0 < one.report.collectives < entered else ""
        return f"{ranks_text(report.rank for report in ranks)} {verb} in {ranks[0].what}{number}{never}, since {since}"


def judge(reports: Sequence[RankReport], *, complete: bool = True, longest_s: float = 0.0) -> GangVerdict:
    """Return the ranks that hold up their gang.

    :param reports: fresh reports of running ranks, in any order
    :param complete: False: some ranks are missing, e.g. on a host that cannot be reached. Only stopped processes are
        reported then, because the other ranks may wait for a rank without a report
    :param longest_s: longest standstill so far that ended by itself. A live rank is reported only after twice that
    """
    fewest = min((one.collectives for one in reports if one.is_watched), default=0)
    reports = [_in_own_collective(one, fewest) for one in reports]
    stopped = [_stopped(one) for one in reports if one.is_stopped and one.state_s >= STOPPED_S]
    waiting = sorted((one for one in reports if _waits(one)), key=lambda one: (-one.still_s, one.rank))
    if not complete:
        return GangVerdict(behind=_sorted(stopped), waiting=tuple(waiting))
    living = [one for one in reports if not one.is_stopped]
    lagging = {one.rank: one.still_s for one in living if _is_waited_for(one, waiting)}
    found = [_alive(one, longest_s) for one in living if one.rank in lagging]
    found += [_without_library(one) for one in living if one.silent_s is None]
    # Counts say less than an error: a collective of a cleanup is counted as well, so the other ranks seem behind.
    behind = [*stopped, *(_after_error(reports) or [one for one in found if one is not None])]
    if not behind and len(reports) > 1:
        behind = _together(reports, longest_s)
    named = {one.report.rank for one in behind}
    return GangVerdict(
        behind=_sorted(behind), waiting=tuple(one for one in waiting if one.rank not in named), lagging=lagging
    )


def _sorted(behind: Sequence[Behind]) -> tuple[Behind, ...]:
    return tuple(sorted(behind, key=lambda one: (-one.for_s, one.report.rank)))


def _stopped(report: RankReport) -> Behind:
    return Behind(report=report, why="traced" if report.state == "t" else "stopped", for_s=report.state_s)


def _waits(report: RankReport) -> bool:
    """Return whether a live rank has been in an exchange for at least ``WAITING_S``."""
    beats = report.silent_s is not None and report.silent_s < WAITING_S
    return report.is_watched and report.phase == "exchange" and beats and report.still_s >= WAITING_S


def _in_own_collective(report: RankReport, fewest: int) -> RankReport:
    """Return a report as that of an exchange if its rank waits in a collective that the program itself has called.

    The library does not see the call. But the rank rests, and its main thread is in a collective, or it has entered
    one that another rank has not.

    :param fewest: collectives that the last rank has entered; 0: not known
    """
    is_in_one = report.held_s >= WAITING_S or 0 < fewest < report.collectives
    if report.phase != "compute" or report.idle_s < WAITING_S or not is_in_one:
        return report
    return replace(report, phase="exchange", what="a collective of the program")


def _is_waited_for(report: RankReport, waiting: Sequence[RankReport]) -> bool:
    """Return whether ranks wait for this one in an exchange it has not reached, or a step ahead."""
    if not report.is_watched or report.still_s < WAITING_S:
        return False
    if report.phase == "exchange" and (report.silent_s or 0.0) < STILL_S:
        return any(one.steps > report.steps for one in waiting)
    return any(one.rank != report.rank for one in waiting)


def _alive(report: RankReport, longest_s: float) -> Behind | None:
    """Return a rank that other ranks wait for, when it has stood still too long for its phase."""
    silent = (report.silent_s or 0.0) >= STILL_S
    if report.state == "D" and min(report.state_s, report.still_s) >= STILL_S:
        return Behind(report=report, why="uninterruptible", for_s=report.still_s)
    idle = report.idle_s >= STILL_S
    if silent and idle:
        return Behind(report=report, why="unresponsive", for_s=report.silent_s or 0.0)
    why: Why = "loading" if report.phase == "data" else "idle" if idle else "busy"
    limit_s = max(STILL_S if why == "idle" else PATIENT_S, 2 * longest_s)
    return Behind(report=report, why=why, for_s=report.still_s) if report.still_s >= limit_s else None


def _without_library(report: RankReport) -> Behind | None:
    stuck = report.state == "D" and report.state_s >= PATIENT_S
    return Behind(report=report, why="uninterruptible", for_s=report.state_s) if stuck else None


def _after_error(reports: Sequence[RankReport]) -> list[Behind]:
    """Return the ranks that wait in a collective while they handle an error, if all ranks rest in collectives.

    The cleanup of a failed rank waits for ranks that wait for its next step. Errors that all ranks handle distinguish
    none of them.
    """
    rests = all(_stands_in_collective(one, STILL_S) and one.idle_s >= STILL_S for one in reports)
    raised = [one for one in reports if one.raised]
    if not rests or len(raised) == len(reports):
        return []
    return [Behind(report=one, why="raised", for_s=one.held_s) for one in raised]


def _stands_in_collective(report: RankReport, least_s: float) -> bool:
    """Return whether a rank has been in one collective for so many seconds."""
    is_in_exchange = report.phase == "exchange" and report.silent_s is not None
    return report.held_s >= least_s or (is_in_exchange and report.still_s >= least_s)


def _together(reports: Sequence[RankReport], longest_s: float) -> list[Behind]:
    """Return all ranks when none moves and none is behind: lost messages, or exchanges in different orders.

    Ranks that have done the same number of steps and wait in different exchanges never meet: none of them enters the
    exchange of another one before its own has ended. Before the first step, a slow network may need minutes for the
    weights, so the gang gets the time of ``hang_timeout``.
    """
    limit_s = max(PATIENT_S, 2 * longest_s)
    rests = all(one.idle_s >= STILL_S for one in reports)
    if not all(one.started for one in reports):
        stands = all(one.phase != "wait" and _stands_in_collective(one, limit_s) for one in reports)
        return [Behind(report=one, why="together", for_s=one.still_s) for one in reports] if rests and stands else []
    stands = all(one.is_watched and one.phase != "data" and one.still_s >= limit_s for one in reports)
    if not stands or not rests or not any(one.phase == "exchange" for one in reports):
        return []
    apart = all(one.phase == "exchange" for one in reports) and len({one.steps for one in reports}) == 1
    why: Why = "mismatch" if apart and len({one.what for one in reports}) > 1 else "together"
    return [Behind(report=one, why=why, for_s=one.still_s) for one in reports]


def places_text(behind: Sequence[Behind]) -> str:
    """Return a text that names where ranks stand, those at the same place together."""
    groups: dict[tuple[str, int], list[RankReport]] = {}
    for one in sorted(behind, key=lambda one: one.report.rank):
        groups.setdefault((one.report.what, one.report.steps), []).append(one.report)
    parts = [f"{_ranks_text(group)} in {what}, step {steps}" for (what, steps), group in groups.items()]
    more = len(parts) - MOST_PLACES
    return "; ".join(parts[:MOST_PLACES]) + (f"; and {more} more places" if more > 0 else "")


def _ranks_text(group: Sequence[RankReport]) -> str:
    if len(group) == 1:
        return f"rank {group[0].rank} on {group[0].host}"
    numbers = ", ".join(str(one.rank) for one in group[:MOST_PLACES])
    return f"ranks {numbers}{f' and {len(group) - MOST_PLACES} more' if len(group) > MOST_PLACES else ''}"
