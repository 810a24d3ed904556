"""Kill, stop and pause of a trial without a live follower."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.core.lifecycle.timing import LEASE_TTL_S
from airflow_provider_dtrain.engine.session.runtime import RECOVERY
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.upkeep.recovery import runtime_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.searches import ControlRequest


def kill_unfollowed(hook: DtrainHook, trial_id: int) -> bool:
    """Kill a trial whose follower was silent for a minute. Blocks.

    Return False when a process follows the trial, or it has ended. Slots of hosts that do not answer stay taken until
    they answer.
    """
    return asyncio.run(_instead(hook, trial_id, "kill"))


def pause_unfollowed(hook: DtrainHook, trial_id: int) -> bool:
    """Let the ranks of a trial stop for a pause when its follower was silent for a minute.

    Blocks until they have written their checkpoint. The request for the pause is in the store already. Return False
    when a process follows the trial, or none of its ranks runs.
    """
    return asyncio.run(_instead(hook, trial_id, "pause"))


def stop_unfollowed(hook: DtrainHook, trial_id: int) -> bool:
    """Stop a trial whose follower was silent for a minute. The trial keeps its results.

    Blocks until its ranks have written their checkpoint. The request for the stop is in the store already. Return
    False when a process follows the trial, or it has ended.
    """
    return asyncio.run(_instead(hook, trial_id, "stop"))


async def _instead(hook: DtrainHook, trial_id: int, request: ControlRequest) -> bool:
    from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner

    store = await in_thread(lambda: hook.store)
    attempt_id = (await in_thread(store.trials.get, trial_id)).attempt_id
    view = await in_thread(store.attempts.get, attempt_id)
    if view.ended_at is not None or await in_thread(store.attempts.silent_for_s, attempt_id) < LEASE_TTL_S:
        return False
    runs = view.state in STARTED
    if request == "pause" and not runs:
        return False
    watch = await in_thread(store.attempts.watch, attempt_id, watcher=RECOVERY)
    runner = AttemptRunner(runtime_of(hook, store, attempt_id, watch, trial_id=trial_id))
    if request == "kill":
        await runner.kill()
    elif runs:
        await runner.salvage({})
    else:
        await runner.stop()
    return True
