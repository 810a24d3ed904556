"""``airflow dtrain hosts``: commands that reach hosts, except ``add`` and ``remove``, and variables of ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.engine.operations.probes import probe_hosts
from airflow_provider_dtrain.engine.upkeep.host_actions import refuse_node
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal import cluster
from airflow_provider_dtrain.terminal.hosts import show_check
from airflow_provider_dtrain.terminal.output import FAILURE, note, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


@command
def probe(args: Namespace) -> int:
    """Probe hosts again and store the results. Exit 1 if a host has a problem."""
    from airflow_provider_dtrain.cli.hosts_add import host_key

    hook = _hook()
    if args.accept_host_key and len(args.host) != 1:
        raise UsageError(
            "--accept-host-key needs exactly one host: airflow dtrain hosts probe NAME --accept-host-key SHA256:..."
        )
    names = list(dict.fromkeys(args.host)) or [host.name for host in hook.store.hosts.registered()]
    records = [hook.store.hosts.get(name) for name in names]
    for record in records:
        refuse_node(hook.store, record, "be probed")
    if args.accept_host_key:
        keys = [host_key(record.name, record.conn_id, args.accept_host_key) for record in records]
        records = [replace(record, host_key=key) for record, key in zip(records, keys, strict=True)]
    results = probe_hosts(hook, records, user())
    cluster.show_hosts(args, results)
    return 0 if all(row["problem"] is None for row in results) else FAILURE


@command
def check(args: Namespace) -> int:
    """Measure devices, disks and links of hosts. Exit 1 if a host is slow or cannot be measured."""
    from airflow_provider_dtrain.engine.operations.check_outcome import evacuated, outcome
    from airflow_provider_dtrain.engine.operations.host_rates import check_hosts

    hook = _hook()
    hook.ensure_local()
    names = list(dict.fromkeys(args.host)) or [host.name for host in hook.store.hosts.registered(args.pool)]
    records = [hook.store.hosts.get(name) for name in names]
    found = check_hosts(
        hook,
        records,
        by=user(),
        tolerance=args.tolerance,
        python=args.python,
        wait_s=args.wait,
        on_wait=lambda reason: note(f"Waiting: {reason}"),
    )
    result = outcome(found, names)
    return show_check(args, evacuated(hook.store, result) if args.evacuate else result)


@command
def set_host(args: Namespace) -> None:
    """Set or remove variables of a host's ranks, and show all that are set."""
    from airflow_provider_dtrain.core.launch.plan import RESERVED_VARIABLES

    store = _hook().store
    refuse_node(store, store.hosts.get(args.host), "be set")
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


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()
