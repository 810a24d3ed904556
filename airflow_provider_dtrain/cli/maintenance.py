"""``airflow dtrain maintenance``: extends leases, so that runs survive a maintenance of the control side."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.engine.upkeep import maintenance
from airflow_provider_dtrain.engine.upkeep.evacuation import lines
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.control import deadline_of
from airflow_provider_dtrain.terminal.output import FAILURE, hint, is_table, note, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

SHORTEST_S, LONGEST_S = 60.0, 7 * 86400.0


@command
def start(args: Namespace) -> int:
    """Extend all leases. Exit 1 if a host could not be notified."""
    return _begin(args, _hook(), args.hold_for)


@command
def end(args: Namespace) -> int:
    """Give leases their usual length again. Exit 1 if a host could not be notified."""
    return _end(args, _hook())


@command
def show_maintenance(args: Namespace) -> int:
    """Show until when leases are extended, by which user, and why."""
    return _show(args, _hook())


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()


def _begin(args: Namespace, hook: DtrainHook, seconds: float) -> int:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"--for must be from 1 minute to 7 days, got {seconds:g} s.")
    deadline = deadline_of(args)
    if args.host and deadline is None:
        raise UsageError("--host names hosts that are to be empty: give --now or --by TIME as well.")
    until, notified = maintenance.begin(hook, seconds, user(), args.reason or "")
    note(f"Leases last until {until:%Y-%m-%d %H:%M:%SZ} at least. Runs that start before then get the same.")
    if deadline is not None:
        drained = maintenance.drain(hook, until, args.host or [], deadline, user(), args.reason or "")
        for name, effects in drained.items():
            note(lines(f"Host '{name}' gets no new gangs until the end of the maintenance.", effects))
        if not drained:
            note("No host is ready, so none is drained.")
    code = _report(args, notified, until)
    hint("airflow dtrain maintenance end, once the maintenance is over")
    return code


def _end(args: Namespace, hook: DtrainHook) -> int:
    ended = maintenance.end(hook, user())
    if ended is None:
        note("There is no maintenance.")
        return 0
    notified, enabled = ended
    if enabled:
        note(f"Hosts {', '.join(enabled)} get gangs again.")
    note(f"Leases last {hook.settings.orphan_timeout_s:g} s again.")
    return _report(args, notified, None)


def _report(args: Namespace, notified: list[maintenance.Notified], until: datetime | None) -> int:
    rows: list[dict[str, Any]] = [
        {
            "host": one.host,
            "runs": list(one.runs),
            "notified": one.problem is None,
            "until": until,
            "problem": one.problem,
        }
        for one in notified
    ]
    show(args, rows, empty="Nothing runs on any host.")
    failed = [one.host for one in notified if one.problem is not None]
    if failed:
        note(
            f"Not notified: {', '.join(failed)}. Runs there end themselves after the usual time without a renewal. "
            "Repair the connection to these hosts and run the command again."
        )
    return FAILURE if failed else 0


def _show(args: Namespace, hook: DtrainHook) -> int:
    found = hook.store.maintenance.get()
    if found is None:
        if is_table(args):
            note(f"There is no maintenance: leases last {hook.settings.orphan_timeout_s:g} s.")
        else:
            show_one(args, {"until": None, "by": None, "reason": None, "hosts": []})
        return 0
    row = {"until": found.until, "by": found.by, "reason": found.reason or None, "hosts": list(found.hosts)}
    show_one(args, row)
    return 0
