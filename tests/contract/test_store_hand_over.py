"""Requests on their way from a worker to the triggerer keep their place and get no slots, on each database."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_dtrain.core.scheduling.estimated_start import NO_FOLLOWER
from airflow_provider_dtrain.engine.submission.submit import hand_over
from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.stores import host
from tests.contract.gang_world import ask
from tests.support.task_facts import task_of

pytestmark = pytest.mark.each_change


@pytest.fixture(autouse=True)
def _host(store):
    store.hosts.add(host("h1", 2))


def granted(store) -> list[int]:
    return list(store.queue.schedule("gpus").granted)


def test_a_slot_goes_to_the_first_request_that_a_process_follows(store, submit):
    early, late = submit(slots=2, is_handed_over=True), submit(slots=2)
    assert granted(store) == [late.allocation_id]
    view = store.attempts.get(early.attempt_id)
    assert (view.watcher, view.reason) == ("handed over", f"Position 1. {NO_FOLLOWER}")


def test_a_request_gets_the_next_slot_when_its_triggerer_runs_it(store, submit):
    early, late = submit(slots=2, is_handed_over=True), submit(slots=2)
    assert granted(store) == [late.allocation_id]
    third = submit(slots=2)
    assert granted(store) == []
    store.attempts.watch(early.attempt_id, watcher="triggerer on a")
    watch = store.attempts.watch(late.attempt_id, watcher="test")
    store.attempts.end(late.attempt_id, watch, state="completed")
    assert granted(store) == [early.allocation_id]
    assert third.allocation_id not in granted(store)


def test_the_start_of_a_trigger_alone_makes_a_pass_due(store, submit):
    waits = submit(slots=2, is_handed_over=True)
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


@pytest.mark.parametrize(
    ("map_index", "is_deferrable", "watcher"), [(3, True, "handed over"), (3, False, None), (-1, True, None)]
)
def test_only_a_mapped_task_that_defers_leaves_its_trial_to_the_triggerer(
    store, url, tmp_path, map_index, is_deferrable, watcher
):
    hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=url))
    config = {"entrypoint": "python x.py", "resources": {"pool": "gpus"}}
    operator = TrialOperator(task_id="train", config=config, deferrable=is_deferrable)
    (tmp_path / "x.py").touch()
    key = TrialKey(dag_id="d", run_id="r", task_id="train", map_index=map_index)
    (ticket,) = operator._submit(hook, task_of(key, tmp_path))
    assert store.attempts.get(ticket.attempt_id).watcher == watcher


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
