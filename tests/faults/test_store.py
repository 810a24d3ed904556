"""Faults of the store: killed, locked, clock off by an hour, restored from a backup."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from testbed.stores import server_programs
from tests.faults import inject
from tests.faults.databases import hold_lock
from tests.faults.ending import all_is_well
from tests.faults.world import World

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, new_world: Callable[..., World]) -> World:
    if request.param == "postgresql":
        pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
        if server_programs() is None:
            pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    return new_world(request.param, orphan_timeout_s=60.0)


def test_a_database_that_is_killed_and_comes_back_costs_nothing(world: World) -> None:
    if world.db.name == "sqlite":
        pytest.skip("SQLite has no server")
    trial = world.submit(4, until=60)
    world.running(trial, step=5)
    world.db.kill()
    inject.wait(2.0)
    world.db.come_back()
    all_is_well(world, trial)
    assert world.trial(trial).attempts == 1


def test_a_store_that_is_locked_for_half_a_minute_costs_nothing(world: World) -> None:
    trials = [world.submit(4, until=60), world.submit(4, until=5)]
    world.running(trials[0], step=5)
    hold_lock(world.db, 31.0).join()
    all_is_well(world, *trials)
    assert [world.trial(trial).attempts for trial in trials] == [1, 1]


@pytest.mark.parametrize("off_s", [3600, -3600])
def test_a_clock_of_the_store_that_steps_ends_nothing(world: World, off_s: int) -> None:
    trials = [world.submit(4, until=60), world.submit(4, until=5)]
    world.running(trials[0], step=5)
    world.trigger.clock.write_text(str(off_s))
    world.running(trials[0], step=20)
    world.trigger.clock.write_text("0")
    all_is_well(world, *trials)
    assert [world.trial(trial).attempts for trial in trials] == [1, 1]


@pytest.fixture
def patient(request: pytest.FixtureRequest, new_world: Callable[..., World]) -> World:
    """A world with a long orphan timeout: hosts do not end a run before the store has decided."""
    return new_world(request.param, orphan_timeout_s=600.0)


@pytest.mark.parametrize("patient", ["sqlite", "postgresql"], indirect=True)
def test_a_backup_from_before_a_submission_gives_nobody_the_run_of_another_trial(patient: World) -> None:
    world = patient
    world.ended(world.submit(2, until=3))
    world.trigger.kill()
    world.db.backup()
    world.trigger.start()
    forgotten = world.submit(2, until=4000)
    world.running(forgotten, step=3)
    lost = {one.run for one in world.ranks()}
    world.trigger.kill()
    world.store.close()
    world.db.restore()
    world.reopen()
    again = world.submit(2, until=5)
    assert again == forgotten, "the restored store reuses its id"
    other = world.submit(6, until=5)
    world.trigger.start()
    all_is_well(world, again, other)
    assert [world.trial(trial).restarts for trial in (again, other)] == [0, 0]
    assert {view.run for view in world.store.attempts.of_trial(again)}.isdisjoint(lost)


@pytest.fixture
def restored(request: pytest.FixtureRequest, new_world: Callable[..., World]) -> World:
    return new_world(request.param)


@pytest.mark.parametrize("restored", ["sqlite", "postgresql"], indirect=True)
def test_a_backup_from_before_the_grant_never_lets_two_gangs_share_a_slot(restored: World, dice: random.Random) -> None:
    world = restored
    first = world.submit(2, until=3)
    world.ended(first)
    world.trigger.kill()
    waiting = world.submit(4, until=60)
    world.db.backup()
    world.trigger.start()
    later = world.submit(2, until=300)
    world.running(waiting, step=3)
    world.running(later, step=3)
    world.trigger.kill()
    world.store.close()
    world.db.restore()
    world.reopen()
    others = [world.submit(2, until=5), world.submit(4, until=5)]
    world.trigger.start()
    all_is_well(world, waiting, *others)
    assert world.trial(waiting).restarts == 0
