"""``airflow dtrain gc``: removes old data of ended trials from the hosts and the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.errors import UsageError
from airflow_provider_dtrain.terminal.output import hint, is_table, note, show
from airflow_provider_dtrain.terminal.safe_streams import unescaped

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.engine.upkeep.host_cleanup import Collected
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

PARALLEL_HOSTS = 8
LONGEST_DAYS = 36_500


@command
def gc(args: Namespace) -> int:
    """Remove runs, archives and rows of trials that ended long ago, and print counts and bytes."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    hook = DtrainHook()
    _deletions(hook, dry_run=args.dry_run)
    days = hook.settings.retention_days if args.older_than is None else args.older_than
    if args.older_than is None and not days:
        note("Nothing is removed: [dtrain] retention_days is 0. To name an age, run: airflow dtrain gc --older-than 30")
        show(args, [], empty="")
        return 0
    if days > LONGEST_DAYS:
        raise UsageError(f"--older-than must be at most {LONGEST_DAYS} days, got {days}.")
    cutoff = datetime.now(UTC) - timedelta(days=days)
    with _progress() as step:
        hosts = _hosts(args, hook, cutoff, step) if args.hosts else []
        rows = [*_host_rows(hosts), *_file_rows(hook, cutoff, dry_run=args.dry_run)]
        rows += _store_rows(hook, cutoff, step, dry_run=args.dry_run)
    show(args, rows if not is_table(args) else [_short(row) for row in rows])
    _say(args, hosts, days)
    return 0


def _deletions(hook: DtrainHook, *, dry_run: bool) -> None:
    """Continue with deletions of experiments that were interrupted, or whose hosts did not answer."""
    from airflow_provider_dtrain.engine.upkeep.deletion import remove_marked

    if dry_run:
        for one in hook.store.deletions.pending():
            note(f"The deletion of experiment {one} is not complete.")
        return
    for deleted in remove_marked(hook):
        note(deleted.sentence)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "where": row["where"],
        "what": row["what"],
        "count": row["count"],
        "size": byte_size(row["bytes"]),
        "skipped": row["skipped"],
    }


def _say(args: Namespace, hosts: list[Collected], days: int) -> None:
    for one in hosts:
        if one.problem is not None:
            note(f"Host '{one.host}' was skipped: {one.problem}")
        if one.kept:
            note(
                f"Host '{one.host}' keeps {len(one.kept)} old run(s) that hold the only copy of a checkpoint, e.g. "
                f"{one.kept[0]}. To remove them too, add --checkpoints."
            )
    if args.dry_run:
        note(f"Nothing was removed: --dry-run. The table shows data of trials that ended over {days} day(s) ago.")
        hint("airflow dtrain gc" + (f" --older-than {days}" if args.older_than is not None else ""))


def _hosts(args: Namespace, hook: DtrainHook, cutoff: datetime, step: Step) -> list[Collected]:
    from airflow_provider_dtrain.engine.upkeep.host_cleanup import collect_host

    records = hook.store.hosts.registered()
    if not records:
        return []
    with ThreadPoolExecutor(min(PARALLEL_HOSTS, len(records))) as threads:
        asked = [
            threads.submit(collect_host, hook, record, cutoff, dry_run=args.dry_run, with_checkpoints=args.checkpoints)
            for record in records
        ]
        for number, _ in enumerate(as_completed(asked), 1):
            step(f"{number} of {len(records)} hosts")
    return [one.result() for one in asked]


def _host_rows(hosts: list[Collected]) -> list[dict[str, Any]]:
    rows = []
    for one in hosts:
        for what, sizes in (("runs", one.runs), ("archives", one.archives)):
            rows.append(
                {
                    "where": one.host,
                    "what": what,
                    "count": len(sizes),
                    "bytes": sum(sizes.values()),
                    "skipped": one.problem,
                }
            )
    return rows


def _file_rows(hook: DtrainHook, cutoff: datetime, *, dry_run: bool) -> list[dict[str, Any]]:
    from airflow_provider_dtrain.engine.copies.tensorboard import old_event_files, remove_event_files

    found = old_event_files(hook.store, hook.settings.checkpoint_dir, cutoff)
    if not dry_run:
        remove_event_files(found)
    facts = {"count": len(found), "bytes": sum(found.values()), "skipped": None}
    return [{"where": "this machine", "what": "TensorBoard files", **facts}]


def _store_rows(hook: DtrainHook, cutoff: datetime, step: Step, *, dry_run: bool) -> list[dict[str, Any]]:
    found = {name: [0, 0] for name in hook.store.retention.kinds}
    for removed in hook.store.retention.count(cutoff) if dry_run else hook.store.retention.remove(cutoff):
        found[removed.kind][0] += removed.count
        found[removed.kind][1] += removed.size_bytes
        step(f"store: {found[removed.kind][0]} {removed.kind}")
    # Telemetry has an age of its own, and does not wait for the end of its trial.
    telemetry = found["telemetry"] = [0, 0]
    days = hook.settings.telemetry_days
    for pruned in [hook.store.telemetry.prunable(days)] if dry_run else hook.store.telemetry.prune(days):
        telemetry[0] += pruned.count
        telemetry[1] += pruned.size_bytes
        step(f"store: {telemetry[0]} telemetry chunks")
    return [
        {"where": "store", "what": name, "count": count, "bytes": size_bytes, "skipped": None}
        for name, (count, size_bytes) in found.items()
    ]


class Step(Protocol):
    """Callback that shows the progress."""

    def __call__(self, words: str) -> None:
        """Show this text in place of the last one."""


@contextmanager
def _progress() -> Iterator[Step]:
    if not sys.stderr.isatty():
        yield lambda words: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(file=unescaped(sys.stderr)).status("gc") as status:
        yield lambda words: status.update(escape(f"gc: {escaped(words)}"))
