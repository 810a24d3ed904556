"""Limits for what one attempt may store: events, checkpoints, metric rows and metric names."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Bytes of events files for each event that the limit allows.
BYTES_PER_EVENT = 1024
#: Events, and their bytes, beyond the limit that are reserved for the end of a trial.
RESERVED_EVENTS, RESERVED_BYTES = 1000, 16 << 20
#: Kinds that may use the reserve. Checkpoints and validations also have limits of their own.
RESERVED_KINDS = frozenset(
    {
        "init",
        "first_step",
        "checkpoint",
        "weights",
        "validation",
        "rung",
        "result",
        "returned",
        "stopped",
        "invalid_hp",
        "shards",
        "results_preview",
        "shard_failed",
        "shard_skipped",
        "manifest",
    }
)
#: Most events of a kind that one supervisor may write: a run whose supervisor died before the start is prepared again.
MOST_OF_SUPERVISOR = {"prepared": 10}
#: Host, kind, and for an ``exit`` the rank.
SupervisorKey = tuple[str, str, int | None]


@dataclass(frozen=True, kw_only=True)
class QuotaLimits:
    """Values of the options ``attempt_*_limit``. 0 = no limit."""

    events: int
    checkpoints: int
    #: Of each group.
    metric_rows: int
    metric_names: int


@dataclass(kw_only=True)
class Usage:
    """Amounts that an attempt has stored so far."""

    events: int = 0
    event_bytes: int = 0
    checkpoints: int = 0
    reports: int = 0
    validations: int = 0
    builtins: int = 0
    names: set[str] = field(default_factory=set)
    #: Numbers (``seq``) of the supervisors' events of the current run.
    of_supervisors: dict[SupervisorKey, set[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class QuotaVerdict:
    """Decision on an event.

    :param event: the event to store; None when it is left out
    :param option: name of the option whose limit was reached; "" = none. An event that is stored without some of
        its metrics has both.
    """

    event: Mapping[str, Any] | None
    option: str = ""


class Quota:
    """Counts the events of one attempt's ranks. Thread-safe, because several threads read the hosts' frames."""

    def __init__(self, limits: QuotaLimits, usage: Usage) -> None:
        self.limits = limits
        self.usage = usage
        self._lock = threading.Lock()

    def admit(self, event: Mapping[str, Any], size: int) -> QuotaVerdict:
        """Count an event of a rank, and return the part of it that may be stored.

        :param size: length of its line, bytes
        """
        with self._lock:
            return self._admit(event, size)

    def _admit(self, event: Mapping[str, Any], size: int) -> QuotaVerdict:
        kind = event["kind"]
        usage = self.usage
        limits = self.limits
        if not self._has_room(kind, size):
            return QuotaVerdict(None, "attempt_events_limit")
        if kind == "checkpoint" and 0 < limits.checkpoints <= usage.checkpoints:
            return QuotaVerdict(None, "attempt_checkpoints_limit")
        rows = {"report": usage.reports, "validation": usage.validations, "builtin": usage.builtins}.get(kind, -1)
        if 0 < limits.metric_rows <= rows:
            return QuotaVerdict(None, "attempt_metric_rows_limit")
        usage.events += 1
        usage.event_bytes += size
        usage.checkpoints += kind == "checkpoint"
        usage.reports += kind == "report"
        usage.validations += kind == "validation"
        usage.builtins += kind == "builtin"
        has_own_names = rows >= 0 and kind != "builtin"
        return self._without_new_names(event) if has_own_names else QuotaVerdict(event)

    def _has_room(self, kind: str, size: int) -> bool:
        events = self.limits.events
        bytes_ = self.limits.events * BYTES_PER_EVENT
        if kind in RESERVED_KINDS:
            events += RESERVED_EVENTS
            bytes_ += RESERVED_BYTES
        return not self.limits.events or (self.usage.events < events and self.usage.event_bytes + size <= bytes_)

    def _without_new_names(self, event: Mapping[str, Any]) -> QuotaVerdict:
        """Return a report with the metrics whose names are known or still within the limit."""
        metrics = event["metrics"]
        known = self.usage.names
        most = self.limits.metric_names
        new = [name for name in metrics if name not in known]
        refused = set(new[max(0, most - len(known)) :]) if most else set()
        known.update(name for name in new if name not in refused)
        if not refused:
            return QuotaVerdict(event)
        kept = {name: value for name, value in metrics.items() if name not in refused}
        return QuotaVerdict({**event, "metrics": kept}, "attempt_metric_names_limit")


class SupervisorQuota:
    """Counts the events of one host's supervisor within a frame, on top of the stored ones.

    A supervisor writes each kind once, and one ``exit`` for each rank. The frame may not be stored in the end, so
    the caller adds its events to ``usage`` afterwards.
    """

    def __init__(self, host: str, usage: Usage) -> None:
        self._host = host
        self._usage = usage
        self._new: dict[SupervisorKey, set[int]] = {}

    def admit(self, event: Mapping[str, Any]) -> bool | None:
        """Return True for a new event, None for a stored one that the host sent again, False for one too many."""
        key = supervisor_key(self._host, event)
        new = self._new.setdefault(key, set())
        known = self._usage.of_supervisors.get(key, set()) | new
        if event["seq"] in known:
            return None
        if len(known) >= MOST_OF_SUPERVISOR.get(event["kind"], 1):
            return False
        new.add(event["seq"])
        return True


def supervisor_key(host: str, event: Mapping[str, Any]) -> SupervisorKey:
    """Return the key under which an event of a supervisor is counted."""
    kind = str(event["kind"])
    return host, kind, int(event["rank"]) if kind == "exit" else None


def text_of(option: str, limits: QuotaLimits) -> str:
    """Return the message for a limit that was reached."""
    what = option.removeprefix("attempt_").removesuffix("_limit")
    number: int = getattr(limits, what)
    left_out = "new names are left out" if what == "metric_names" else "later ones are left out"
    return f"[dtrain] {option} ({number:,} {what.replace('_', ' ')} of one attempt) is reached: {left_out}"


def names_of(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names in several dicts of metrics."""
    return {name for row in rows for name in row}
