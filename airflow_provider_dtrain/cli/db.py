"""``airflow dtrain db``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.terminal.output import FAILURE, confirm, hint, note, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace


@command
def migrate(args: Namespace) -> None:
    """Create the store, or migrate it to the schema of this version."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    revision = hook.migrate_store()
    show_one(args, {"store": hook.store_url, "schema": revision})
    hint("airflow dtrain doctor")


@command
def drop(args: Namespace) -> int:
    """Remove the store. Exit 1 if the user does not agree."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    question = f"Remove the store {hook.store_url} with all experiments, metrics and registered hosts?"
    if not confirm(question, yes=args.yes):
        return FAILURE
    removed = hook.drop_store(force=args.force)
    if not removed:
        note(f"{hook.store_url} is no store, or there is none. Nothing was removed.")
        return FAILURE
    show(args, [{"removed": name} for name in removed])
    note("Checkpoints, and files on hosts, stay: see 'Upgrade and uninstall' in the documentation.")
    return 0


@command
def check(args: Namespace) -> int:
    """Check the store. Exit 1 if a check fails."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    checks = DtrainHook().store.check()
    show(args, [{"check": one.name, "ok": one.ok, "message": one.message} for one in checks])
    return 0 if all(one.ok for one in checks) else FAILURE
