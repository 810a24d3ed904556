"""User actions while gangs run. Each function returns a function that reverts the action."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_dtrain.errors import DtrainError, StoreUnavailableError
from tests.faults.world import World

LIVE = ("queued", "running", "paused")
USER = "user of the tests"
Undo = Callable[[], object]


def nothing() -> None:
    """Revert nothing."""


def _live_trial(world: World, dice: random.Random) -> int | None:
    """Return a submitted trial that has not ended, None if there is none or the store does not answer."""
    with contextlib.suppress(StoreUnavailableError):
        found = [one for one in world.goals if world.trial(one).state in LIVE]
        return dice.choice(found) if found else None
    return None


def _ask(call: Callable[[], object]) -> None:
    """Call the store as a CLI command does, and ignore errors of the provider."""
    with contextlib.suppress(DtrainError):
        call()


def kill_trial(world: World, dice: random.Random) -> Undo:
    """Kill a trial, as ``airflow dtrain trials kill`` does. It may complete before the kill."""
    trial = _live_trial(world, dice)
    if trial is not None:
        world.may_end(trial, "killed")
        _ask(lambda: world.store.control.kill(trial, USER))
    return nothing


def stop_trial(world: World, dice: random.Random) -> Undo:
    """Request that a trial stops with its current result."""
    trial = _live_trial(world, dice)
    if trial is not None:
        world.may_end(trial, "stopped")
        _ask(lambda: world.store.control.stop(trial, USER))
    return nothing


def pause_trial(world: World, dice: random.Random) -> Undo:
    """Pause a trial until it is activated."""
    trial = _live_trial(world, dice)
    if trial is None:
        return nothing
    _ask(lambda: world.store.control.pause(trial, USER))
    return lambda: world.until(
        lambda: (world.store.control.activate(trial, USER), True)[1], f"trial {trial} to be activated"
    )


def change_priority(world: World, dice: random.Random) -> Undo:
    """Set the highest or the lowest priority for a trial."""
    trial, priority = _live_trial(world, dice), dice.choice([1, 99])
    if trial is not None:
        _ask(lambda: world.store.control.set("trial", trial, priority=priority, by=USER))
    return nothing


def drain_host(world: World, dice: random.Random) -> Undo:
    """Drain a host: it gets no further grants until it is enabled."""
    name = dice.choice([host.name for host in world.hosts])
    _ask(lambda: world.store.hosts.set_state(name, "draining", "drained by the tests", by=USER))
    return lambda: world.until(lambda: _enabled(world, name), f"host {name} to be enabled")


def evacuate_host(world: World, dice: random.Random) -> Undo:
    """Evacuate a host: gangs there save and resume elsewhere, at once or shortly before a deadline."""
    name = dice.choice([host.name for host in world.hosts])
    by = world.store.db.now() + timedelta(seconds=dice.choice([0, 2]))
    kills = dice.random() < 0.5
    _ask(lambda: world.store.hosts.drain(name, "evacuated by the tests", deadline=by, kills=kills, by=USER))
    return lambda: world.until(lambda: _enabled(world, name), f"host {name} to be enabled")


def _enabled(world: World, name: str) -> bool:
    """Enable a drained host, and return whether it is neither draining nor drained."""
    if world.store.hosts.get(name).state in ("draining", "drained"):
        world.store.hosts.set_state(name, "ready", by=USER)
    return world.store.hosts.get(name).state not in ("draining", "drained")


def disable_slot(world: World, dice: random.Random) -> Undo:
    """Disable one slot. A rank that runs on it continues."""
    name, index = dice.choice([host.name for host in world.hosts]), dice.randrange(world.slots)
    _ask(lambda: world.store.hosts.set_slot_enabled(name, index, False, by=USER))
    enable = lambda: (world.store.hosts.set_slot_enabled(name, index, True, by=USER), True)[1]  # noqa: E731
    return lambda: world.until(enable, f"slot {name}:{index} to be enabled")


ACTIONS = {
    "user kills": kill_trial,
    "user stops": stop_trial,
    "user pauses": pause_trial,
    "user sets priority": change_priority,
    "user drains host": drain_host,
    "user evacuates host": evacuate_host,
    "user disables slot": disable_slot,
}
