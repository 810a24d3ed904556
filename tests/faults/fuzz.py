"""Seeded fuzz runs: trials of random sizes, random faults at random times, and the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.inference_on_hosts import HostedInference
from tests.faults.inject import FAULTS, UNDONE_FIRST, Undo, wait
from tests.faults.verdict import violations
from tests.faults.world import World

#: Fault -> feature that the world must have.
NEEDS = {"database killed": "postgresql", "host clock": "clocks", "full disk": "small disk"}
#: Faults that exclude each other: a store cannot be backed up while its server is down.
APART = frozenset({"database killed", "backup restored"})


@dataclass(frozen=True)
class Run:
    """Record of one fuzz run."""

    seed: int
    faults: tuple[str, ...]
    violations: tuple[str, ...]
    #: Time from the end of the trials, with every fault undone, until a gang holds all slots; -1: it did not settle.
    recovery_s: float
    wall_s: float
    notes: list[str] = field(default_factory=list)
    #: Wall-clock and CPU seconds of the longest turns of an event loop so far in this world. A stopped process has long
    #: wall-clock turns.
    turns: tuple[float, float] = (0.0, 0.0)


def possible(world: World, *, clocks: bool) -> list[str]:
    """Return the names of the faults that a world supports."""
    have = {world.db.name, "clocks" if clocks else "", "small disk" if world.disk_mib else ""}
    return [name for name in FAULTS if NEEDS.get(name, world.db.name) in have]


def one_run(world: World, seed: int, names: Sequence[str], *, most: int = 2) -> Run:
    """Run some trials with some faults, and return the record with its violations.

    :param names: faults to choose from
    :param most: largest number of faults in one run
    """
    dice, begun = random.Random(seed), time.monotonic()
    sizes = dice.choice([(2,), (4,), (6,), (2, 4), (4, 4), (1, 2, 4), (2, 2, 2, 2), (6, 2)])
    shared = dice.random() < 0.6
    until, notes = dice.choice([20, 40]), []
    trials = []
    for size in sizes:
        # A user may disable a slot that a waiting trial needs: the trial waits until the slot is enabled again.
        more = {"save_every": dice.choice([3, 7]), "on_unplaceable": "wait"}
        trials.append(world.submit(size, until=until, shared=shared or size > world.slots, **more))
    if dice.random() < 0.75:
        world.running(trials[0], step=dice.choice([1, 4, 8]))
    else:
        wait(dice.uniform(0.0, 1.5))
    chosen = tuple(dice.sample(list(names), dice.randint(1, most)))
    while set(chosen) >= APART:
        chosen = tuple(dice.sample(list(names), dice.randint(1, most)))
    try:
        disturb(world, dice, chosen, notes)
        world.heal()
        notes.append(f"{time.monotonic() - begun:.1f} s: healed")
        recovery_s = world.settle(trials)
        found = violations(world, trials)
    except Exception as error:
        recovery_s, found = -1.0, [f"did not settle: {error!r}"]
    walls, cpus = zip(*(world.turns() or [(0.0, 0.0)]), strict=True)
    return Run(seed, chosen, tuple(found), recovery_s, time.monotonic() - begun, notes, (max(walls), max(cpus)))


def one_inference(world: World, seed: int, names: Sequence[str], *, most: int = 2) -> Run:
    """Run a batch inference with some faults, then a second one into its folder, and return the record.

    :param names: faults to choose from
    :param most: largest number of faults in one run
    """
    dice, begun = random.Random(seed), time.monotonic()
    work, notes = HostedInference(world, f"inference-{seed}", dice.choice([2_000, 20_000, 40_000])), []
    sizes = dice.choices([1, 2, 4, 6], k=2)
    held_at = dice.randrange(work.shards)
    work.allow(held_at)
    trials = [work.submit(sizes[0], on_unplaceable="wait")]
    chosen = tuple(dice.sample(list(names), dice.randint(1, most)))
    try:
        world.until(lambda: work.has(held_at) and world.ranks(), f"{held_at} shards", 120)
        disturb(world, dice, chosen, notes)
        world.heal()
        work.allow(work.shards + 1)
        recovery_s = world.settle(trials)
        trials.append(work.submit(sizes[1], on_unplaceable="wait"))
        world.settle(trials)
        found = [*violations(world, trials), *work.violations()]
    except Exception as error:
        recovery_s, found = -1.0, [f"did not settle: {error!r}"]
    return Run(seed, chosen, tuple(found), recovery_s, time.monotonic() - begun, notes)


def disturb(world: World, dice: random.Random, chosen: Sequence[str], notes: list[str]) -> None:
    """Inject the faults, wait for a while, and undo them."""
    begun, undos = time.monotonic(), dict[str, Undo]()
    for name in chosen:
        notes.append(f"{time.monotonic() - begun:.1f} s after the first fault: {name}")
        undos[name] = FAULTS[name](world, dice)
        wait(dice.choice([0.0, 0.3, 1.0]))
    long_s = world.orphan_timeout_s + world.kill_grace_s
    wait(dice.choice([dice.uniform(0.2, 3.0), dice.uniform(0.2, 3.0), long_s * dice.uniform(1.1, 1.8)]))
    first = [name for name in UNDONE_FIRST if name in undos]
    for name in [*first, *(other for other in undos if other not in first)]:
        undos[name]()
