"""Airflow ends the task that follows a trial: a retry of the task resumes the trial. No torch."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.errors import ExecutionTimeoutError, TaskEndedError, TrialKilledError
from airflow_provider_dtrain.hooks.tasks import as_airflow
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.counting import config, ranks_of, running
from tests.support.engines import Engine, held

pytestmark = pytest.mark.usefixtures("quick_looks")

DEADLINE_S = 120.0


async def killed(engine: Engine, *, by: str | None = None) -> tuple[Ticket, Outcome]:
    """Start a trial and kill it, as ``on_kill`` or a user does."""
    ticket = engine.submit(config("library", 25), run_id="task")
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    assert engine.runtime is not None
    if by is None:
        engine.runtime.kill()
    else:
        engine.hook.store.control.kill(ticket.trial_id, by=by)
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "killed"
    assert ranks_of(engine) == []
    assert held(engine) == []
    return ticket, outcome


@pytest.mark.nightly
async def test_a_task_that_airflow_lost_and_runs_again_goes_on_with_its_trial(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    ticket, outcome = await killed(engine)
    assert engine.hook.store.trials.get(ticket.trial_id).result is not None
    caplog.clear()
    caplog.set_level(logging.INFO)
    assert outcome.failure is not None
    assert isinstance(as_airflow(outcome.failure.exception()), TaskEndedError), "Airflow may try the task again"
    again = engine.submit(config("library", 25), run_id="task")
    assert again.trial_id == ticket.trial_id
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.state, trial.result, trial.failure) == ("queued", None, None), "the end of the first attempt is over"
    outcome_again = await engine.carry(again)
    assert outcome_again is not None
    assert outcome_again.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0), "no restart counts as a failure of the user's code"
    # Airflow may have replaced the log of the first attempt.
    found = re.findall(r"Attempt 1 ended at .* UTC: (.*) Attempt 2 continues the trial\.", caplog.text)
    (cause,) = found
    assert re.fullmatch(
        r"The trial was killed by Airflow at \d\d:\d\d:\d\d UTC, while its \d ranks? ran on 'local': the task was "
        r"marked, cleared or ended there\. Airflow's audit log says by whom\.",
        cause,
    )
    assert held(engine) == []


@pytest.mark.nightly
async def test_a_trial_that_a_person_killed_stays_ended_when_its_task_runs_again(engine: Engine) -> None:
    ticket, _ = await killed(engine, by="ann")
    again = engine.submit(config("library", 25), run_id="task")
    outcome = await engine.carry(again)
    assert outcome is not None
    assert outcome.state == "killed"
    assert outcome.failure is not None
    assert outcome.failure.error == TrialKilledError.__name__
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 1


@pytest.mark.nightly("None")
@pytest.mark.parametrize("by", [None, "ann"])
async def test_a_time_out_that_killed_a_trial_is_final(engine: Engine, by: str | None) -> None:
    from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner

    ticket = engine.submit(config("library", 100_000), run_id="task")
    carrying = asyncio.ensure_future(engine.carry(ticket, hand_over_after_s=0.1))
    assert await asyncio.wait_for(carrying, DEADLINE_S) is None
    if by is not None:
        engine.hook.store.control.kill(ticket.trial_id, by=by)
    assert engine.runtime is not None
    await engine.runtime.retake(ticket.attempt_id)
    await AttemptRunner(engine.runtime).kill(ExecutionTimeoutError("too late"))
    again = engine.submit(config("library", 100_000), run_id="task")
    outcome = await engine.carry(again)
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.message == "too late"
    assert held(engine) == []
