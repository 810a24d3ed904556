"""Faults of a host itself: power, clocks, disks, files."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.faults import inject
from tests.faults.ending import all_is_well, starts
from tests.faults.world import World, can_set_clocks

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    if not can_set_clocks():
        pytest.skip("a C compiler is needed for the hosts' clocks")
    return new_world("sqlite", clocks=True)


def test_a_crashed_host_is_left_out_and_gives_its_slots_back_once_it_is_up(world: World, dice: random.Random) -> None:
    trial = world.submit(2, until=60)
    world.running(trial, step=12)
    back = inject.crash_host(world, dice)
    world.running(trial, 120, step=20, attempt=2)
    assert starts(world, trial)[1] >= 10
    back()
    all_is_well(world, trial)
    assert world.trial(trial).restarts == 0


def test_a_reboot_ends_the_run_at_once(world: World, dice: random.Random) -> None:
    trial = world.submit(4)
    world.running(trial, step=12)
    inject.reboot_host(world, dice)
    all_is_well(world, trial)
    view = world.trial(trial)
    assert view.attempts >= 2
    assert view.restarts == 0


@pytest.mark.parametrize("off_s", [3600, -3600])
def test_a_wall_clock_that_steps_ends_nothing(world: World, off_s: int) -> None:
    trial = world.submit(4, until=60)
    world.running(trial, step=3)
    for host in world.hosts:
        (host.folder / "clock").write_text(str(off_s))
    world.running(trial, step=20)
    for host in world.hosts:
        (host.folder / "clock").write_text("0")
    all_is_well(world, trial)
    assert world.trial(trial).attempts == 1


def test_a_host_whose_wall_clock_is_wrong_all_the_time_is_as_good_as_any(world: World) -> None:
    (world.hosts.host(0).folder / "clock").write_text("3600")
    (world.hosts.host(1).folder / "clock").write_text("-3600")
    trials = [world.submit(6, until=10), world.submit(2, until=10)]
    all_is_well(world, *trials)
    for host in world.hosts:
        (host.folder / "clock").write_text("0")


def test_unlinked_lock_files_give_no_slot_away(world: World, dice: random.Random) -> None:
    trials = [world.submit(6, until=30), world.submit(6, until=5)]
    world.running(trials[0], step=3)
    inject.unlink_lock(world, dice)
    all_is_well(world, *trials)


def test_a_flood_of_log_stops_nobody(world: World) -> None:
    trials = [world.submit(1, until=40, words="flood"), world.submit(2, until=20)]
    all_is_well(world, *trials)
    assert [world.trial(trial).attempts for trial in trials] == [1, 1]


def test_a_home_that_is_read_only_is_a_fault_of_the_host(world: World, dice: random.Random) -> None:
    for host in world.hosts:
        # No installed file is left that could be reused.
        host.exec(["sh", "-c", "rm -rf ~/.dtrain"])
    world.trigger.restart()
    undo = inject.read_only_home(world, dice)
    trials = [world.submit(2, until=10) for _ in range(3)]
    inject.wait(3.0)
    undo()
    all_is_well(world, *trials)
    assert [world.trial(trial).restarts for trial in trials] == [0, 0, 0]


def test_a_full_disk_ends_the_run_and_the_trial_goes_on(world: World) -> None:
    host, folder = world.hosts.host(0), "/var/tmp/dtrain-0"
    world.trigger.kill()
    # No run is active, so the mount hides no file that a run needs.
    host.exec(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", folder])
    world.trigger.start()
    trial = world.submit(6, until=60)
    world.running(trial, step=12)
    host.exec(["sh", "-c", f"cat /dev/zero > {folder}/full"])
    world.until(lambda: world.trial(trial).attempts >= 2 or world.trial(trial).state != "running", "the failure")
    host.exec(["rm", f"{folder}/full"])
    all_is_well(world, trial)
    world.trigger.kill()
    host.exec(["umount", "-l", folder])
