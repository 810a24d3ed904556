"""What a test asks after its fault."""

from __future__ import annotations

import time

from tests.faults.verdict import violations
from tests.faults.world import PATIENCE, World


def all_is_well(world: World, *trials: int) -> None:
    """Wait until the trials have ended and every slot came free; nothing may have gone wrong on the way."""
    world.heal()
    world.settle(list(trials))
    assert violations(world, list(trials)) == []


def starts(world: World, trial_id: int) -> list[int]:
    """Return the step at which each attempt of a trial that ran began, by rank 0."""
    found = []
    for view in world.store.trial_attempts(trial_id):
        events = world.store.events(view.attempt_id, kinds=("resumed",))
        found += [event.body["step"] for event in events if event.stream == "rank0.events"]
    return found


def gone_by_itself(world: World, trial_id: int, host: str | None = None) -> None:
    """Return when nothing of the trial runs (on a host), which must be before nobody could wait any longer."""
    limit_s = (world.orphan_timeout_s + world.kill_grace_s + 5.0) * PATIENCE
    begun = time.monotonic()
    world.until(
        lambda: not [one for one in world.holders(trial_id) if host in (None, one.host)],
        f"the end of trial {trial_id} by its host alone", limit_s,
    )  # fmt: skip
    assert time.monotonic() - begun < limit_s * PATIENCE
