"""``airflow dtrain maintenance``: extends leases, so that runs survive a maintenance of the control side."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.output import FAILURE, hint, is_table, note, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.engine.upkeep.maintenance import Notified
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.maintenance import Hold

SHORTEST_S, LONGEST_S = 60.0, 7 * 86400.0
#: A follower that read the store before the hold may send one more renewal of the usual length, with its next beat.
BEAT_S = 6.0


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
    from airflow_provider_dtrain.engine.upkeep.maintenance import live_runs, notify_hosts

    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"--for must be from 1 minute to 7 days, got {seconds:g} s.")
    store = hook.store
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    found = store.maintenance.set(until, by=user(), reason=args.reason or "")
    runs = live_runs(hook)
    told = notify_hosts(hook, runs, _lease_s(hook, seconds))
    if runs:
        # Repeat after one beat: a follower may have renewed with the usual length in the meantime.
        time.sleep(BEAT_S)
        told = notify_hosts(hook, live_runs(hook), _lease_s(hook, store.maintenance.left_s()))
    note(f"Leases last until {found.until:%Y-%m-%d %H:%M:%SZ} at least. Runs that start before then get the same.")
    code = _report(args, told, until)
    hint("airflow dtrain maintenance end, once the maintenance is over")
    return code


def _end(args: Namespace, hook: DtrainHook) -> int:
    from airflow_provider_dtrain.engine.upkeep.maintenance import live_runs, notify_hosts

    if not hook.store.maintenance.end(by=user()):
        note("There is no maintenance.")
        return 0
    told = notify_hosts(hook, live_runs(hook), hook.settings.orphan_timeout_s)
    if all(one.problem is None for one in told):
        hook.store.maintenance.leases_shortened()
    note(f"Leases last {hook.settings.orphan_timeout_s:g} s again.")
    return _report(args, told, None)


def _lease_s(hook: DtrainHook, seconds: float) -> float:
    usual_s = hook.settings.orphan_timeout_s
    return max(usual_s, seconds) if usual_s else 0.0


def _report(args: Namespace, told: list[Notified], until: datetime | None) -> int:
    rows: list[dict[str, Any]] = [
        {"host": one.host, "runs": list(one.runs), "told": one.problem is None, "until": until, "problem": one.problem}
        for one in told
    ]
    show(args, rows, empty="Nothing runs on any host.")
    failed = [one.host for one in told if one.problem is not None]
    if failed:
        note(
            f"Not notified: {', '.join(failed)}. Runs there end themselves after the usual time without a renewal. "
            "Repair the connection to these hosts and run the command again."
        )
    return FAILURE if failed else 0


def _show(args: Namespace, hook: DtrainHook) -> int:
    found: Hold | None = hook.store.maintenance.get()
    if found is None:
        if is_table(args):
            note(f"There is no maintenance: leases last {hook.settings.orphan_timeout_s:g} s.")
        else:
            show_one(args, {"until": None, "by": None, "reason": None})
        return 0
    show_one(args, {"until": found.until, "by": found.by, "reason": found.reason or None})
    return 0
