"""A batch inference on hosts with faults: its output is that of one process, row for row."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from testbed.stores import server_programs
from tests.faults import inject
from tests.faults.inference_on_hosts import HostedInference
from tests.faults.user_actions import USER
from tests.faults.verdict import violations
from tests.faults.world import World

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow, pytest.mark.torch]
ROWS = 100_000
#: Each fault occurs when this many of the 50 shards are done.
FAULTS = {5: inject.kill_rank, 15: inject.reboot_host, 25: inject.kill_trigger, 35: inject.kill_database}


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    if server_programs() is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    # A gang that does not fit on one host takes whole hosts: with one slot each, gangs of any size are possible.
    return new_world("postgresql", count=5, slots=1, orphan_timeout_s=60.0)


@pytest.mark.parametrize(("slots", "then"), [(1, 3), (2, 5), (3, 1), (5, 2)])
def test_killed_ranks_hosts_followers_and_stores_cost_no_row_and_add_none(
    world: World, dice: random.Random, slots: int, then: int
) -> None:
    work = HostedInference(world, f"inference-{slots}", ROWS)
    work.allow(0)
    first = work.submit(slots, ends=("killed",))

    for shards, fault in FAULTS.items():
        work.reach(shards)
        undo = fault(world, dice)
        inject.wait(1.0)
        undo()
    work.reach(45)
    world.store.control.kill(first, USER)
    world.ended(first)
    world.until(lambda: not world.ranks(first), "the end of the ranks")
    missing = work.shards - work.done()
    work.allow(10**9)
    second = work.submit(then)

    world.heal()
    world.settle([first, second])
    assert violations(world, [first, second]) == []
    assert work.violations() == []
    assert missing > 0
    assert sum(work.computed(second).values()) == missing


def test_killed_followers_of_a_run_whose_results_are_fetched_cost_no_row(world: World, dice: random.Random) -> None:
    work = HostedInference(world, "fetched", 40_000)
    work.allow(0)
    trial = work.submit(2, collect=True)

    for shards in (4, 8):
        work.reach(shards)
        inject.kill_trigger(world, dice)()
    work.reach(12)
    world.trigger.kill()
    work.allow(10**9)
    inject.wait(3.0)
    world.trigger.start()

    world.settle([trial])
    assert violations(world, [trial]) == []
    assert work.violations() == []
    assert world.trial(trial).attempts == 1
