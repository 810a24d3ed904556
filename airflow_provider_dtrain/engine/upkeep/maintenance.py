"""Lease extension: hosts are notified at once how long their live runs may go without a renewal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.states import ACTIVE, HostState
from airflow_provider_dtrain.core.lifecycle.timing import COMMAND_TIMEOUT_S
from airflow_provider_dtrain.engine.upkeep.evacuation import evacuate
from airflow_provider_dtrain.errors import DtrainError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.lifecycle.control import Deadline
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

PARALLEL_HOSTS = 16
#: A follower that read the store before the maintenance may send one more renewal of the usual length, with its next
#: beat.
BEAT_S = 6.0


@dataclass(frozen=True, kw_only=True)
class Notified:
    """Result of notifying one host."""

    host: str
    runs: tuple[str, ...]
    #: Why the host could not be notified; None = it was.
    problem: str | None = None


def begin(hook: DtrainHook, seconds: float, by: str, reason: str = "") -> tuple[datetime, list[Notified]]:
    """Extend all leases, and return until when, and the result for each host with live runs. Blocks for a beat.

    :param seconds: new length of the leases
    :param by: the user
    :param reason: shown to other users
    """
    store = hook.store
    until = store.maintenance.set(store.db.now() + timedelta(seconds=seconds), by=by, reason=reason).until
    runs = live_runs(hook)
    notified = notify_hosts(hook, runs, _lease_s(hook, seconds))
    if runs:
        # Repeat after one beat: a follower may have renewed with the usual length in the meantime.
        time.sleep(BEAT_S)
        notified = notify_hosts(hook, live_runs(hook), _lease_s(hook, store.maintenance.left_s()))
    return until, notified


def drain(
    hook: DtrainHook, until: datetime, names: Sequence[str], deadline: Deadline, by: str, reason: str
) -> dict[str, list[str]]:
    """Evacuate hosts for a maintenance window, at whose end they get gangs again.

    Hosts that are not ready, and nodes of jobs, are left alone.

    :param until: end of the window
    :param names: of the hosts; empty: all
    :param by: the user
    :param reason: shown to other users
    :return: host -> what happens to each gang there, in words
    :raises NotFoundError: there is no host with one of these names
    """
    store = hook.store
    records = [store.hosts.get(name) for name in dict.fromkeys(names)] or store.hosts.registered()
    ready = [one.name for one in records if one.state == HostState.READY and not one.is_node]
    # In this order: an end of this process in between leaves no host that the end of the window does not enable.
    store.maintenance.set(until, by=by, reason=reason, hosts=ready)
    text = f"maintenance: {reason}" if reason else "maintenance"
    return {name: evacuate(store, name, deadline, text, by) for name in ready}


def enable(hook: DtrainHook, names: Sequence[str], by: str) -> list[str]:
    """Let hosts that were drained for a maintenance window get gangs again, and return those.

    :param names: of the hosts; those that a user has removed, enabled or disabled meanwhile are left alone
    """
    store = hook.store
    drained = [
        one.name
        for one in store.hosts.registered()
        if one.name in names and one.state in (HostState.DRAINING, HostState.DRAINED)
    ]
    for name in drained:
        store.hosts.set_state(name, HostState.READY, by=by)
    return drained


def end(hook: DtrainHook, by: str) -> tuple[list[Notified], list[str]] | None:
    """Give leases their usual length again, and enable the hosts that were drained for the maintenance.

    :param by: the user
    :return: the result for each host, and the hosts that get gangs again; None without a maintenance
    """
    hold = hook.store.maintenance.get_or_over()
    if hold is None:
        return None
    enabled = enable(hook, hold.hosts, by)
    hook.store.maintenance.end(by=by)
    notified = notify_hosts(hook, live_runs(hook), hook.settings.orphan_timeout_s)
    if all(one.problem is None for one in notified):
        hook.store.maintenance.leases_shortened()
    return notified, enabled


def _lease_s(hook: DtrainHook, seconds: float) -> float:
    usual_s = hook.settings.orphan_timeout_s
    return max(usual_s, seconds) if usual_s else 0.0


def live_runs(hook: DtrainHook) -> dict[str, tuple[str, ...]]:
    """Return the runs whose lease counts, by host."""
    found: dict[str, list[str]] = {}
    for task in hook.store.queue_view.tasks():
        # A gang that is held between two tasks has no run.
        if task.state not in (*ACTIVE, "expired") or not task.attempt_id:
            continue
        view = hook.store.attempts.get(task.attempt_id)
        for host in view.held_hosts if view.run else ():
            found.setdefault(host, []).append(str(view.run))
    return {host: tuple(sorted(runs)) for host, runs in sorted(found.items())}


def notify_hosts(hook: DtrainHook, runs: Mapping[str, tuple[str, ...]], lease_s: float) -> list[Notified]:
    """Give the runs of every host a new lease, and return the result for each host.

    :param lease_s: seconds without a renewal after which a run ends itself; 0 = never
    """
    if not runs:
        return []
    with ThreadPoolExecutor(min(PARALLEL_HOSTS, len(runs))) as threads:
        return list(threads.map(lambda host: _notify(hook, host, runs[host], lease_s), runs))


def _notify(hook: DtrainHook, host: str, runs: tuple[str, ...], lease_s: float) -> Notified:
    try:
        link = hook.link(hook.store.hosts.get(host))
        # The host counts from a reading of its own clock that is newer than any follower's.
        reading = link.call("probe", timeout_s=COMMAND_TIMEOUT_S).result(COMMAND_TIMEOUT_S + 5)["boottime_s"]
        renewal = link.call(
            "renew", runs=list(runs), boottime_s=reading, orphan_timeout_s=lease_s, timeout_s=COMMAND_TIMEOUT_S
        )
        renewal.result(COMMAND_TIMEOUT_S + 5)
    except DtrainError as error:
        return Notified(host=host, runs=runs, problem=str(error))
    return Notified(host=host, runs=runs)
