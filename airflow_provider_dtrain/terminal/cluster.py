"""Commands that show the queue, hosts and slots."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.byte_size import byte_size
from airflow_provider_dtrain.core.clock_offset import offset_text
from airflow_provider_dtrain.terminal.arguments import GANG_PREFIX
from airflow_provider_dtrain.terminal.output import hint, is_table, placement_text, short_time, show, task_name

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from airflow_provider_dtrain.resources.gangs import GangSummary
    from airflow_provider_dtrain.resources.hosts import Cluster, ClusterHost, Holder, Slot
    from airflow_provider_dtrain.resources.jobs import SchedulerJob
    from airflow_provider_dtrain.terminal.source import Source
    from airflow_provider_dtrain.terminal.watch import View

_LOCAL = "The first trial adds this machine as the host 'local'."
_ADD = "airflow dtrain hosts add NAME --conn SSH_CONN_ID"
#: Most characters of the id of a store in a table. The other formats have the ids whole.
STORE_SHOWN = 16


def list_tasks(args: Namespace, source: Source) -> None:
    """List waiting and running gangs, the running ones first."""
    if args.watch:
        from airflow_provider_dtrain.terminal.watch import watch

        watch(lambda width: _view(source, args.pool, width))
        return
    gangs = source.gangs(args.pool)
    show(args, [_short(one) if is_table(args) else asdict(one) for one in gangs], empty="No gangs wait or run.")
    trials = [one.trial_id for one in gangs if one.trial_id is not None]
    if trials:
        hint(f"airflow dtrain explain {trials[-1]}")
    elif not gangs:
        hint("airflow dtrain experiments create CONFIG, once airflow dtrain init has written its DAG")


def _view(source: Source, pool: str | None, width: int | None) -> View:
    from airflow_provider_dtrain.terminal.watch import View, queue_lines

    gangs = source.gangs(pool)
    return View(lines=queue_lines(gangs, [_short(one) for one in gangs], width))


def _short(gang: GangSummary) -> dict[str, Any]:
    """Return the columns that fit a terminal."""
    start = f"Start: {gang.expected}." if gang.expected else ""
    return {
        "trial": gang.trial_id if gang.trial_id is not None else f"{GANG_PREFIX}{gang.allocation_id}",
        "task": task_name(gang.task),
        "slots": f"{gang.slots} of {gang.pool}",
        "priority": gang.priority,
        "state": gang.state_text if gang.job is None else f"{gang.state_text}, {_job(gang.job)}",
        "hosts": placement_text(gang.placement) or None,
        "since": short_time(gang.since),
        "reason": f"{gang.reason or ''} {start}".strip() or None,
    }


def _job(job: SchedulerJob) -> str:
    return f"job {job.number}" if job.number is not None else "no job yet"


def list_hosts(args: Namespace, source: Source) -> None:
    """List the registered hosts."""
    rows = [host_row(one) for one in source.cluster(args.pool).hosts]
    show_hosts(args, rows)
    if rows:
        hint("airflow dtrain slots list")


def host_row(host: ClusterHost) -> dict[str, Any]:
    """Return the columns of a host."""
    details = host.details
    return {
        "name": host.name,
        "pool": host.pool,
        "state": host.state,
        "slots": len(host.slots),
        "held": sum(one.allocation_id is not None for one in host.slots),
        "device": host.device_name if host.slots else host.slot_type,
        "job": host.job,
        "connection": None if details is None else details.conn_id,
        "python": None if details is None else details.python,
        "torch": None if details is None else details.torch,
        "empty_by": host.drain_by,
        "gangs_left": len(gangs_of(host)) if host.drain_by is not None else None,
        "reason": host.state_reason or None,
        "findings": host.findings.splitlines(),
        "slow_ranks": host.slow_ranks,
        "environments": 0 if details is None else details.environments,
        "environments_bytes": 0 if details is None else details.environments_bytes,
        "other_stores": [] if details is None else details.other_stores,
    }


def gangs_of(host: ClusterHost) -> set[int]:
    """Return the allocations that hold slots of a host."""
    return {one.allocation_id for one in host.slots if one.allocation_id is not None}


def show_hosts(args: Namespace, rows: list[dict[str, Any]]) -> None:
    """Print hosts. A table has columns for jobs, findings, slow ranks, deadlines and the like only if needed."""
    if is_table(args):
        is_shared = any(row["other_stores"] for row in rows)
        rows = [{name: value for name, value in row.items() if is_shared or name != "other_stores"} for row in rows]
        has_findings = any(row.get("findings") for row in rows)
        rows = [{name: value for name, value in row.items() if has_findings or name != "findings"} for row in rows]
        for row in rows if has_findings else ():
            row["findings"] = "; ".join(row["findings"]) or None
        has_jobs = any(row.get("job") for row in rows)
        rows = [{name: value for name, value in row.items() if has_jobs or name != "job"} for row in rows]
        has_slow = any(row.get("slow_ranks") for row in rows)
        rows = [{name: value for name, value in row.items() if has_slow or name != "slow_ranks"} for row in rows]
        if not any(row.get("empty_by") for row in rows):
            hidden = ("empty_by", "gangs_left")
            rows = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
        for row in rows if is_shared else ():
            row["other_stores"] = _few(row["other_stores"])
        rows = [_with_clock(row) for row in _with_environments(rows)]
    show(args, rows, empty=f"No hosts. {_LOCAL} Or register one: {_ADD}")


def _with_environments(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with one column for environments, e.g. ``3 (12.4 GiB)``."""
    sizes = [(row.pop("environments", 0), row.pop("environments_bytes", 0)) for row in rows]
    if not any(count for count, _ in sizes):
        return rows
    texts = [f"{count} ({byte_size(size_bytes)})" if count else None for count, size_bytes in sizes]
    return [{**row, "environments": text} for row, text in zip(rows, texts, strict=True)]


def _with_clock(row: dict[str, Any]) -> dict[str, Any]:
    if "clock_uncertainty_s" not in row:
        return row
    clock = offset_text(row["clock_offset_s"], row["clock_uncertainty_s"])
    kept = {name: value for name, value in row.items() if name != "clock_uncertainty_s"}
    return {("clock" if name == "clock_offset_s" else name): value for name, value in kept.items()} | {"clock": clock}


def _few(stores: Sequence[str]) -> str:
    if not stores:
        return "-"
    first = stores[0] if len(stores[0]) <= STORE_SHOWN else f"{stores[0][: STORE_SHOWN - 3]}..."
    return first if len(stores) == 1 else f"{first} and {len(stores) - 1} more"


def list_slots(args: Namespace, source: Source) -> None:
    """List slots and the trials that hold them."""
    rows = slot_rows(source.cluster(args.pool))
    show(args, rows, empty=f"No slots. {_LOCAL} Or register a host: {_ADD}")
    if any(row["trial_id"] is not None for row in rows):
        hint("airflow dtrain queue list")


def slot_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the columns of all slots, by host and index."""
    return [row for host in cluster.hosts for row in slot_rows_of(host, cluster.holders)]


def slot_rows_of(host: ClusterHost, holders: Mapping[str, Holder]) -> list[dict[str, Any]]:
    """Return the columns of the slots of a host."""
    return [_slot_row(host, index, slot, holders.get(str(slot.allocation_id))) for index, slot in enumerate(host.slots)]


def _slot_row(host: ClusterHost, index: int, slot: Slot, holder: Holder | None) -> dict[str, Any]:
    return {
        "host": host.name,
        "slot": index,
        "pool": host.pool,
        "device": slot.device or "cpu",
        "device_name": slot.device_name or host.device_name,
        "state": _slot_state(slot),
        "note": slot.note or None,
        "trial_id": None if holder is None else holder.trial_id,
        "experiment": None if holder is None else holder.experiment or None,
        "since": None if holder is None else holder.since,
    }


def _slot_state(slot: Slot) -> str:
    if slot.allocation_id is not None:
        return "stuck" if slot.state == "stuck" else "held"
    if not slot.is_enabled:
        return "disabled"
    return "free" if slot.state == "ready" else slot.state
