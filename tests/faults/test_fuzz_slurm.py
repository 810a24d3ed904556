"""A few fuzz runs on a real Slurm cluster. ``python -m tests.faults.slurm_soak`` runs many more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.netns import missing as no_hosts
from testbed.slurm import missing as no_slurm
from tests.faults.slurm_faults import FAULTS
from tests.faults.slurm_soak import one_run
from tests.faults.slurm_world import SlurmWorld

pytestmark = [pytest.mark.nightly, pytest.mark.netns, pytest.mark.slow]
SEEDS = (21, 202, 205, 207)


@pytest.fixture(scope="module", params=["ssh", "local"])
def world(request: pytest.FixtureRequest) -> Iterator[SlurmWorld]:
    if reason := no_hosts() or no_slurm():
        pytest.skip(reason)
    with SlurmWorld(request.param) as made:
        yield made


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(300, 340))])
def test_a_fuzzed_run_leaves_no_violation(world: SlurmWorld, seed: int) -> None:
    # Runs of one world: none may make the controller forget what the next one needs.
    run = one_run(world, seed, [name for name in FAULTS if name != "controller killed unsaved"])
    assert run.violations == (), run.notes


def test_the_verdict_sees_a_job_that_was_submitted_twice(world: SlurmWorld) -> None:
    for _ in range(2):
        world.slurm.submit("#!/bin/sh\n", "--job-name=dtrain-twice")
    world.until(lambda: world.submissions()["dtrain-twice"] == 2, "both submissions", 10)
