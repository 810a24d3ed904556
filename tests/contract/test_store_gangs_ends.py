"""Ends of held gangs: unused, ended by a user or a DAG run, host unreachable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_dtrain.errors import (
    GangEndedError,
    GangMismatchError,
)
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.store.store import Store
from testbed.stores import host
from tests.contract.gang_world import BAD, HOLD_S, begin, end, held, hold
from tests.support.store_world import Clock


def test_a_gang_is_freed_when_no_task_used_it_for_its_time(world: Store, clock: Clock) -> None:
    gang = hold(world)
    clock.advance(HOLD_S - 1)
    world.queue.schedule("gpus")
    assert held(world) == [0, 1]
    clock.advance(2)
    world.queue.schedule("gpus")
    assert held(world) == []
    assert world.gangs.get(gang.allocation_id).ended_because == "no task used it for 900 s"


def test_the_time_counts_after_the_last_task_that_used_it(
    world: Store, clock: Clock, use: Callable[..., Ticket]
) -> None:
    gang = hold(world)
    clock.advance(HOLD_S - 100)
    ticket = use(gang)
    watch = begin(world, ticket)
    clock.advance(10 * HOLD_S)
    world.queue.schedule("gpus")
    assert held(world) == [0, 1], "a gang in use does not expire"
    end(world, ticket, watch)
    clock.advance(HOLD_S - 1)
    world.queue.schedule("gpus")
    assert held(world) == [0, 1]
    clock.advance(2)
    world.queue.schedule("gpus")
    assert held(world) == []


def test_a_waiting_request_gets_the_slots_of_an_expired_gang(
    world: Store, clock: Clock, submit: Callable[..., Ticket]
) -> None:
    hold(world)
    ticket = submit(slots=2)
    watch = world.attempts.watch(ticket.attempt_id, watcher="test")
    world.queue.schedule("gpus")
    for _ in range(31):
        clock.advance(30)
        world.queue.renew(ticket.attempt_id, watch)
        world.queue.schedule("gpus")
    assert world.attempts.get(ticket.attempt_id).allocation_state == "granted"


@pytest.mark.parametrize("ending", ["released", "expired"])
def test_a_gang_that_has_ended_is_refused_by_name(
    world: Store, clock: Clock, use: Callable[..., Ticket], ending: str
) -> None:
    gang = hold(world)
    if ending == "released":
        world.gangs.end(gang.allocation_id, "released by the task 'free'")
    else:
        clock.advance(HOLD_S + 1)
        world.queue.schedule("gpus")
    with pytest.raises(GangEndedError, match="released by the task 'free'|no task used it for 900 s"):
        use(gang)


def test_a_stale_token_is_refused_by_name(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    with pytest.raises(GangEndedError, match=f"held under token {gang.token}, not 99"):
        use(gang, token=99)


def test_an_unknown_gang_is_refused_by_name(world: Store) -> None:
    with pytest.raises(GangEndedError, match="no held gang 12345"):
        world.gangs.get(12345)


def test_another_number_of_slots_is_refused_by_name(world: Store, use: Callable[..., Ticket]) -> None:
    with pytest.raises(GangMismatchError, match=r"asks for 1 slot .* has 2 of pool 'gpus'"):
        use(hold(world), slots=1)


def test_a_trial_of_an_ended_gang_is_not_started_again(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    end(world, ticket, watch, state="errored")
    world.gangs.end(gang.allocation_id, "released")
    with pytest.raises(GangEndedError):
        world.attempts.next(ticket.attempt_id, watch, failure=BAD, counted=False)


def test_a_trial_that_waits_for_a_gang_hears_that_it_has_ended(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    world.gangs.end(gang.allocation_id, "the DAG run has failed")
    watch = world.attempts.watch(ticket.attempt_id, watcher="test")
    with pytest.raises(GangEndedError, match="the DAG run has failed"):
        world.gangs.use(ticket.attempt_id, watch)


def test_a_gang_in_use_is_freed_only_with_the_attempt(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    world.gangs.end(gang.allocation_id, "the DAG run has failed")
    assert held(world) == [0, 1]
    assert world.control.pending(ticket.attempt_id).gang_ended == "the DAG run has failed"
    world.queue.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    assert held(world) == [0, 1]
    world.attempts.end(ticket.attempt_id, watch, state="killed", failure=BAD)
    assert held(world) == []


@pytest.mark.each_change
def test_a_host_that_did_not_confirm_keeps_its_slots_and_ends_the_gang(
    world: Store, use: Callable[..., Ticket]
) -> None:
    world.hosts.add(host("gpu-02", slots=2))
    gang = hold(world, slots=4)
    ticket, waiting = use(gang, slots=4), use(gang, task="next", slots=4)
    watch = world.attempts.watch(ticket.attempt_id, watcher="test")
    world.gangs.use(ticket.attempt_id, watch)
    world.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"gpu-01": {}, "gpu-02": {}}})
    world.attempts.set_running(ticket.attempt_id, watch)
    end(world, ticket, watch, state="errored")
    assert [slot.host for slot in world.hosts.slots() if slot.allocation_id] == ["gpu-02"] * 2
    with pytest.raises(GangEndedError, match="gpu-02 did not confirm"):
        world.gangs.use(waiting.attempt_id, world.attempts.watch(waiting.attempt_id, watcher="test"))
    world.attempts.end(
        waiting.attempt_id, world.attempts.watch(waiting.attempt_id, watcher="test"), state="errored", failure=BAD
    )
    found = world.recovery.recoverable()
    assert [(view.attempt_id, view.held_hosts) for view in found] == [(ticket.attempt_id, ("gpu-02",))]
    assert [view.attempt_id for view in world.attempts.unreleased()] == [ticket.attempt_id]
    watch = world.attempts.watch(ticket.attempt_id, watcher="recovery")
    world.queue.release(ticket.attempt_id, watch, "gpu-02", proof="clear")
    assert held(world) == []
    assert world.gangs.get(gang.allocation_id).state == "released"
    assert world.recovery.recoverable() == []


def test_a_gang_without_a_host_that_was_removed_ends_with_its_user(world: Store, use: Callable[..., Ticket]) -> None:
    world.hosts.add(host("gpu-02", slots=2))
    gang = hold(world, slots=4)
    ticket = use(gang, slots=4)
    watch = begin(world, ticket)
    world.hosts.remove("gpu-02", force=True)
    end(world, ticket, watch, state="errored")
    assert held(world) == []
    with pytest.raises(GangEndedError):
        use(gang, task="next", slots=4)


def test_the_end_of_a_dag_run_ends_its_gangs_only(world: Store) -> None:
    gang = hold(world, slots=1)
    assert world.gangs.end_of_run("d", "another run", "it has ended") == []
    assert world.gangs.end_of_run("d", "r", "the DAG run has ended") == [gang.allocation_id]
    assert world.gangs.end_of_run("d", "r", "the DAG run has ended") == []
    assert held(world) == []


def test_a_held_gang_is_shown_with_whose_it_is(
    world: Store, use: Callable[..., Ticket], submit: Callable[..., Ticket]
) -> None:
    gang = hold(world)
    (shown,) = world.queue_view.tasks()
    assert (shown.experiment, shown.trial_id, shown.state) == ("gang of d/gang", None, "running")
    assert {(slot.experiment, slot.trial_id) for slot in world.hosts.slots()} == {("gang of d/gang", None)}
    ticket = use(gang)
    begin(world, ticket)
    (shown,) = world.queue_view.tasks()
    assert (shown.experiment, shown.trial_id, shown.attempt_id) == (
        "gang of d/gang", ticket.trial_id, ticket.attempt_id,
    )  # fmt: skip
    assert {slot.trial_id for slot in world.hosts.slots()} == {ticket.trial_id}
    waiting = submit(slots=1)
    world.queue.schedule("gpus")
    assert "gang of d/gang" in world.attempts.get(waiting.attempt_id).reason
