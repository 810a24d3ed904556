"""Checks after a fault."""

from __future__ import annotations

import functools
import time

from tests.faults.event_files import document
from tests.faults.verdict import violations
from tests.faults.world import World

#: Time that a busy machine may need to wake a supervisor, to end its ranks, and to scan all processes.
SLACK_S = 30.0


def all_is_well(world: World, *trials: int) -> None:
    """Wait until the trials have ended and every slot is free, and assert that there are no violations."""
    world.heal()
    world.settle(list(trials))
    found = violations(world, list(trials))
    assert found == [], found


def starts(world: World, trial_id: int) -> list[int]:
    """Return the start step of each attempt of a trial that ran, from rank 0's events."""
    found = []
    for view in world.store.attempts.of_trial(trial_id):
        events = world.store.events.of_attempt(view.attempt_id, kinds=("resumed",))
        found += [event.body["step"] for event in events if event.stream == "rank0.events"]
    return found


def gone_by_itself(world: World, trial_id: int, host: str | None = None) -> None:
    """Wait until the hosts have ended the trial's ranks by themselves, soon after the last renewal expired.

    The host's own record has the time of the last renewal. The time of the end is that of the first scan without a
    process of the run.

    :param host: only this host; None: every host of the trial
    """
    runs = {one.host: one.run for one in world.holders(trial_id) if host in (None, one.host)}
    assert runs, f"nothing of trial {trial_id} runs on {host or 'any host'}"
    ended: dict[str, float] = {}

    def gone() -> bool:
        left = {one.host for one in world.holders(trial_id)}
        for name in runs.keys() - left - ended.keys():
            ended[name] = time.clock_gettime(time.CLOCK_BOOTTIME)
        return ended.keys() == runs.keys()

    world.until(gone, f"the end of trial {trial_id} by its host alone", world.orphan_timeout_s + 30.0)
    for name, at in ended.items():
        told = functools.partial(document, world.host(name), runs[name])
        way = world.until(functools.partial(told, "ended"), f"the record of the end on {name}")
        assert way["reason"] == "orphaned"
        # A run that was not renewed yet counts from its start.
        renewed = told("renewed").get("renewed_boottime_s") or told("state.json")["prepared_boottime_s"]
        after_s = at - renewed
        latest_s = world.orphan_timeout_s + world.kill_grace_s + SLACK_S
        assert world.orphan_timeout_s - 0.5 < after_s < latest_s, f"{name}: {after_s:.1f} s, at most {latest_s:.1f}"
