"""Control requests to trials whose followers are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.core.lifecycle.timing import LEASE_TTL_S
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner, Superseded
from airflow_provider_dtrain.engine.session.runtime import RECOVERY
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.engine.upkeep.recovery import ended, runtime_of
from airflow_provider_dtrain.errors import StaleWatchError

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook


def carry_out(hook: DtrainHook, trials: Iterable[int]) -> list[int]:
    """Carry out stored kills, stops, pauses and evacuations of trials whose followers were silent for a minute. Blocks.

    Ranks that stop write their checkpoints first. Slots of hosts that do not answer stay taken until they answer.

    :return: the trials with such a request; those that a process follows, or that have ended, are left out
    :raises Exception: the first error of a trial, once the request to every other one is carried out
    """
    done, errors = [], []
    for trial_id in trials:
        try:
            if asyncio.run(_carry_out(hook, trial_id)):
                done.append(trial_id)
        except (StaleWatchError, Superseded):
            # Another process has taken it over.
            continue
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return done


async def _carry_out(hook: DtrainHook, trial_id: int) -> bool:
    store = await in_thread(lambda: hook.store)
    attempt_id = (await in_thread(store.trials.get, trial_id)).attempt_id
    view = await in_thread(store.attempts.get, attempt_id)
    if view.ended_at is not None or await in_thread(store.attempts.silent_for_s, attempt_id) < LEASE_TTL_S:
        return False
    requests = await in_thread(store.control.pending, attempt_id)
    runs = view.state in STARTED
    leaves = requests.pause_by is not None or requests.evacuation.due(store.db.now()) is not None
    if requests.kill_by is None and requests.stop_by is None and not (leaves and runs):
        return False
    watch = await in_thread(store.attempts.watch, attempt_id, watcher=RECOVERY)
    runner = AttemptRunner(runtime_of(hook, store, attempt_id, watch, trial_id=trial_id))
    if requests.kill_by is not None:
        await runner.kill()
    elif runs:
        await ended(runner, {})
    else:
        await runner.stop()
    return True
