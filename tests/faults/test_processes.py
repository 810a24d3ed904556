"""Killed and stopped processes: ranks, supervisors, the trigger process."""

from __future__ import annotations

import random
import signal

import pytest

from tests.faults import inject
from tests.faults.ending import all_is_well, gone_by_itself, starts
from tests.faults.world import World

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow]


def test_a_killed_rank_ends_its_gang_which_goes_on_from_the_latest_checkpoint(
    world: World, dice: random.Random
) -> None:
    trial = world.submit(4)
    world.running(trial, step=12)
    inject.kill_rank(world, dice)
    all_is_well(world, trial)
    assert world.trial(trial).restarts == 1
    assert starts(world, trial)[0] == 0
    assert starts(world, trial)[1] >= 10


@pytest.mark.each_change
def test_a_killed_supervisor_takes_its_ranks_along_and_is_no_failure_of_the_code(
    world: World, dice: random.Random
) -> None:
    trial = world.submit(4)
    world.running(trial, step=12)
    inject.kill_supervisor(world, dice)
    all_is_well(world, trial)
    view = world.trial(trial)
    assert (view.attempts, view.restarts) == (2, 0)
    assert starts(world, trial)[1] >= 10


@pytest.mark.each_change
def test_a_killed_trigger_process_changes_nothing_for_the_ranks(world: World) -> None:
    trial = world.submit(4)
    world.running(trial, step=5)
    ranks = {one.pid for one in world.ranks(trial)}
    world.trigger.kill()
    assert {one.pid for one in world.ranks(trial)} == ranks
    world.trigger.start()
    all_is_well(world, trial)
    assert world.trial(trial).attempts == 1


def test_without_a_trigger_process_the_hosts_end_the_ranks_and_the_next_one_goes_on(world: World) -> None:
    trial = world.submit(4, until=4000)
    world.running(trial, step=12)
    world.trigger.kill()
    gone_by_itself(world, trial)
    world.trigger.start()
    world.running(trial, 120, step=20, attempt=2)
    assert starts(world, trial)[1] >= 10
    world.store.control.kill(trial, by="the test")
    world._expected[trial] = ("killed",)
    all_is_well(world, trial)
    assert world.trial(trial).restarts == 0, "no restart counts as a failure of the user's code"


def test_a_trigger_process_killed_between_grant_and_start_costs_nothing(world: World) -> None:
    trials = [world.submit(2, until=10) for _ in range(3)]
    world.until(lambda: world.store.attempts.get(world.trial(trials[0]).attempt_id).state == "starting", "a grant", 20)
    world.trigger.restart()
    all_is_well(world, *trials)
    assert [world.trial(trial).attempts for trial in trials] == [1, 1, 1]


@pytest.mark.parametrize("what", ["supervisor", "rank"])
def test_a_process_stopped_past_every_deadline_goes_on_where_it_was(
    world: World, dice: random.Random, what: str
) -> None:
    trial = world.submit(2, until=30)
    world.running(trial, step=3)
    undo = inject.FAULTS[f"stop {what}"](world, dice)
    inject.wait(world.orphan_timeout_s + world.kill_grace_s + 2)
    undo()
    all_is_well(world, trial)
    assert world.trial(trial).attempts == 1, "the follower renewed it throughout"


def test_a_trigger_process_stopped_past_every_deadline_finds_that_the_hosts_have_ended_the_ranks(world: World) -> None:
    trial = world.submit(4, until=150)
    world.running(trial, step=12)
    world.trigger.signal(signal.SIGSTOP)
    gone_by_itself(world, trial)
    world.trigger.signal(signal.SIGCONT)
    all_is_well(world, trial)
    assert starts(world, trial)[1] >= 10
    assert world.trial(trial).restarts == 0, "no restart counts as a failure of the user's code"


def test_trials_that_fight_for_the_last_slots_never_share_one(world: World) -> None:
    trials = [world.submit(slots, until=5) for slots in (4, 4, 1, 2, 6)]
    all_is_well(world, *trials)


def test_a_child_that_detached_itself_ends_with_its_run(world: World) -> None:
    trials = [world.submit(2, until=10, words="leak") for _ in range(3)]
    world.running(trials[0])
    world.until(lambda: len(world.holders(trials[0])) >= 2 or world.trial(trials[0]).state == "completed", "children")
    all_is_well(world, *trials)


def test_a_child_that_detached_itself_does_not_outlive_its_killed_supervisor(world: World, dice: random.Random) -> None:
    trial = world.submit(2, until=40, words="leak")
    world.running(trial, step=12)
    inject.kill_supervisor(world, dice)
    all_is_well(world, trial)
