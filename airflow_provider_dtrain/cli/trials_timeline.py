"""``airflow dtrain trials timeline``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command, hint, show
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind, duration

if TYPE_CHECKING:
    from argparse import Namespace


@command
def timeline(args: Namespace) -> None:
    """Show everything that happened to a trial, oldest first."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    entries = DtrainHook().store.timeline.of_trial(args.trial_id)
    kinds = {kind for kind in TimelineKind if kind in (args.kind or ())}
    shown = [entry for entry in entries if (not kinds or entry.kind in kinds) and args.attempt in (None, entry.attempt)]
    make = _short if args.output == "table" else _full
    show(args, [make(entry) for entry in shown], empty=f"The timeline of trial {args.trial_id} has no such entries.")
    hint(f"airflow dtrain trials describe {args.trial_id}")


def _full(entry: TimelineEntry) -> dict[str, Any]:
    return {
        "at": entry.at,
        "until": entry.until,
        "kind": entry.kind.value,
        "attempt": entry.attempt,
        "host": entry.host,
        "text": entry.text,
        "detail": dict(entry.detail),
    }


def _short(entry: TimelineEntry) -> dict[str, Any]:
    lasted = None if entry.until is None else duration((entry.until - entry.at).total_seconds())
    return {
        "time": entry.at,
        "kind": entry.kind.value,
        "attempt": entry.attempt,
        "host": entry.host,
        "text": entry.text,
        "lasted": lasted,
    }
