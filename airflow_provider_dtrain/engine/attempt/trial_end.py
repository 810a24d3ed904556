"""End of a trial: its slots are released, its outputs are copied, its result is stored."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from airflow_provider_dtrain.engine.attempt import teardown
from airflow_provider_dtrain.engine.attempt.outcome import Failure, Outcome, State, failure_dict
from airflow_provider_dtrain.engine.attempt.xcom_result import trial_result
from airflow_provider_dtrain.engine.copies.checkpoint_cleanup import find_unkept, remove_in_time
from airflow_provider_dtrain.engine.copies.last import until_copied
from airflow_provider_dtrain.engine.copies.outputs import OutputKeeper, copy_in_time
from airflow_provider_dtrain.engine.session.runtime import Killed
from airflow_provider_dtrain.engine.slots.source import slots_of

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.xcom_result import TrialResult
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.errors import DtrainError
    from airflow_provider_dtrain.store.records.trials import AttemptView


async def finish(
    rt: Runtime, view: AttemptView, state: State, error: DtrainError | None, *, is_final: bool = True
) -> Outcome:
    """Release the slots where every process is confirmed gone, and end the trial.

    :param is_final: False: the trial resumes from its latest checkpoint when Airflow retries its task
    """
    slots = slots_of(rt, view)
    if slots.keeps_files:
        await teardown.release(rt, view)
    elif view.plan is not None:
        await teardown.fence(rt, view)
    if state != "killed":
        # The trial ends in the same state when it is killed now, only without waiting.
        with contextlib.suppress(Killed):
            await until_copied(rt, OutputKeeper(rt, view).copy_last(), requests=(Killed,))
    unkept = await find_unkept(rt, view, state, error) if is_final else None
    removed = unkept.ids if unkept is not None else frozenset()
    result = await rt.db(trial_result, rt.store, view, state, without=removed)
    failure = await failure_dict(rt, error) if error is not None else None
    await rt.db(rt.store.attempts.end, rt.attempt_id, rt.watch, state=state, failure=failure, result=result)
    if unkept is not None:
        await remove_in_time(rt, unkept)
    if state == "killed":
        # Airflow may end this process within seconds, so the end was written to the store first.
        await copy_in_time(rt, view)
    if not slots.keeps_files:
        await teardown.release(rt, view)
    await slots.leave()
    return Outcome(state=state, result=result, failure=Failure(**failure) if failure is not None else None)


async def stopped(rt: Runtime, view: AttemptView) -> Outcome:
    """End a trial that a user stopped. It keeps its results."""
    if view.ended_at is not None:
        return ended(view)
    rt.log.warning("The trial was stopped by %s. Its checkpoints are kept.", rt.control_requests.stop_by or "a user")
    return await finish(rt, view, "stopped", None)


def ended(view: AttemptView) -> Outcome:
    """Return the outcome of a trial that has already ended."""
    failure = Failure(**view.failure) if view.failure else None
    states: dict[str, State] = {"completed": "completed", "stopped": "stopped", "killed": "killed"}
    state = states.get(view.trial_state, "errored")
    return Outcome(state=state, result=cast("TrialResult | None", view.result), failure=failure)
