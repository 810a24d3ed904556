"""A trigger's state travels through Airflow's database and comes back the same."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.triggers.base import BaseTrigger

from airflow_provider_dtrain.engine.attempt import end_summary
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import Superseded
from airflow_provider_dtrain.engine.logs.buffer import LogPlace, Shown
from airflow_provider_dtrain.engine.logs.task_log import FILES
from airflow_provider_dtrain.engine.session.background import alongside
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.triggers import _airflow as airflow_rules
from airflow_provider_dtrain.triggers import trial as trial_module
from airflow_provider_dtrain.triggers._followed_trial import FollowedTrial
from airflow_provider_dtrain.triggers.experiment import ExperimentTrigger
from airflow_provider_dtrain.triggers.gang import GangTrigger
from airflow_provider_dtrain.triggers.trial import TrialTrigger

TRIGGERS = [
    TrialTrigger(trial_ids=[7, 8], deadline=12.5, has_sections=True),
    GangTrigger(allocation_id=7, deadline=12.5),
    ExperimentTrigger(target={"trial_id": "7", "target_states": ["completed"]}, poke_interval=12.5),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
def test_a_trigger_is_rebuilt_from_what_it_serialises_to(trigger: BaseTrigger) -> None:
    path, kwargs = trigger.serialize()
    module, name = path.rsplit(".", 1)
    rebuilt = getattr(import_module(module), name)(**kwargs)
    assert type(rebuilt) is type(trigger)
    assert rebuilt.serialize() == (path, kwargs)


@pytest.mark.parametrize("make", [lambda: TrialTrigger(trial_ids=[7]), lambda: GangTrigger(allocation_id=7)])
async def test_a_trigger_that_has_fired_kills_nothing(make: object) -> None:
    trigger = make()  # type: ignore[operator]
    trigger._fired = True
    await trigger.on_kill()


async def test_a_trigger_prepares_a_kill_once_per_triggerer_and_not_while_the_trials_of_a_search_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def is_deferred(trigger: str) -> bool:
        asked.append(trigger)
        return True

    monkeypatch.setattr(airflow_rules, "is_deferred", is_deferred)
    monkeypatch.setattr(airflow_rules, "_ASKED", set())
    async with alongside(airflow_rules.prepare_kill("short")):  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert asked == []
    monkeypatch.setattr(airflow_rules, "PREPARE_KILL_AFTER_S", 0.0)
    for name in ("first", "second"):
        await airflow_rules.prepare_kill(name)  # type: ignore[arg-type]
    assert asked == ["first"]


MARK = "[rank 0] --- trial 7, attempt 1: everything from byte 4 on left out: ... Read: airflow dtrain trials logs 7 ---"


def shown_of(store: Any, trial_id: int) -> end_summary.ShownFacts:
    return end_summary.ShownFacts(trial_id=trial_id, name=None, ending="accuracy 0.914")


class Runner:
    """Runner of an attempt that ends at once, with a log that Airflow has confirmed only in part."""

    def __init__(self, rt: Any, **options: Any) -> None:
        self.rt = rt

    async def run(self, recovery: Any) -> Outcome:
        self.rt.logs.unconfirmed = [MARK]
        return Outcome(state="completed", result={"steps": 3})


async def test_marks_that_airflow_has_not_confirmed_travel_with_the_event_to_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = SimpleNamespace(repeat=lambda parts: None, unconfirmed=[])
    runtime = SimpleNamespace(logs=logs, store=None, hook=None)
    monkeypatch.setattr(trial_module, "EARLIEST_EVENT_S", 0.0)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.runner.AttemptRunner", Runner)
    monkeypatch.setattr("airflow_provider_dtrain.engine.upkeep.recovery.BackgroundRecovery", lambda hook: None)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.end_summary.shown_of", shown_of)
    monkeypatch.setattr(FollowedTrial, "take_over", lambda self: asyncio.sleep(0, runtime))
    events = [event async for event in TrialTrigger(trial_ids=[7]).run()]
    event = json.loads(json.dumps(events[0].payload))
    warnings: list[str] = []
    log = SimpleNamespace(warning=lambda text, *values: warnings.append(text % values))
    monkeypatch.setattr(TrialOperator, "log", log)
    operator = TrialOperator(task_id="train", config={"name": "x"})
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="train", map_index=-1, max_tries=0)
    context: Any = {"ti": ti, "dag": DAG("d", schedule=None)}
    operator.trial = {"name": "5 | lr=3e-4"}
    assert operator.execute_complete(context, event) == {"steps": 3}
    assert warnings == [MARK]
    assert operator.map_index_name == "5 | lr=3e-4 -> accuracy 0.914"
    # Airflow has stored the links at the deferral.
    assert operator.operator_extra_links == ()


class Second:
    """Runner whose trial another process follows at first."""

    tries = 0

    def __init__(self, rt: Any, **options: Any) -> None:
        self.rt = rt

    async def run(self, recovery: Any) -> Outcome:
        type(self).tries += 1
        if self.tries == 1:
            raise Superseded("watch 3")
        return Outcome(state="completed", result={"steps": 3})


async def test_what_airflow_has_emptied_is_marked_first_and_shown_again_by_whichever_follower_gets_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtimes = []

    async def take_over(trial: FollowedTrial) -> Any:
        logs: list[Any] = []
        rt = SimpleNamespace(repeat=logs.extend, to_repeat=logs, unconfirmed=[])
        runtimes.append(SimpleNamespace(logs=rt, store=None, hook=None))
        return runtimes[-1]

    lines: list[str] = []
    log = SimpleNamespace(**dict.fromkeys(("info", "warning"), lambda text, *values: lines.append(text % values)))
    monkeypatch.setattr(TrialTrigger, "log", log)
    monkeypatch.setattr(TrialTrigger, "_log_file", lambda self: ("ti", 1))
    monkeypatch.setattr(FollowedTrial, "take_over", take_over)
    monkeypatch.setattr(FollowedTrial, "_until_alone", lambda self: asyncio.sleep(0))
    monkeypatch.setattr(trial_module, "EARLIEST_EVENT_S", 0.0)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.runner.AttemptRunner", Second)
    monkeypatch.setattr("airflow_provider_dtrain.engine.upkeep.recovery.BackgroundRecovery", lambda hook: None)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.end_summary.shown_of", shown_of)
    part = Shown(1, LogPlace(7, 1), 0, 500)
    FILES.note(("ti", 1), part)
    assert len([event async for event in TrialTrigger(trial_ids=[7]).run()]) == 1
    assert lines[0] == part.emptied_mark()
    assert "bytes 0 to 500 (500) left out: Airflow emptied this file" in lines[0]
    assert [rt.logs.to_repeat for rt in runtimes] == [[part], [part]]


async def test_a_trigger_whose_event_airflow_has_lost_knows_its_file_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow may end a trigger between its outcome and the delivery of its event."""
    part = Shown(1, LogPlace(7, 1), 0, 500)

    async def take_over(trial: FollowedTrial) -> Any:
        FILES.note(("ti", 2), part)
        return SimpleNamespace(logs=SimpleNamespace(repeat=list, unconfirmed=[]), store=None, hook=None)

    monkeypatch.setattr(TrialTrigger, "_log_file", lambda self: ("ti", 2))
    monkeypatch.setattr(FollowedTrial, "take_over", take_over)
    monkeypatch.setattr(trial_module, "EARLIEST_EVENT_S", 0.0)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.runner.AttemptRunner", Runner)
    monkeypatch.setattr("airflow_provider_dtrain.engine.upkeep.recovery.BackgroundRecovery", lambda hook: None)
    monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.end_summary.shown_of", shown_of)
    assert len([event async for event in TrialTrigger(trial_ids=[7]).run()]) == 1
    assert FILES.reopened(("ti", 2)) == [part]
