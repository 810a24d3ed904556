"""Gangs held for several tasks: one task requests the gang, further tasks use it one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_dtrain.errors import (
    ConflictError,
    GangEndedError,
    StaleWatchError,
    UnplaceableError,
    UserError,
)
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from airflow_provider_dtrain.store.store import Store
from tests.contract.gang_world import BAD, HOLD_S, ask, begin, end, held, hold
from tests.support.store_world import Clock


def test_a_gang_is_granted_by_the_queue_and_held_for_later_tasks(world: Store, clock: Clock) -> None:
    view = hold(world)
    assert view.placement == {"gpu-01": (0, 1)}
    assert (view.state, view.attempt_id) == ("running", None)
    assert view.held_until is not None
    assert (view.held_until - clock()).total_seconds() == HOLD_S
    assert held(world) == [0, 1]


def test_a_gang_waits_behind_others_with_the_reason(
    world: Store, submit: Callable[..., Ticket], start: Callable[[Ticket], int]
) -> None:
    start(submit(slots=2))
    asked = ask(world)
    world.schedule("gpus")
    view = world.renew_gang_request(asked.allocation_id, world.watch_gang(asked.allocation_id, watcher="sensor"))
    assert view.state == "waiting"
    assert "2" in view.reason
    assert [task.position for task in world.tasks() if task.trial_id is None] == [1]


def test_a_gang_that_no_hosts_can_hold_is_refused_at_once(world: Store) -> None:
    with pytest.raises(UnplaceableError, match="3"):
        ask(world, slots=3)
    assert world.tasks() == []


@pytest.mark.parametrize("wrong", [{"slots": -1}, {"priority": 0}, {"hold_for_s": 0.0}])
def test_numbers_out_of_range_are_refused(world: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ask(world, **wrong)


def test_a_retry_of_the_task_gets_the_same_gang(world: Store) -> None:
    first = hold(world)
    assert ask(world).allocation_id == first.allocation_id


def test_a_retry_after_the_gang_has_ended_gets_another_one(world: Store) -> None:
    first = hold(world)
    world.end_gang(first.allocation_id, "released")
    assert ask(world).allocation_id != first.allocation_id
    assert world.gang(first.allocation_id).state == "released"


def test_a_cleared_task_finds_its_older_gang_and_gets_another_one(world: Store) -> None:
    older = hold(world)
    key = TrialKey(dag_id="d", run_id="r", task_id="gang", max_tries=1)
    assert [view.allocation_id for view in world.older_gangs(key)] == [older.allocation_id]
    world.end_gang(older.allocation_id, "the task was cleared")
    assert world.older_gangs(key) == []
    assert hold(world, max_tries=1).allocation_id != older.allocation_id


def test_only_the_current_follower_takes_a_gang_up(world: Store) -> None:
    asked = ask(world)
    old = world.watch_gang(asked.allocation_id, watcher="worker")
    new = world.watch_gang(asked.allocation_id, watcher="triggerer")
    world.schedule("gpus")
    with pytest.raises(StaleWatchError, match="triggerer"):
        world.take_up_gang(asked.allocation_id, old)
    assert world.take_up_gang(asked.allocation_id, new) is not None


def test_a_grant_that_is_not_taken_up_waits_again(world: Store, clock: Clock) -> None:
    asked = ask(world)
    watch = world.watch_gang(asked.allocation_id, watcher="sensor")
    world.schedule("gpus")
    clock.advance(31)
    world.renew_gang_request(asked.allocation_id, watch)
    world.schedule("gpus")
    view = world.take_up_gang(asked.allocation_id, watch)
    assert view is not None
    assert view.token == 2


def test_a_withdrawn_request_leaves_nothing(world: Store) -> None:
    asked = ask(world)
    watch = world.watch_gang(asked.allocation_id, watcher="sensor")
    world.end_gang(asked.allocation_id, "the task was ended", watch=watch)
    world.schedule("gpus")
    assert held(world) == []
    assert world.tasks() == []
    with pytest.raises(GangEndedError, match="the task was ended"):
        world.renew_gang_request(asked.allocation_id, watch)


def test_a_request_that_nobody_renews_for_a_day_is_removed(world: Store, clock: Clock) -> None:
    blocker = hold(world, task="other", hold_for_s=10 * 86400.0)
    asked = ask(world)
    clock.advance(86401)
    world.schedule("gpus")
    assert world.gang(asked.allocation_id).state == "released"
    assert world.gang(blocker.allocation_id).state == "running"


def test_trials_use_a_gang_one_after_the_other_under_one_token(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    runs = []
    for task in ("first", "second"):
        ticket = use(gang, task=task)
        watch = begin(world, ticket)
        view = world.attempt(ticket.attempt_id)
        assert (view.token, view.placement, view.is_held_gang) == (gang.token, gang.placement, True)
        runs.append(view.run)
        end(world, ticket, watch)
        assert world.gang(gang.allocation_id).attempt_id is None
        assert held(world) == [0, 1], "the gang outlives the trial"
    assert [run.split(".")[-1] for run in runs if run] == [str(gang.token)] * 2
    assert len(set(runs)) == 2


def test_a_second_trial_waits_for_the_first_with_a_reason(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    first, second = use(gang, task="first"), use(gang, task="second")
    watch, waiting = begin(world, first), world.watch(second.attempt_id, watcher="test")
    assert world.use_gang(second.attempt_id, waiting) is None
    view = world.attempt(second.attempt_id)
    assert view.state == "waiting"
    assert f"trial {first.trial_id}" in view.reason
    assert view.held_hosts == (), "it has nothing on the hosts that could be fenced or freed"
    end(world, first, watch)
    assert world.use_gang(second.attempt_id, waiting)


def test_a_trial_that_only_waited_leaves_the_gang_to_its_user(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    first, second = use(gang, task="first"), use(gang, task="second")
    begin(world, first)
    watch = world.watch(second.attempt_id, watcher="test")
    world.end_attempt(second.attempt_id, watch, state="killed", failure=BAD)
    assert world.gang(gang.allocation_id).attempt_id == first.attempt_id
    assert world.attempt(first.attempt_id).held_hosts == ("gpu-01",)


def test_a_submission_is_repeatable(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    assert use(gang) == use(gang)


def test_a_restart_keeps_the_gang(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    again = world.next_attempt(ticket.attempt_id, watch, failure=BAD, counted=True)
    view = world.attempt(again.attempt_id)
    assert (view.state, view.allocation_id, view.held_hosts) == ("starting", gang.allocation_id, ("gpu-01",))
    assert world.gang(gang.allocation_id).attempt_id == again.attempt_id
    watch = world.watch(again.attempt_id, watcher="test")
    world.set_running(again.attempt_id, watch)
    end(world, again, watch)
    assert world.gang(gang.allocation_id).is_usable


def test_a_retry_after_a_failure_of_a_host_waits_for_the_same_gang(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    infra = {"error": "NetworkPathError", "kind": "infra", "message": "no way"}
    assert world.move_on(ticket.attempt_id, watch, failure=infra, exclude_host="gpu-01") is None
    world.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    world.end_attempt(ticket.attempt_id, watch, state="errored", failure=infra)
    again = world.next_attempt(ticket.attempt_id, watch, failure=infra, counted=False)
    view = world.attempt(again.attempt_id)
    assert (view.state, view.trial_state, view.allocation_id) == ("waiting", "queued", gang.allocation_id)
    assert world.use_gang(again.attempt_id, world.watch(again.attempt_id, watcher="test"))


def test_a_trial_that_stops_gives_the_gang_back(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    world.set_stopping(ticket.attempt_id, watch, "killed")
    end(world, ticket, watch, state="killed")
    assert world.gang(gang.allocation_id).state == "running"
    begin(world, use(gang, task="next"))


def test_an_attempt_that_could_not_start_waits_for_the_same_gang_again(
    world: Store, use: Callable[..., Ticket]
) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = world.watch(ticket.attempt_id, watcher="test")
    world.use_gang(ticket.attempt_id, watch)
    with pytest.raises(ConflictError, match="gpu-01 have not confirmed"):
        world.put_back(ticket.attempt_id, watch, "its follower died")
    world.release(ticket.attempt_id, watch, "gpu-01", proof="untaken")
    world.put_back(ticket.attempt_id, watch, "its follower died")
    assert world.attempt(ticket.attempt_id).state == "waiting"
    assert world.gang(gang.allocation_id).attempt_id is None
    assert world.use_gang(ticket.attempt_id, watch)


def test_a_gang_in_use_cannot_be_given_back_to_the_queue(world: Store, use: Callable[..., Ticket]) -> None:
    ticket = use(hold(world))
    watch = begin(world, ticket)
    with pytest.raises(ConflictError, match="held for several tasks"):
        world.yield_gang(ticket.attempt_id, watch, reason="preempted", paused=False)
