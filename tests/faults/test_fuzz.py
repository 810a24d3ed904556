"""A few fuzz runs in every test run. ``python -m tests.faults.soak`` and the marker ``soak`` run many more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.fuzz import one_run, possible
from tests.faults.world import World

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow]
SEEDS = (11, 12, 13, 14)


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    return new_world("sqlite")


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 160))])
def test_a_fuzzed_run_leaves_no_violation(world: World, seed: int) -> None:
    run = one_run(world, seed, possible(world, clocks=False))
    assert run.violations == (), run.notes
