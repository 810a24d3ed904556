"""Requests on their way from a worker to the triggerer keep their place and get no slots, on each database."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_dtrain.core.scheduling.estimated_start import NO_FOLLOWER
from airflow_provider_dtrain.engine.submission.submit import hand_over
from airflow_provider_dtrain.engine.upkeep.held_gangs import as_xcom
from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.store.records.gangs import GangView
from airflow_provider_dtrain.store.records.trials import HandOver, TrialKey
from testbed.stores import host
from tests.contract.gang_world import ask, hold
from tests.support.task_facts import task_of

pytestmark = pytest.mark.each_change


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


def granted(store) -> list[int]:
    return list(store.queue.schedule("gpus").granted)


def test_a_slot_goes_to_the_first_request_that_a_process_follows(store, submit):
    early, late = submit(slots=2, hand_over=HandOver.YES), submit(slots=2)
    assert granted(store) == [late.allocation_id]
    view = store.attempts.get(early.attempt_id)
    assert (view.watcher, view.reason) == ("handed over", f"Position 1. {NO_FOLLOWER}")


def test_a_request_gets_the_next_slot_when_its_triggerer_runs_it(store, submit):
    early, late = submit(slots=2, hand_over=HandOver.YES), submit(slots=2)
    assert granted(store) == [late.allocation_id]
    third = submit(slots=2)
    assert granted(store) == []
    store.attempts.watch(early.attempt_id, watcher="triggerer on a")
    watch = store.attempts.watch(late.attempt_id, watcher="test")
    store.attempts.end(late.attempt_id, watch, state="completed")
    assert granted(store) == [early.allocation_id]
    assert third.allocation_id not in granted(store)


def test_the_start_of_a_trigger_alone_makes_a_pass_due(store, submit):
    waits = submit(slots=2, hand_over=HandOver.YES)
    assert granted(store) == []
    store.attempts.watch(waits.attempt_id, watcher="triggerer on a")
    assert granted(store) == [waits.allocation_id]


def test_a_grant_that_comes_between_the_last_pass_of_a_worker_and_its_deferral_returns_to_the_queue(store, submit):
    first, second = submit(slots=2), submit(slots=2)
    watch = store.attempts.watch(first.attempt_id, watcher="worker")
    assert granted(store) == [first.allocation_id]
    store.attempts.hand_over(first.attempt_id, watch)
    assert store.queue.take_up(first.attempt_id, watch + 1) is None
    with pytest.raises(StaleWatchError):
        store.queue.take_up(first.attempt_id, watch)
    assert granted(store) == [second.allocation_id]
    assert store.attempts.get(first.attempt_id).placement == {}


def test_a_gang_that_was_taken_up_keeps_its_slots_when_its_worker_hands_it_over(store, submit):
    runs, waits = submit(slots=2), submit(slots=2)
    watch = store.attempts.watch(runs.attempt_id, watcher="worker")
    assert granted(store) == [runs.allocation_id]
    assert store.queue.take_up(runs.attempt_id, watch)
    store.attempts.hand_over(runs.attempt_id, watch)
    assert granted(store) == []
    assert store.attempts.get(runs.attempt_id).placement == {"h1": (0, 1)}
    assert store.attempts.get(waits.attempt_id).state == "waiting"


@pytest.fixture
def submitted(store, url, tmp_path) -> Callable[..., bool]:
    """Submit the trial of a task instance, and return whether its worker leaves it to the triggerer."""
    hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=url))
    (tmp_path / "x.py").touch()

    def submit_one(map_index: int, *, is_deferrable: bool = True, gang: GangView | None = None, **of: Any) -> bool:
        resources = {"pool": "gpus", **({} if gang is None else {"slots_per_trial": gang.slots})}
        operator = TrialOperator(
            task_id="train",
            config={"entrypoint": "python x.py", "resources": resources},
            deferrable=is_deferrable,
            allocation=None if gang is None else as_xcom(gang),
        )
        key = TrialKey(**{"dag_id": "d", "run_id": "r", "task_id": "train", "map_index": map_index, **of})
        task = task_of(key, tmp_path)
        tickets = operator._submit(hook, task)
        is_left = operator._leaves_to_triggerer(task, tickets)
        if tickets[0].is_new:
            watcher = store.attempts.get(tickets[0].attempt_id).watcher
            assert watcher == ("handed over" if is_left else None)
        return is_left

    return submit_one


def test_a_mapped_task_that_defers_leaves_all_trials_but_the_first_one_to_the_triggerer(submitted):
    assert [submitted(map_index) for map_index in (7, 0, 3)] == [False, True, True]


@pytest.mark.parametrize("of", [{"map_index": -1}, {"map_index": 3, "is_deferrable": False}])
def test_other_tasks_start_their_trials_in_their_workers(submitted, of):
    assert submitted(2) is False
    assert submitted(**of) is False


@pytest.mark.parametrize("of", [{"dag_id": "e"}, {"run_id": "s"}, {"task_id": "other"}, {"max_tries": 4}])
def test_the_first_trial_is_that_of_one_task_in_one_dag_run_until_it_is_cleared(submitted, of):
    assert submitted(0) is False
    assert submitted(1, **of) is False
    assert submitted(2, **of) is True


def test_a_retry_of_the_first_trial_leaves_it_to_the_triggerer(submitted):
    assert submitted(0) is False
    assert submitted(0) is True


def test_mapped_trials_on_a_held_gang_are_left_to_the_triggerer_too(store, submitted):
    gang = hold(store)
    assert [submitted(map_index, gang=gang) for map_index in (1, 0)] == [False, True]


def test_the_next_try_of_a_task_leaves_a_waiting_trial_to_the_triggerer_and_a_running_one_to_its_follower(
    store, submit, start
):
    runs, waits = submit(slots=2), submit(slots=2)
    watch = start(runs)
    for ticket in (runs, waits):
        hand_over(store, ticket)
    assert store.attempts.get(runs.attempt_id).watch == watch
    assert store.attempts.get(waits.attempt_id).watcher == "handed over"


def test_the_request_for_a_held_gang_waits_for_its_triggerer_too(store, submit):
    gang = ask(store, slots=2)
    watch = store.gangs.watch(gang.allocation_id, watcher="worker")
    assert granted(store) == [gang.allocation_id]
    store.gangs.hand_over(gang.allocation_id, watch)
    late = submit(slots=2)
    assert granted(store) == [late.allocation_id]
    store.attempts.end(late.attempt_id, store.attempts.watch(late.attempt_id, watcher="test"), state="completed")
    assert granted(store) == []
    store.gangs.watch(gang.allocation_id, watcher="triggerer on a")
    assert granted(store) == [gang.allocation_id]
