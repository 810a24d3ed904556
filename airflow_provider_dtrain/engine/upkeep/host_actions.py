"""Actions on hosts that need no connection to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.states import HostState

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store


def runs_on(store: Store, host: str) -> list[AttemptView]:
    """Return the attempts that hold slots on a host."""
    views = [
        store.attempts.get(task.attempt_id)
        for task in store.queue_view.tasks()
        if task.attempt_id is not None and host in task.placement
    ]
    return [view for view in views if host in view.held_hosts]


def disable_host(store: Store, host: str, by: str, reason: str = "") -> list[int]:
    """Disable a host, request a kill of the trials that hold slots there, and return their ids."""
    running = runs_on(store, host)
    store.hosts.set_state(host, HostState.DISABLED, reason or f"disabled by {by}", by=by)
    for view in running:
        store.control.kill(view.trial_id, by)
    return [view.trial_id for view in running]
