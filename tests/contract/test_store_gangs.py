"""Gangs that are held for several tasks: asked for by one, used one after the other, ended and freed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_dtrain.errors import (
    ConflictError,
    GangEndedError,
    GangMismatchError,
    StaleWatchError,
    UnplaceableError,
    UserError,
)
from airflow_provider_dtrain.store.gang_records import GangSubmission, GangView
from airflow_provider_dtrain.store.records import Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.repository import Store
from tests.contract.store_world import Clock, host

HOLD_S = 900.0
BAD = {"error": "RankFailedError", "kind": "user", "message": "it failed"}


def ask(store: Store, *, slots: int = 2, max_tries: int = 0, task: str = "gang", **fields: object) -> GangView:
    key = TrialKey(dag_id="d", run_id="r", task_id=task, max_tries=max_tries)
    return store.submit_gang(GangSubmission(key=key, pool="gpus", slots=slots, **{"hold_for_s": HOLD_S, **fields}))


def hold(store: Store, **fields: object) -> GangView:
    """Ask for a gang and take it up."""
    asked = ask(store, **fields)
    watch = store.watch_gang(asked.allocation_id, watcher="sensor")
    store.schedule("gpus")
    view = store.take_up_gang(asked.allocation_id, watch)
    assert view is not None
    return view


@pytest.fixture
def world(store: Store) -> Store:
    store.add_host(host("gpu-01", slots=2))
    return store


@pytest.fixture
def use(world: Store) -> Callable[..., Ticket]:
    """Submit a trial to a held gang: ``use(gang, task="a")``."""

    def submit_one(gang: GangView, *, task: str = "train", token: int | None = None, slots: int = 2) -> Ticket:
        config = world.put_config({"entrypoint": "python train.py"}, origins={})
        key = TrialKey(dag_id="d", run_id="r", task_id=task)
        submission = TrialSubmission(
            key=key, experiment_name="e", config_id=config.config_id, pool="gpus", slots=slots,
            allocation_id=gang.allocation_id,
        )  # fmt: skip
        return world.submit_on_gang(submission, int(gang.token or 0) if token is None else token)

    return submit_one


def begin(store: Store, ticket: Ticket) -> int:
    """Let an attempt use its gang and run; return its watch."""
    watch = store.watch(ticket.attempt_id, watcher="test")
    assert store.use_gang(ticket.attempt_id, watch)
    store.set_plan(ticket.attempt_id, watch, {"plans": {"gpu-01": {"ranks": [{"rank": 0}, {"rank": 1}]}}})
    store.set_running(ticket.attempt_id, watch)
    return watch


def end(store: Store, ticket: Ticket, watch: int, *, clear: bool = True, state: str = "completed") -> None:
    if clear:
        store.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    store.end_attempt(ticket.attempt_id, watch, state=state, failure=None if state == "completed" else BAD)


def held(store: Store) -> list[int]:
    return [slot.index for slot in store.slots() if slot.allocation_id is not None]


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


def test_a_gang_is_freed_when_no_task_used_it_for_its_time(world: Store, clock: Clock) -> None:
    gang = hold(world)
    clock.advance(HOLD_S - 1)
    world.schedule("gpus")
    assert held(world) == [0, 1]
    clock.advance(2)
    assert [view.allocation_id for view in world.expired_gangs()] == [gang.allocation_id]
    world.schedule("gpus")
    assert held(world) == []
    assert world.gang(gang.allocation_id).ended_because == "no task used it for 900 s"
    assert world.expired_gangs() == []


def test_the_time_counts_after_the_last_task_that_used_it(
    world: Store, clock: Clock, use: Callable[..., Ticket]
) -> None:
    gang = hold(world)
    clock.advance(HOLD_S - 100)
    ticket = use(gang)
    watch = begin(world, ticket)
    clock.advance(10 * HOLD_S)
    assert world.end_expired_gangs() == [], "a gang in use does not expire"
    end(world, ticket, watch)
    clock.advance(HOLD_S - 1)
    assert world.end_expired_gangs() == []
    clock.advance(2)
    assert world.end_expired_gangs() == [gang.allocation_id]
    assert held(world) == []


def test_a_waiting_request_gets_the_slots_of_an_expired_gang(
    world: Store, clock: Clock, submit: Callable[..., Ticket]
) -> None:
    hold(world)
    ticket = submit(slots=2)
    watch = world.watch(ticket.attempt_id, watcher="test")
    world.schedule("gpus")
    for _ in range(31):
        clock.advance(30)
        world.renew_request(ticket.attempt_id, watch)
        world.schedule("gpus")
    assert world.attempt(ticket.attempt_id).allocation_state == "granted"


@pytest.mark.parametrize("ending", ["released", "expired"])
def test_a_gang_that_has_ended_is_refused_by_name(
    world: Store, clock: Clock, use: Callable[..., Ticket], ending: str
) -> None:
    gang = hold(world)
    if ending == "released":
        world.end_gang(gang.allocation_id, "released by the task 'free'")
    else:
        clock.advance(HOLD_S + 1)
        world.end_expired_gangs()
    with pytest.raises(GangEndedError, match="released by the task 'free'|no task used it for 900 s"):
        use(gang)


def test_a_stale_token_is_refused_by_name(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    with pytest.raises(GangEndedError, match=f"held under token {gang.token}, not 99"):
        use(gang, token=99)


def test_an_unknown_gang_is_refused_by_name(world: Store) -> None:
    with pytest.raises(GangEndedError, match="no held gang 12345"):
        world.gang(12345)


def test_another_number_of_slots_is_refused_by_name(world: Store, use: Callable[..., Ticket]) -> None:
    with pytest.raises(GangMismatchError, match=r"asks for 1 slot .* has 2 of pool 'gpus'"):
        use(hold(world), slots=1)


def test_a_trial_of_an_ended_gang_is_not_started_again(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    end(world, ticket, watch, state="errored")
    world.end_gang(gang.allocation_id, "released")
    with pytest.raises(GangEndedError):
        world.next_attempt(ticket.attempt_id, watch, failure=BAD, counted=False)


def test_a_trial_that_waits_for_a_gang_hears_that_it_has_ended(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    world.end_gang(gang.allocation_id, "the DAG run has failed")
    watch = world.watch(ticket.attempt_id, watcher="test")
    with pytest.raises(GangEndedError, match="the DAG run has failed"):
        world.use_gang(ticket.attempt_id, watch)


def test_a_gang_in_use_is_freed_only_with_the_attempt(world: Store, use: Callable[..., Ticket]) -> None:
    gang = hold(world)
    ticket = use(gang)
    watch = begin(world, ticket)
    world.end_gang(gang.allocation_id, "the DAG run has failed")
    assert held(world) == [0, 1]
    assert world.wishes(ticket.attempt_id).gang_ended == "the DAG run has failed"
    world.release(ticket.attempt_id, watch, "gpu-01", proof="clear")
    assert held(world) == [0, 1]
    world.end_attempt(ticket.attempt_id, watch, state="killed", failure=BAD)
    assert held(world) == []


def test_a_host_that_did_not_confirm_keeps_its_slots_and_ends_the_gang(
    world: Store, use: Callable[..., Ticket]
) -> None:
    world.add_host(host("gpu-02", slots=2))
    gang = hold(world, slots=4)
    ticket, waiting = use(gang, slots=4), use(gang, task="next", slots=4)
    watch = world.watch(ticket.attempt_id, watcher="test")
    world.use_gang(ticket.attempt_id, watch)
    world.set_plan(ticket.attempt_id, watch, {"plans": {"gpu-01": {}, "gpu-02": {}}})
    world.set_running(ticket.attempt_id, watch)
    end(world, ticket, watch, state="errored")
    assert [slot.host for slot in world.slots() if slot.allocation_id] == ["gpu-02"] * 2
    with pytest.raises(GangEndedError, match="gpu-02 did not confirm"):
        world.use_gang(waiting.attempt_id, world.watch(waiting.attempt_id, watcher="test"))
    world.end_attempt(waiting.attempt_id, world.watch(waiting.attempt_id, watcher="test"), state="errored", failure=BAD)
    found = world.recoverable()
    assert [(view.attempt_id, view.held_hosts) for view in found] == [(ticket.attempt_id, ("gpu-02",))]
    assert [view.attempt_id for view in world.unreleased()] == [ticket.attempt_id]
    watch = world.watch(ticket.attempt_id, watcher="recovery")
    world.release(ticket.attempt_id, watch, "gpu-02", proof="clear")
    assert held(world) == []
    assert world.gang(gang.allocation_id).state == "released"
    assert world.recoverable() == []


def test_a_gang_without_a_host_that_was_removed_ends_with_its_user(world: Store, use: Callable[..., Ticket]) -> None:
    world.add_host(host("gpu-02", slots=2))
    gang = hold(world, slots=4)
    ticket = use(gang, slots=4)
    watch = begin(world, ticket)
    world.remove_host("gpu-02", force=True)
    end(world, ticket, watch, state="errored")
    assert held(world) == []
    with pytest.raises(GangEndedError):
        use(gang, task="next", slots=4)


def test_the_end_of_a_dag_run_ends_its_gangs_only(world: Store) -> None:
    gang = hold(world, slots=1)
    assert world.end_gangs_of_run("d", "another run", "it has ended") == []
    assert world.end_gangs_of_run("d", "r", "the DAG run has ended") == [gang.allocation_id]
    assert world.end_gangs_of_run("d", "r", "the DAG run has ended") == []
    assert held(world) == []


def test_a_held_gang_is_shown_with_whose_it_is(
    world: Store, use: Callable[..., Ticket], submit: Callable[..., Ticket]
) -> None:
    gang = hold(world)
    (shown,) = world.tasks()
    assert (shown.experiment, shown.trial_id, shown.state) == ("gang of d/gang", None, "running")
    assert {(slot.experiment, slot.trial_id) for slot in world.slots()} == {("gang of d/gang", None)}
    ticket = use(gang)
    begin(world, ticket)
    (shown,) = world.tasks()
    assert (shown.experiment, shown.trial_id, shown.attempt_id) == (
        "gang of d/gang", ticket.trial_id, ticket.attempt_id,
    )  # fmt: skip
    assert {slot.trial_id for slot in world.slots()} == {ticket.trial_id}
    waiting = submit(slots=1)
    world.schedule("gpus")
    assert "gang of d/gang" in world.attempt(waiting.attempt_id).reason
