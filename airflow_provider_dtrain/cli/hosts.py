"""``airflow dtrain hosts``, except ``add``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import FENCE_WAIT_S
from airflow_provider_dtrain.engine.operations.probes import probe_again, probe_hosts
from airflow_provider_dtrain.engine.upkeep.host_actions import disable_host, runs_on
from airflow_provider_dtrain.errors import DtrainError, HostError, NotNowError, UsageError
from airflow_provider_dtrain.listings.source import StoreSource
from airflow_provider_dtrain.terminal import cluster
from airflow_provider_dtrain.terminal.output import FAILURE, confirm, hint, note, placement_text, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import AttemptView, HostRecord
    from airflow_provider_dtrain.store.store import Store


@command
def probe(args: Namespace) -> int:
    """Probe hosts again and store the results. Exit 1 if a host has a problem."""
    hook = _hook()
    if args.accept_host_key and len(args.host) != 1:
        raise UsageError(
            "--accept-host-key needs exactly one host: airflow dtrain hosts probe NAME --accept-host-key SHA256:..."
        )
    names = list(dict.fromkeys(args.host)) or [host.name for host in hook.store.hosts.list()]
    records = [hook.store.hosts.get(name) for name in names]
    if args.accept_host_key:
        records = [_repinned(record, args.accept_host_key) for record in records]
    results = probe_hosts(hook, records, user())
    cluster.show_hosts(args, results)
    return 0 if all(row["problem"] is None for row in results) else FAILURE


def _repinned(record: HostRecord, accepted: str) -> HostRecord:
    from airflow_provider_dtrain.cli.hosts_add import host_key

    return replace(record, host_key=host_key(record.name, record.conn_id, accepted))


@command
def set_host(args: Namespace) -> None:
    """Set or remove variables of a host's ranks, and show all that are set."""
    from airflow_provider_dtrain.core.launch.plan import RESERVED_VARIABLES

    store = _hook().store
    changes = {**dict.fromkeys(args.unset), **dict(args.env)}
    reserved = sorted(RESERVED_VARIABLES.intersection(changes))
    if reserved:
        raise UsageError(f"{', '.join(reserved)}: set for every rank by the launch and cannot be set here.")
    unknown = sorted(set(args.unset) - set(store.hosts.get(args.host).variables or {}))
    if unknown:
        raise UsageError(f"Host '{args.host}' has no variable {', '.join(unknown)}. Show all: hosts set {args.host}")
    if changes:
        store.hosts.set_variables(args.host, changes, by=user())
        note("Ranks get the change from the next launch on.")
    show_one(args, {"host": args.host, "env": dict(store.hosts.get(args.host).variables or {})})


@command
def drain(args: Namespace) -> None:
    """Grant no new slots on a host. Running trials may finish."""
    hook = _hook()
    hook.store.hosts.set_state(args.host, HostState.DRAINING, f"drained by {user()}", by=user())
    record = hook.store.hosts.get(args.host)
    _show(args, hook.store, args.host)
    hint("airflow dtrain queue list" if record.state == "draining" else f"airflow dtrain hosts enable {args.host}")


@command
def enable(args: Namespace) -> None:
    """Enable a host, or one of its slots."""
    hook = _hook()
    if args.slot is not None:
        hook.store.hosts.set_slot_enabled(args.host, args.slot, True, by=user())
        note(f"Slot {args.slot} of host '{args.host}' is enabled.")
        return
    record = hook.store.hosts.get(args.host)
    if record.state in ("unreachable", "lost"):
        problem = probe_again(hook, record, user())["problem"]
        if problem:
            raise HostError(record.name, f"Host '{record.name}' stays {record.state}: {problem}")
    hook.store.hosts.set_state(args.host, HostState.READY, by=user())
    _show(args, hook.store, args.host)


@command
def disable(args: Namespace) -> None:
    """Drain a host and kill its trials, or disable one slot."""
    store = _hook().store
    if args.slot is not None:
        store.hosts.set_slot_enabled(args.host, args.slot, False, by=user())
        note(f"Slot {args.slot} of host '{args.host}' is disabled. A trial that holds it continues.")
        return
    record = store.hosts.get(args.host)
    running = runs_on(store, args.host)
    _tell(running, f"Host '{args.host}': disabling it kills")
    if running and not confirm(f"Disable host '{args.host}' and kill them?", yes=args.yes):
        note("Nothing was changed.")
        return
    disable_host(store, record.name, user())
    _show(args, store, args.host)
    hint(f"airflow dtrain hosts enable {args.host}")


@command
def remove(args: Namespace) -> None:
    """Remove a host. With --force also if trials run there."""
    hook = _hook()
    record = hook.store.hosts.get(args.host)
    running = runs_on(hook.store, args.host)
    if running and not args.force:
        trials = ", ".join(f"trial {view.trial_id} of '{view.experiment}'" for view in running)
        raise NotNowError(
            f"Host '{args.host}' is held by {trials}. Wait for them (airflow dtrain hosts drain {args.host}), or kill "
            "them with --force."
        )
    _tell(running, f"Host '{args.host}': removing it kills")
    if args.dry_run:
        note("Nothing was removed: --dry-run.")
        return
    if not confirm(f"Remove host '{args.host}' with {len(record.slots)} slots?", yes=args.yes):
        note("Nothing was changed.")
        return
    if running:
        _end(hook, record, running)
    hook.store.hosts.remove(args.host, force=args.force, by=user())
    ended = [{"trial": view.trial_id, "experiment": view.experiment, "run": view.run} for view in running]
    show_one(args, {"removed": args.host, "ended": ended})


def _end(hook: DtrainHook, record: HostRecord, running: list[AttemptView]) -> None:
    """Kill trials and wait until the host confirms that no process of them is left."""
    from airflow_provider_dtrain.engine.attempt.teardown import fence_arguments, survivors_text

    for view in running:
        hook.store.control.kill(view.trial_id, user())
    for view in running:
        try:
            link = hook.link(record)
            answer = link.call("fence", **fence_arguments(view, record.name)).result(FENCE_WAIT_S + 15)
            words = "" if answer.get("clear") else f"processes survive: {survivors_text(answer)}"
        except DtrainError as error:
            words = str(error)
        if words:
            note(
                f"Warning: host '{record.name}' did not confirm the end of {view.label}: {words} Its processes there "
                f"end themselves {hook.settings.orphan_timeout_s:g} s after the last renewal."
            )


def _tell(running: list[AttemptView], words: str) -> None:
    for view in running:
        where = placement_text(view.placement)
        note(f"{words} trial {view.trial_id} of '{view.experiment}' ({view.key.dag_id}.{view.key.task_id}) on {where}")


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()


def _show(args: Namespace, store: Store, name: str) -> None:
    rows = [asdict(one) for one in StoreSource(store).hosts(None) if one.name == name]
    show(args, [{column: value for column, value in row.items() if column != "other_stores"} for row in rows])
