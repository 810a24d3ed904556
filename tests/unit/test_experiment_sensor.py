"""ExperimentSensor and its trigger on a real store: states, names, time limits, and the XCom."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_dtrain.core.lifecycle.states import ExperimentState, TrialState
from airflow_provider_dtrain.engine.observation import ENDED, STATES, Target
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.sensors.experiment import ExperimentSensor
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.triggers import experiment as trigger_module
from airflow_provider_dtrain.triggers.experiment import ExperimentTrigger
from testbed.stores import host


@pytest.fixture
def hook(tmp_path, monkeypatch: pytest.MonkeyPatch) -> DtrainHook:
    monkeypatch.setenv("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", f"sqlite:///{tmp_path}/dtrain.db")
    hook = DtrainHook()
    hook.store.hosts.add(host("gpu-01", slots=2))
    return hook


def submit(hook: DtrainHook, name: str = "digits", run_id: str = "run") -> Ticket:
    config = hook.store.configs.put({"entrypoint": "python train.py"}, origins={})
    key = TrialKey(dag_id="other", run_id=run_id, task_id="train")
    values: dict[str, Any] = {"experiment_name": name, "pool": "gpus", "slots": 1, "config_id": config.config_id}
    return hook.store.trials.submit(TrialSubmission(key=key, **values))


def end(hook: DtrainHook, ticket: Ticket, state: Any, **more: Any) -> None:
    watch = hook.store.attempts.watch(ticket.attempt_id, watcher="test")
    hook.store.attempts.end(ticket.attempt_id, watch, state=state, **more)


def sensor(**options: Any) -> ExperimentSensor:
    return ExperimentSensor(**{"task_id": "wait", "deferrable": False, "poke_interval": 0, **options})


def test_a_completed_trial_returns_its_state_and_result(hook: DtrainHook) -> None:
    ticket = submit(hook)
    waiting = sensor(trial_id=f" {ticket.trial_id} ")
    assert not waiting.poke({})
    end(hook, ticket, "completed", result={"metric": 0.9})
    expected = {"experiment_id": 1, "trial_id": 1, "state": "completed", "result": {"metric": 0.9}}
    assert waiting.execute({}) == expected


@pytest.mark.parametrize("target", ["digits", "1", 1])
def test_an_experiment_is_found_by_name_and_by_id(hook: DtrainHook, target: Any) -> None:
    ticket = submit(hook)
    assert not sensor(experiment=target).poke({})
    end(hook, ticket, "completed")
    expected = {"experiment_id": 1, "state": "completed", "best": None, "best_trial": None, "trials": {"completed": 1}}
    assert json.loads(json.dumps(sensor(experiment=target).execute({}))) == expected


def test_the_newest_experiment_of_a_name_counts_unless_a_dag_run_is_given(hook: DtrainHook) -> None:
    end(hook, submit(hook, run_id="first"), "completed")
    submit(hook, run_id="second")
    assert not sensor(experiment="digits").poke({})
    within = {"external_dag_id": "other", "external_run_id": "first"}
    assert sensor(experiment="digits", **within).execute({})["experiment_id"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"experiment": "digit"}, "There is no experiment named 'digit'. See: "),
        ({"experiment": "digits", "external_dag_id": "none"}, "no experiment named 'digits' of DAG 'none'"),
        ({"experiment": 77}, "There is no experiment 77"),
        ({"trial_id": 77}, "There is no trial 77"),
        ({"trial_id": "best"}, "trial_id must be the id of a trial, a whole number, got 'best'"),
    ],
)
@pytest.mark.parametrize("deferrable", [False, True])
def test_an_unknown_name_fails_at_once(hook: DtrainHook, options: Any, words: str, deferrable: bool) -> None:
    submit(hook)
    with pytest.raises(AirflowFailException, match=words):
        sensor(**options, deferrable=deferrable).execute({})
    with pytest.raises(AirflowSkipException, match=words):
        sensor(**options, deferrable=deferrable, soft_fail=True).execute({})


def test_a_failed_trial_fails_the_sensor_with_its_cause(hook: DtrainHook) -> None:
    ticket = submit(hook)
    end(hook, ticket, "errored", failure={"kind": "user", "message": "loss is NaN"})
    words = "Trial 1 of experiment 'digits' is errored, expected completed or stopped: loss is NaN"
    with pytest.raises(AirflowFailException, match=words):
        sensor(trial_id=1).execute({})
    with pytest.raises(AirflowSkipException, match=words):
        sensor(trial_id=1, soft_fail=True).execute({})
    with pytest.raises(AirflowFailException, match=r"Experiment 1 \('digits'\) is errored, expected completed\."):
        sensor(experiment="digits").execute({})


def test_given_states_replace_the_usual_ones(hook: DtrainHook) -> None:
    ticket = submit(hook)
    assert sensor(trial_id=1, target_states="queued").execute({})["state"] == "queued"
    end(hook, ticket, "errored", failure={"kind": "infra", "message": "host lost"})
    assert sensor(trial_id=1, target_states=["errored", "completed"]).execute({})["state"] == "errored"
    assert not sensor(trial_id=1, failed_states=["killed"]).poke({}), "Airflow may retry the trial"
    with pytest.raises(AirflowFailException, match="is errored, expected running"):
        sensor(trial_id=1, target_states=["running"]).execute({})


def test_a_sensor_that_waits_too_long_times_out_and_a_rescheduled_one_frees_its_worker(hook: DtrainHook) -> None:
    submit(hook)
    with pytest.raises(AirflowSensorTimeout):
        sensor(trial_id=1, timeout=0).execute({})
    with pytest.raises(AirflowSkipException):
        sensor(trial_id=1, timeout=0, soft_fail=True).execute({})
    ti = type("TaskInstance", (), {"get_first_reschedule_date": lambda self, context: None})()
    with pytest.raises(AirflowRescheduleException):
        sensor(trial_id=1, mode="reschedule", poke_interval=60).execute({"ti": ti})


async def observed(deferred: TaskDeferred, meanwhile: Any) -> Any:
    """Return the event of a deferred sensor's trigger, rebuilt from Airflow's database."""
    path, kwargs = deferred.trigger.serialize()
    assert path == "airflow_provider_dtrain.triggers.experiment.ExperimentTrigger"
    rebuilt = ExperimentTrigger(**json.loads(json.dumps(kwargs)))
    waiting = asyncio.ensure_future(anext(rebuilt.run()))
    await asyncio.to_thread(meanwhile)
    event = await asyncio.wait_for(waiting, 60)
    return json.loads(json.dumps(event.payload))


def test_the_triggerer_waits_for_what_is_not_reached_yet(hook: DtrainHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger_module, "EARLIEST_EVENT_S", 0.0)
    first, second = submit(hook, "first", "first"), submit(hook, "second", "second")
    waiting = sensor(experiment="first", deferrable=True, poke_interval=0.05, timeout=90)
    failing = sensor(trial_id=second.trial_id, deferrable=True, poke_interval=0.05, soft_fail=True)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute({})
    assert deferred.value.timeout is not None
    assert deferred.value.timeout.total_seconds() == 90
    event = asyncio.run(observed(deferred.value, lambda: end(hook, first, "completed")))
    assert waiting.execute_complete({}, event)["state"] == "completed"
    assert waiting.execute({})["state"] == "completed", "no detour over the triggerer"
    with pytest.raises(TaskDeferred) as deferred:
        failing.execute({})
    event = asyncio.run(observed(deferred.value, lambda: end(hook, second, "killed")))
    with pytest.raises(AirflowSkipException, match="is killed, expected completed or stopped"):
        failing.execute_complete({}, event)


async def test_the_trigger_reports_an_experiment_that_does_not_exist(
    hook: DtrainHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger_module, "EARLIEST_EVENT_S", 0.0)
    target = Target(experiment="none", target_states=("completed",), failed_states=())
    event = await anext(ExperimentTrigger(target=target.to_dict(), poke_interval=0.05).run())
    with pytest.raises(AirflowFailException, match="no experiment named 'none'"):
        sensor(experiment="none").execute_complete({}, event.payload)


class Polled(DtrainHook):
    """A hook that counts how often its store is asked for."""

    polls: ClassVar[list[None]] = []

    @property
    def store(self) -> Any:  # type: ignore[override]
        self.polls.append(None)
        return DtrainHook().store


@pytest.mark.parametrize("deferred", [False, True])
async def test_a_store_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch, deferred: bool) -> None:
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    monkeypatch.setenv("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", "postgresql+psycopg://dtrain@127.0.0.1:1/dtrain")
    if not deferred:
        assert not await asyncio.to_thread(sensor(trial_id=1).poke, {})
        return
    polls: list[None] = []
    monkeypatch.setattr(Polled, "polls", polls)
    monkeypatch.setattr(trigger_module, "DtrainHook", Polled)
    target = Target(trial_id="1", target_states=("completed",), failed_states=())
    waiting = asyncio.ensure_future(anext(ExperimentTrigger(target=target.to_dict(), poke_interval=0.01).run()))
    async with asyncio.timeout(60):
        while len(polls) < 3 and not waiting.done():
            await asyncio.sleep(0.01)
    assert waiting.cancel(), "it still waits"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of experiment and trial_id"),
        ({"experiment": "a", "trial_id": 1}, "exactly one of experiment and trial_id"),
        ({"experiment": "a", "target_states": ["stopped"]}, r"target_states must be states of experiments .*'stopped'"),
        ({"trial_id": 1, "failed_states": "gone"}, r"failed_states must be states of trials .*, got 'gone'"),
    ],
)
def test_a_sensor_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sensor(**options)


def test_the_states_are_those_of_the_store() -> None:
    assert {"experiment": tuple(ExperimentState), "trial": tuple(TrialState)} == STATES
    assert set(STATES["trial"]) >= ENDED


def test_a_dag_with_the_sensor_can_be_serialized() -> None:
    with DAG("waits", schedule=None) as made:
        sensor(experiment="{{ params.name }}", mode="reschedule")
    found = DagSerialization.from_dict(DagSerialization.to_dict(made)).task_dict["wait"]
    assert found.template_fields == ["experiment", "trial_id", "external_dag_id", "external_run_id"]
