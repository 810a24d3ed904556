"""``airflow dtrain hosts remove``: removes a host, and with ``--purge`` also its files there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.engine.upkeep.host_actions import ended_by_removal, remove_host
from airflow_provider_dtrain.engine.upkeep.host_purge import files_on, foreign_runs, purge_host
from airflow_provider_dtrain.errors import NotNowError
from airflow_provider_dtrain.terminal.output import confirm, note, placement_text, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.engine.upkeep.host_purge import HostFiles
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


@command
def remove(args: Namespace) -> None:
    """Remove a host. With --force also if trials run there, with --purge also its files."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    record = hook.store.hosts.get(args.host)
    running = ended_by_removal(hook.store, args.host, force=args.force)
    files = _files(args, hook) if args.purge else None
    for view in running:
        of = f"trial {view.trial_id} of '{view.experiment}' ({view.key.dag_id}.{view.key.task_id})"
        note(f"Host '{args.host}': removing it kills {of} on {placement_text(view.placement)}")
    if args.dry_run:
        note("Nothing was removed: --dry-run.")
        return
    more = f" and its {byte_size(files.size_bytes)} there" if files else ""
    if not confirm(f"Remove host '{args.host}' with {len(record.slots)} slots{more}?", yes=args.yes):
        note("Nothing was changed.")
        return
    ended = [{"trial": view.trial_id, "experiment": view.experiment, "run": view.run} for view in running]
    if files is None:
        remove_host(hook, record, running, user(), note)
        show_one(args, {"removed": args.host, "ended": ended})
        return
    removed = purge_host(hook, record, force=args.force, by=user(), progress=note)
    if files.shared:
        note(files.shared)
    show_one(args, {"removed": args.host, "ended": ended, "bytes": removed.size_bytes})


def _files(args: Namespace, hook: DtrainHook) -> HostFiles:
    """Return the files on the host, after they were shown.

    :raises NotNowError: work is there, or runs of other stores
    """
    files = files_on(hook, hook.store.hosts.get(args.host))
    for part, (count, size) in files.parts.items():
        note(f"{args.host}: {count} {part}, {byte_size(size)}")
    note(f"{args.host}: folders {files.remote_dir} and {files.state_dir}")
    for text in filter(None, (files.shared, *(f"{path} stays: {reason}" for path, reason in files.left))):
        note(f"{args.host}: {text}")
    if only := hook.store.retention.only_copies(files.runs):
        note(f"{args.host}: {len(only)} run(s) have the only copy of a checkpoint, e.g. {min(only)}")
    if files.busy and not args.force:
        raise NotNowError(
            f"Host '{args.host}' holds work: {'; '.join(files.busy[:5])}. Nothing was removed. Wait for its end, or "
            "kill trials of this store with --force."
        )
    if (foreign := foreign_runs(hook, files)) and not args.force:
        raise NotNowError(
            f"Host '{args.host}' has {len(foreign)} run(s) of other stores, e.g. {foreign[0]}. Nothing was removed. To "
            "remove their files as well, add --force."
        )
    return files
