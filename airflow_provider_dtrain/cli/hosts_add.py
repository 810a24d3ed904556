"""``airflow dtrain hosts add``: probes a machine, asks about its host key, and registers it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.host_facts import summary
from airflow_provider_dtrain.engine.operations.probe_report import key_warnings, probe_host, warnings
from airflow_provider_dtrain.errors import ConflictError, HostKeyError, UsageError
from airflow_provider_dtrain.hooks.hosts import LOCAL_HOST, LOCAL_POOL, host_record, host_record_from_facts
from airflow_provider_dtrain.hosts.transport.registry import host_keys
from airflow_provider_dtrain.terminal.output import FAILURE, confirm, hint, note, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hosts.transport.base import HostKey

DEFAULT_POOL = "default"
KEY_TIMEOUT_S = 15.0


class _Declined(Exception):
    """Refusal of the host key by the user."""


@command
def add(args: Namespace) -> int:
    """Probe a machine and register it."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    _check(args)
    hook = DtrainHook()
    if args.host in {host.name for host in hook.store.hosts.list()}:
        raise ConflictError(
            f"Host '{args.host}' is registered already. To probe it again: airflow dtrain hosts probe {args.host}. "
            f"To change its slots or its pool: airflow dtrain hosts remove {args.host}, then hosts add again."
        )
    is_local = args.host == LOCAL_HOST
    try:
        draft = host_record(
            args.host,
            pool=args.pool or (LOCAL_POOL if is_local else DEFAULT_POOL),
            conn_id=args.conn,
            python=args.python or (hook.settings.local_python if is_local else "python3"),
            remote_dir=args.remote_dir or hook.settings.remote_dir,
            state_dir=args.state_dir,
            lock_dir=args.lock_dir,
            host_key=host_key(args.host, args.conn, args.accept_host_key),
        )
    except _Declined:
        note("Nothing was registered.")
        return FAILURE
    link, facts = probe_host(hook, draft)
    record = host_record_from_facts(
        draft.name,
        pool=draft.pool,
        conn_id=draft.conn_id,
        facts=facts,
        hello=link.hello,
        slots=args.slots,
        remote_dir=draft.remote_dir,
        state_dir=draft.state_dir,
        lock_dir=draft.lock_dir,
        python=args.python,
        host_key=draft.host_key,
        address=args.address,
    )
    record = replace(record, pid_ns=None if record.pid_ns is None else str(record.pid_ns))
    if not args.dry_run:
        hook.store.hosts.add(record, by=user())
    device = record.slots[0].device_name if record.slots else None
    slots = f"{len(record.slots)} x {device or record.slot_type}"
    show_one(args, {"host": record.name, "pool": record.pool, "slots": slots, **summary(facts)})
    for warning in [*key_warnings(record), *warnings(record.name, facts)]:
        note(f"Warning: {warning}")
    if facts.get("withheld_variables"):
        note(
            f"Ranks do not get these variables of the host's logins: {', '.join(facts['withheld_variables'])}. Set one "
            f"for all ranks there with: airflow dtrain hosts set {record.name} --env NAME=VALUE"
        )
    if args.dry_run:
        note("Nothing was registered: --dry-run.")
    else:
        hint(f"airflow dtrain slots list --pool {record.pool}")
    return 0


def _check(args: Namespace) -> None:
    is_local = args.host == LOCAL_HOST
    if is_local and args.conn:
        raise UsageError(
            f"'{LOCAL_HOST}' is this machine and needs no connection. Name a machine behind SSH differently."
        )
    if not is_local and not args.conn:
        raise UsageError(
            f"Host '{args.host}' needs an Airflow connection: --conn CONN_ID. To add a connection, run: airflow "
            f"connections add {args.host} --conn-type ssh --conn-host ADDRESS --conn-login USER"
        )
    if (args.pool or LOCAL_POOL) != LOCAL_POOL and is_local or args.pool == LOCAL_POOL and not is_local:
        raise UsageError(f"Pool '{LOCAL_POOL}' holds the host '{LOCAL_HOST}' and no other host. Choose another pool.")


def host_key(name: str, conn_id: str | None, accepted: str | None) -> str | None:
    """Return the key to pin for a host, or None if it needs none: the connection or known_hosts has it.

    :param accepted: fingerprint that the user has compared already
    :raises HostKeyError: the host shows another key, or standard input is not a terminal
    :raises UsageError: the host has no key to accept
    """
    keys = host_keys(conn_id)
    if keys is None:
        if accepted is not None:
            raise UsageError(f"Host '{name}' is not reached by SSH, so it has no host key. Remove --accept-host-key.")
        return None
    if accepted is None and keys.is_known():
        return None
    key = keys.fetch(KEY_TIMEOUT_S)
    if accepted is None:
        _ask(name, keys.address, key)
    elif key.fingerprint != accepted:
        raise HostKeyError(
            name,
            f"Host '{name}' shows the {key.type} key {key.fingerprint}, not {accepted}. Nothing was stored. Compare on "
            "the host itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        )
    return key.line


def _ask(name: str, address: str, key: HostKey) -> None:
    note(f"Host '{name}' ({address}) shows the {key.type} key {key.fingerprint}.")
    note("Compare on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub (or the file of that type)")
    if not sys.stdin.isatty():
        raise HostKeyError(
            name,
            "This key is not accepted, and standard input is not a terminal, so you cannot be asked. Compare the key, "
            f"then add: --accept-host-key {key.fingerprint}",
        )
    if not confirm("Accept it?", yes=False):
        raise _Declined
