"""External schedulers of pools, for commands that reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.errors import DtrainError, UsageError
from airflow_provider_dtrain.terminal.output import note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


def refresh_facts(hook: DtrainHook, name: str) -> None:
    """Store what the scheduler of a pool answers now. If it does not answer, the stored facts stay, with a warning."""
    from airflow_provider_dtrain.engine.slots.scheduler_facts import refreshed
    from airflow_provider_dtrain.hooks.schedulers import scheduler

    pool = next((one for one in hook.store.pools.list() if one.name == name), None)
    if pool is None or not pool.is_external:
        return
    try:
        refreshed(hook.store, pool, scheduler(pool))
    except DtrainError as error:
        note(f"Warning: the scheduler of pool '{name}' cannot be asked now. {error}")


def check_options(pool: str, backend: str, options: Mapping[str, Any]) -> None:
    """Check before they are stored that a scheduler can serve a pool with these options, if it answers.

    :raises UsageError: no job of the pool could be submitted
    """
    from airflow_provider_dtrain.hooks.schedulers import scheduler_with

    try:
        problem = scheduler_with(pool, backend, options).describe().problem
    except DtrainError:
        # The request for its facts, which follows, warns of it.
        return
    if problem:
        raise UsageError(f"Pool '{pool}' is not changed, because no job of it could be submitted. {problem}")
