"""Cleanup of hosts: removes the folders of ended runs, and unused archives.

The host reports which of them are old. The store decides which of them are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.timing import COLLECT_AGE_S, COLLECT_TIMEOUT_S
from airflow_provider_dtrain.errors import DtrainError, HostProtocolError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import HostRecord

#: Names in one command.
PIECE = 500


@dataclass(kw_only=True)
class Collected:
    """Runs and archives that were, or would be, removed on one host."""

    host: str
    #: run or ``kind/digest`` -> bytes
    runs: dict[str, int] = field(default_factory=dict)
    archives: dict[str, int] = field(default_factory=dict)
    #: Old runs that stay because they hold the only copy of a checkpoint.
    kept: tuple[str, ...] = ()
    #: Why the host was skipped.
    problem: str | None = None


def collect_host(
    hook: DtrainHook, record: HostRecord, cutoff: datetime, *, dry_run: bool, with_checkpoints: bool = False
) -> Collected:
    """Remove old and unneeded runs and archives on a host. Blocks.

    A host that is disabled, unreachable or lost is skipped.

    :param cutoff: trials that ended before it are old
    :param with_checkpoints: also remove runs that hold the only copy of a checkpoint
    """
    found = Collected(host=record.name)
    if record.state in ("disabled", "unreachable", "lost"):
        found.problem = f"it is {record.state}"
        return found
    try:
        _collect(hook, hook.link(record), found, cutoff, dry_run=dry_run, with_checkpoints=with_checkpoints)
    except DtrainError as error:
        found.problem = str(error)
    return found


def _collect(
    hook: DtrainHook, link: HostLink, found: Collected, cutoff: datetime, *, dry_run: bool, with_checkpoints: bool
) -> None:
    age_s = max(COLLECT_AGE_S, (datetime.now(UTC) - cutoff).total_seconds())
    old = _call(link, older_than_s=age_s, dry_run=True)
    sizes = sizes_in(link.host, old, "sizes")
    archives = sizes_in(link.host, old, "archives")
    # Read after the host has answered: a run that began since then is too young to be in its answer.
    needed = hook.store.retention.needed_archives(cutoff)
    runs, kept = hook.store.retention.collectable(sizes, cutoff, with_checkpoints=with_checkpoints)
    found.kept = tuple(kept)
    unused = [name for name in sorted(archives) if name.partition("/")[2] not in needed]
    if dry_run:
        found.runs = {run: sizes[run] for run in runs}
        found.archives = {name: archives[name] for name in unused}
        return
    for start in range(0, len(runs), PIECE):
        removed = sizes_in(link.host, _call(link, older_than_s=age_s, runs=runs[start : start + PIECE]), "sizes")
        found.runs |= {run: removed[run] for run in runs if run in removed}
        hook.store.retention.runs_collected(link.host, sorted(removed))
    for start in range(0, len(unused), PIECE):
        answer = _call(link, older_than_s=age_s, runs=[], archives=unused[start : start + PIECE])
        found.archives |= sizes_in(link.host, answer, "archives")


def _call(link: HostLink, **arguments: Any) -> JsonObject:
    return link.call("collect", timeout_s=COLLECT_TIMEOUT_S, **arguments).result(COLLECT_TIMEOUT_S + 5)


def sizes_in(host: str, answer: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return the names and sizes in an answer, and check them because hosts are not trusted."""
    value = answer.get(name)
    if not isinstance(value, dict) or not all(_is_size(size) for size in value.values()):
        raise HostProtocolError(
            host, f"Host '{host}' answered 'collect' without sizes in '{name}'. Nothing was removed."
        )
    return dict(value)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def total(found: Sequence[Collected], what: str) -> tuple[int, int]:
    """Return the number and the total bytes over all hosts.

    :param what: ``runs`` or ``archives``
    """
    sizes = [size for one in found for size in getattr(one, what).values()]
    return len(sizes), sum(sizes)
