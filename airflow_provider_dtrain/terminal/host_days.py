"""``hosts day``: what a host did on a day."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.host_days import WorkKind
from airflow_provider_dtrain.terminal.output import cell, hint, is_table, note, show, show_one, slots_text

if TYPE_CHECKING:
    from argparse import Namespace
    from datetime import datetime

    from airflow_provider_dtrain.resources.host_days import HostDay, HostDays, HostWork
    from airflow_provider_dtrain.terminal.source import Source


def day(args: Namespace, source: Source) -> None:
    """Show what held the slots of a host on a day, its states, checks and slow ranks."""
    found = source.host_day(args.host, day=args.day)
    if not found.hosts:
        raise NotFoundError(f"There is no host '{args.host}'. See: airflow dtrain hosts list")
    host = found.hosts[0]
    if not is_table(args):
        show_one(args, {**asdict(host), "since": found.since, "until": found.until, "is_cut": found.is_cut})
        return
    show_one(args, _head(found, host), with_empty=False)
    print()
    show(args, _rows(found, host), empty="Nothing happened on this host.")
    if found.is_cut:
        note(f"More happened than is shown: this begins at {cell(found.since)}.")
    hint(f"airflow dtrain hosts describe {args.host}")


def _head(found: HostDays, host: HostDay) -> dict[str, Any]:
    whole = host.slots * (found.until - found.since).total_seconds()
    parts = {"held": host.held_slot_s, "idle": host.idle_slot_s, "not_available": host.away_slot_s}
    return {
        "host": host.name,
        "pool": host.pool,
        "slots": host.slots,
        "since": found.since,
        "until": found.until,
        **{name: f"{value / 3600:.1f} slot hours ({_share(value, whole)})" for name, value in parts.items()},
    }


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "no slots"


def _rows(found: HostDays, host: HostDay) -> list[dict[str, Any]]:
    rows: list[tuple[datetime, datetime | None, str, str]] = [
        (one.since, one.until, slots_text(one.slots), _work(one)) for one in host.work
    ]
    rows += [(one.since, one.until, "", f"{one.state}: {one.reason}".rstrip(": ")) for one in host.states]
    rows += [(one.at, one.until, "", f"{one.kind.replace('_', ' ')}: {one.text}") for one in host.notes]
    return [
        {"from": since, "until": "now" if until is None else until, "slots": slots or None, "what": what}
        for since, until, slots, what in sorted(rows, key=lambda row: row[0])
    ]


def _work(one: HostWork) -> str:
    match one.kind:
        case WorkKind.TRIAL:
            return f"trial {one.trial_id} of {one.name}: {one.trial_state}"
        case WorkKind.GANG:
            return one.name
        case WorkKind.CHECK:
            return "host check"
        case WorkKind.OTHER:
            return "other work"
