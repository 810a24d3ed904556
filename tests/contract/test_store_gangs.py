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


@pytest.mark.each_change
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
    world.queue.schedule("gpus")
    view = world.gangs.renew(asked.allocation_id, world.gangs.watch(asked.allocation_id, watcher="sensor"))
    assert view.state == "waiting"
    assert "2" in view.reason
    assert [task.position for task in world.queue_view.tasks() if task.trial_id is None] == [1]


def test_a_gang_that_no_hosts_can_hold_is_refused_at_once(world: Store) -> None:
    with pytest.raises(UnplaceableError, match="3"):
        ask(world, slots=3)
    assert world.queue_view.tasks() == []


@pytest.mark.parametrize("wrong", [{"slots": -1}, {"priority": 0}, {"hold_for_s": 0.0}])
def test_numbers_out_of_range_are_refused(world: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ask(world, **wrong)


def test_a_retry_of_the_task_gets_the_same_gang(world: Store) -> None:
    first = hold(world)
    assert ask(world).allocation_id == first.allocation_id


def test_a_retry_after_the_gang_has_ended_gets_another_one(world: Store) -> None:
    first = hold(world)
    world.gangs.end(first.allocation_id, "released")
    assert ask(world).allocation_id != first.allocation_id
    assert world.gangs.get(first.allocation_id).state == "released"


def test_a_cleared_task_finds_its_older_gang_and_gets_another_one(world: Store) -> None:
    older = hold(world)
    key = TrialKey(dag_id="d", run_id="r", task_id="gang", max_tries=1)
    assert [view.allocation_id for view in world.gangs.older(key)] == [older.allocation_id]
    world.gangs.end(older.allocation_id, "the task was cleared")
    assert world.gangs.older(key) == []
    assert hold(world, max_tries=1).allocation_id != older.allocation_id


def test_only_the_current_follower_takes_a_gang_up(world: Store) -> None:
    asked = ask(world)
    old = world.gangs.watch(asked.allocation_id, watcher="worker")
    new = world.gangs.watch(asked.allocation_id, watcher="triggerer")
    world.queue.schedule("gpus")
    with pytest.raises(StaleWatchError, match="triggerer"):
        world.gangs.take_up(asked.allocation_id, old)
    assert world.gangs.take_up(asked.allocation_id, new) is not None


def test_a_grant_that_is_not_taken_up_waits_again(world: Store, clock: Clock) -> None:
    asked = ask(world)
    watch = world.gangs.watch(asked.allocation_id, watcher="sensor")
    world.queue.schedule("gpus")
    clock.advance(31)
    world.gangs.renew(asked.allocation_id, watch)
    world.queue.schedule("gpus")
    view = world.gangs.take_up(asked.allocation_id, watch)
    assert view is not None
    assert view.token == 2


def test_a_withdrawn_request_leaves_nothing(world: Store) -> None:
    asked = ask(world)
    watch = world.gangs.watch(asked.allocation_id, watcher="sensor")
    world.gangs.end(asked.allocation_id, "the task was ended", watch=watch)
    world.queue.schedule("gpus")
    assert held(world) == []
    assert world.queue_view.tasks() == []
    with pytest.raises(GangEndedError, match="the task was ended"):
        world.gangs.renew(asked.allocation_id, watch)


def test_a_request_that_nobody_renews_for_a_day_is_removed(world: Store, clock: Clock) -> None:
    blocker = hold(world, task="other", hold_for_s=10 * 86400.0)
    asked = ask(world)
    clock.advance(86401)
    world.queue.schedule("gpus")
    assert world.gangs.get(asked.allocation_id).state == "released"
    assert world.gangs.get(blocker.allocation_id).state == "running"


def test_trials_use_a_gang_one_after_the_other_under_one_token(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    runs = []
    for task in ("first", "second"):
        ticket = use(gang, task=task)
        watch = begin(world, ticket)
        view = world.attempts.get(ticket.attempt_id)
        assert (view.token, view.placement, view.is_held_gang) == (gang.token, gang.placement, True)
        runs.append(view.run)
        end(world, ticket, watch)
        assert world.gangs.get(gang.allocation_id).attempt_id is None
        assert held(world) == [0, 1], "the gang outlives the trial"
    assert [run.split(".")[-1] for run in runs if run] == [str(gang.token)] * 2
    assert len(set(runs)) == 2


def test_a_second_trial_waits_for_the_first_with_a_reason(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    first, second = use(gang, task="first"), use(gang, task="second")
    watch, waiting = begin(world, first), world.attempts.watch(second.attempt_id, watcher="test")
    assert world.gangs.use(second.attempt_id, waiting) is None
    view = world.attempts.get(second.attempt_id)
    assert view.state == "waiting"
    assert f"trial {first.trial_id}" in view.reason
    assert view.held_hosts == (), "it has nothing on the hosts that could be fenced or freed"
    end(world, first, watch)
    assert world.gangs.use(second.attempt_id, waiting)


def test_a_trial_that_only_waited_leaves_the_gang_to_its_user(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    first, second = use(gang, task="first"), use(gang, task="second")
    begin(world, first)
    watch = world.attempts.watch(second.attempt_id, watcher="test")
    world.attempts.end(second.attempt_id, watch, state="killed", failure=BAD)
    assert world.gangs.get(gang.allocation_id).attempt_id == first.attempt_id
    assert world.attempts.get(first.attempt_id).held_hosts == ("gpu-01",)


def test_a_submission_is_repeatable(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    assert use(gang) == use(gang)


def test_a_restart_keeps_the_gang(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    again = world.attempts.next(ticket.attempt_id, watch, failure=BAD, counted=True)
    view = world.attempts.get(again.attempt_id)
    assert (view.state, view.allocation_id, view.held_hosts) == ("starting", gang.allocation_id, ("gpu-01",))
    assert world.gangs.get(gang.allocation_id).attempt_id == again.attempt_id
    watch = world.attempts.watch(again.attempt_id, watcher="test")
    world.attempts.set_running(again.attempt_id, watch)
    end(world, again, watch)
    assert world.gangs.get(gang.allocation_id).is_usable


def test_a_retry_after_a_failure_of_a_host_waits_for_the_same_gang(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    infra = {"error": "NetworkPathError", "kind": "infra", "message": "no way"}
    assert world.attempts.move_on(ticket.attempt_id, watch, failure=infra, exclude_host="gpu-01") is None
    world.queue.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    world.attempts.end(ticket.attempt_id, watch, state="errored", failure=infra)
    again = world.attempts.next(ticket.attempt_id, watch, failure=infra, counted=False)
    view = world.attempts.get(again.attempt_id)
    assert (view.state, view.trial_state, view.allocation_id) == ("waiting", "queued", gang.allocation_id)
    assert world.gangs.use(again.attempt_id, world.attempts.watch(again.attempt_id, watcher="test"))


def test_a_trial_that_stops_gives_the_gang_back(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    world.attempts.set_stopping(ticket.attempt_id, watch, "killed")
    end(world, ticket, watch, state="killed")
    assert world.gangs.get(gang.allocation_id).state == "running"
    begin(world, use(gang, task="next"))


def test_an_attempt_that_could_not_start_waits_for_the_same_gang_again(
    world: Store, use: Callable[..., Ticket]
) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = world.attempts.watch(ticket.attempt_id, watcher="test")
    world.gangs.use(ticket.attempt_id, watch)
    with pytest.raises(ConflictError, match="gpu-01 have not confirmed"):
        world.queue.put_back(ticket.attempt_id, watch, "its follower died")
    world.queue.release(ticket.attempt_id, watch, "gpu-01", proof="untaken")
    world.queue.put_back(ticket.attempt_id, watch, "its follower died")
    assert world.attempts.get(ticket.attempt_id).state == "waiting"
    assert world.gangs.get(gang.allocation_id).attempt_id is None
    assert world.gangs.use(ticket.attempt_id, watch)


def test_a_gang_in_use_cannot_be_given_back_to_the_queue(world: Store, use: Callable[..., Ticket]) -> None:
    ticket = use(hold(world))
    watch = begin(world, ticket)
    with pytest.raises(ConflictError, match="held for several tasks"):
        world.attempts.yield_gang(ticket.attempt_id, watch, reason="preempted", paused=False)
