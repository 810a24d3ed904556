"""Tasks with several trials: their followers, and the end of the task."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_dtrain.engine.attempt import siblings
from airflow_provider_dtrain.engine.attempt.outcome import Failure, Outcome, State
from airflow_provider_dtrain.engine.attempt.runner import Superseded
from airflow_provider_dtrain.engine.attempt.siblings import follow_all
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.errors import ConfigError, Kind, StoreUnavailableError
from airflow_provider_dtrain.hooks.tasks import as_airflow
from airflow_provider_dtrain.operators._several_trials import (
    MOST_NAMED,
    FinishedTrial,
    counts_text,
    failure_of,
    results_of,
    trials_of,
)
from airflow_provider_dtrain.operators.trial import TrialOperator


class Records:
    """A logger that keeps its records."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __getattr__(self, level: str) -> Any:
        return lambda text, *args: self.texts.append(text % args)


class Followers:
    """Followers of trials that raise or return, one step of a script after the other."""

    def __init__(self, **scripts: list[Any]) -> None:
        self.scripts = {int(name.removeprefix("t")): script for name, script in scripts.items()}
        self.records = Records()
        self.begun: list[int] = []
        self.cancelled: list[int] = []

    async def follow(self, trial_id: int) -> str:
        self.begun.append(trial_id)
        step = self.scripts[trial_id].pop(0)
        try:
            if isinstance(step, asyncio.Event):
                await step.wait()
                step = "ended"
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(trial_id)
            raise
        if isinstance(step, Exception):
            raise step
        return f"{trial_id} {step}"

    async def all(self) -> list[str]:
        followers = {one: functools.partial(self.follow, one) for one in self.scripts}
        work = follow_all(followers, {one: TaskLog(self.records, None, section=one) for one in self.scripts})
        return await asyncio.wait_for(work, 20)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "SIBLING_RETRY_S", 0.01)


AWAY = StoreUnavailableError("the store does not answer")


async def test_results_are_in_the_order_of_the_trials_and_all_are_followed_at_once() -> None:
    late = asyncio.Event()
    followers = Followers(t7=[late], t8=["ended"], t9=["ended"])
    asyncio.get_running_loop().call_later(0.05, late.set)
    assert await followers.all() == ["7 ended", "8 ended", "9 ended"]
    assert followers.begun == [7, 8, 9]


async def test_a_follower_that_fails_starts_again_while_a_sibling_works() -> None:
    late = asyncio.Event()
    followers = Followers(t7=[AWAY, ValueError("bug"), "ended"], t8=[late])
    asyncio.get_running_loop().call_later(0.5, late.set)
    assert await followers.all() == ["7 ended", "8 ended"]
    assert followers.begun == [7, 8, 7, 7]
    first, second = followers.records.texts
    assert first.startswith("[trial 7] The follower of trial 7 failed (StoreUnavailableError: the store does not")
    assert "ValueError: bug" in second


async def test_the_error_of_the_last_follower_is_raised_and_airflow_retries_the_task() -> None:
    with pytest.raises(StoreUnavailableError):
        await Followers(t7=[AWAY]).all()
    followers = Followers(t7=["ended"], t8=[AWAY, AWAY, AWAY])
    with pytest.raises(StoreUnavailableError):
        await followers.all()
    with pytest.raises(StoreUnavailableError):
        await Followers(t7=[AWAY] * 9, t8=[AWAY] * 9).all()


async def test_a_follower_that_was_replaced_is_not_started_again() -> None:
    followers = Followers(t7=[Superseded("watch 3")], t8=[asyncio.Event()])
    with pytest.raises(Superseded):
        await followers.all()
    assert (followers.begun, followers.cancelled) == ([7, 8], [8])


def ended(
    trial_id: int, state: State = "completed", *, kind: Kind = "user", error: str = "RankFailedError"
) -> FinishedTrial:
    """Return a trial that has ended. One without a result has a failure."""
    failure = None if state in ("completed", "stopped") else Failure(error=error, kind=kind, message=f"bad\n{trial_id}")
    result: Any = None if failure else {"trial_id": trial_id, "experiment_id": 3}
    outcome = Outcome(state=state, result=result, failure=failure)
    return FinishedTrial(trial_id=trial_id, name=f"{trial_id - 5} | lr=0.1", ending=state, outcome=outcome)


def test_a_task_whose_trials_have_results_returns_all_of_them() -> None:
    ends = [ended(7), ended(8, "stopped"), ended(9)]
    assert failure_of(ends) is None
    assert results_of(ends) == {
        "experiment_id": 3,
        "trials": [{"trial_id": number, "experiment_id": 3} for number in (7, 8, 9)],
    }
    assert counts_text(ends) == "2 completed, 1 stopped"


def test_the_error_names_the_failed_trials_and_why() -> None:
    ends = [ended(7), ended(8, "errored"), ended(9, "killed", error="TrialKilledError")]
    error = failure_of(ends)
    assert error is not None
    assert str(error) == "2 of 3 trials failed: trial 8 (3 | lr=0.1): bad; trial 9 (4 | lr=0.1): bad"
    assert isinstance(as_airflow(error), AirflowFailException), "a retry would not help"


@pytest.mark.parametrize("kind", ["infra", "platform"])
def test_airflow_retries_a_task_if_that_helps_one_of_its_trials(kind: Kind) -> None:
    error = failure_of([ended(7, "errored"), ended(8, "errored", kind=kind, error="HostUnreachableError")])
    assert error is not None
    assert as_airflow(error) is error
    assert str(error).startswith("2 of 2 trials failed: trial 7 (2 | lr=0.1): bad; trial 8")


def test_the_error_of_many_trials_is_short() -> None:
    error = failure_of([ended(number, "errored") for number in range(10, 60)])
    assert str(error).count("(") == MOST_NAMED
    assert str(error).endswith("; and 40 more")


PLANNED = {"name": "trials 0 to 1", "search_id": 4, "trials": [{"number": n, "search_id": 4} for n in (0, 1)]}


def test_an_element_of_a_plan_is_one_trial_or_several() -> None:
    assert trials_of({"number": 0, "search_id": 4}) is None
    assert trials_of(None) is None
    assert trials_of(PLANNED) == PLANNED["trials"]


@pytest.mark.parametrize(
    "trials", [[], "ab", 3, None, [3], [{"number": 0}], [{"search_id": 4}, {"search_id": 5}], {"search_id": 4}]
)
def test_an_element_that_was_changed_is_refused(trials: Any) -> None:
    with pytest.raises(ConfigError, match="trial.trials: must be the trials of one search"):
        trials_of({**PLANNED, "trials": trials})


def test_a_task_of_several_trials_is_named_by_their_numbers() -> None:
    task = TrialOperator(task_id="trial", trial=PLANNED)
    assert task.map_index_name == "trials 0 to 1"
    task._ending = "1 completed, 1 errored"
    assert task.map_index_name == "trials 0 to 1 -> 1 completed, 1 errored"
