"""Hosts that are temporarily unreachable, and connections that break or delay data."""

from __future__ import annotations

import random

import pytest

from tests.faults import inject
from tests.faults.ending import all_is_well, gone_by_itself
from tests.faults.world import World

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow]


@pytest.mark.parametrize("fault", ["cut host", "cut all", "sshd restart", "stopped proxy"])
def test_what_passes_before_the_deadline_costs_nothing(world: World, dice: random.Random, fault: str) -> None:
    trial = world.submit(4, until=60)
    world.running(trial, step=3)
    undo = inject.FAULTS[fault](world, dice)
    inject.wait(1.5)
    undo()
    all_is_well(world, trial)
    assert world.trial(trial).attempts == 1


def test_a_host_that_is_cut_off_ends_its_part_and_the_trial_goes_on_elsewhere(
    world: World, dice: random.Random
) -> None:
    trial = world.submit(4, until=4000)
    world.running(trial, step=12)
    host = inject.busy_host(world, dice)
    host.partition()
    gone_by_itself(world, trial, host.name)
    world.until(lambda: world.trial(trial).attempts >= 2, "the next attempt, with the host still away", 90)
    world.running(trial, 90, step=20, attempt=2)
    assert host.name not in {one.host for one in world.ranks(trial)}
    assert host.name in {one.host for one in world.held()}, "unconfirmed slots stay held"
    host.heal()
    world.store.control.kill(trial, by="the test")
    world._expected[trial] = ("killed",)
    all_is_well(world, trial)
    assert world.trial(trial).restarts == 0


def test_when_all_hosts_are_cut_off_they_end_their_ranks_and_the_trial_goes_on_when_they_are_back(
    world: World, dice: random.Random
) -> None:
    trial = world.submit(4, until=40, words="stays")
    world.running(trial, step=12)
    undo = inject.cut_all(world, dice)
    gone_by_itself(world, trial)
    undo()
    all_is_well(world, trial)
    assert world.trial(trial).restarts == 0


def test_a_trial_that_needs_every_host_waits_for_one_that_was_cut_off_before_its_start(
    world: World, dice: random.Random
) -> None:
    host = dice.choice(list(world.hosts))
    host.partition()
    trial = world.submit(6, until=10)
    world.until(lambda: world.store.hosts.get(host.name).state == "unreachable", "the failed launch", 150)
    world.until(lambda: world.store.attempts.get(world.trial(trial).attempt_id).state == "waiting", "the wait")
    host.heal()
    all_is_well(world, trial)
    view = world.trial(trial)
    assert (view.attempts, view.restarts) == (1, 0), "Airflow's retries are for other things"


def test_a_renewal_that_was_held_back_extends_nothing(world: World, dice: random.Random) -> None:
    trial = world.submit(2, until=40, words="stays")
    world.running(trial, step=12)
    undo = inject.stop_proxy(world, dice)
    gone_by_itself(world, trial)
    undo()
    all_is_well(world, trial)
    assert world.trial(trial).restarts == 0
