"""Invariants that hold after any fault. Each function returns its violations."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.tables import allocation_slots, attempts, checkpoints, events, streams
from testbed import task_logs
from tests.faults.event_files import lost_tails
from tests.faults.memory import grown
from tests.faults.world import World

#: Longest wait for the rest of a log. A trigger may deliver it until 10 s after the end of its trial.
LOG_PATIENCE_S = 60.0
#: Above the goal of 50 ms: a full garbage collection, which takes up to 0.2 s, is no violation. The longest turn of
#: three trigger processes in fault runs was 0.09 s.
LOOP_CPU_S = 0.5


def violations(world: World, trials: list[int], *, gaps: bool = False) -> list[str]:
    """Return all violations after a world has settled.

    :param gaps: a host has lost the end of files in a crash, so events may be missing
    """
    found = [*world.checker.violations, *witnesses(world)]
    for trial_id in trials:
        found += wrong_end(world, trial_id)
        found += wrong_start(world, trial_id)
        found += lost_lines(world, trial_id)
    found += long_turns(world)
    if not gaps:
        found += wrong_events(world) + lost_tails(world)
    found += [f"slot {one.host}:{one.index} is never released by trial {one.trial_id}" for one in world.held()]
    found += [f"process {one.pid} of {one.run} is left on {one.host}" for one in world.holders()]
    found += [f"host {one.name} is {one.state}" for one in world.store.hosts.list() if one.state != "ready"]
    return found + grown(world.followers())


def lost_lines(world: World, trial_id: int) -> list[str]:
    """Return lines of rank 0 on a host that the task log neither contains nor marks as left out."""
    if not hasattr(world, "task_log"):
        return []
    logs = {run: log for host in world.hosts for run, log in task_logs.host_logs(host.folder).items()}
    runs = {one.number: str(one.run) for one in world.store.attempts.of_trial(trial_id) if one.run in logs}
    give_up_at = time.monotonic() + LOG_PATIENCE_S
    while True:
        shown = task_logs.read(world.task_log(trial_id), trial_id)
        found = task_logs.lost(shown, {number: (run, logs[run]) for number, run in runs.items()})
        if not found or time.monotonic() > give_up_at:
            return found
        time.sleep(0.5)


def long_turns(world: World) -> list[str]:
    """Return turns of event loops that used too much CPU time between two polls of their sockets."""
    if not hasattr(world, "turns"):
        return []
    return [f"an event loop computed for {cpu_s:.2f} s" for _, cpu_s in world.turns() if cpu_s > LOOP_CPU_S]


def witnesses(world: World) -> list[str]:
    """Return slots that a rank found in use by another run, according to the locks of the host's kernel."""
    found = []
    for host in world.hosts:
        path = host.folder / "var-tmp" / "witness" / "violations"
        if path.exists():
            found += [f"slot in use on {host.name}: {line}" for line in path.read_text().splitlines()]
    return found


def wrong_end(world: World, trial_id: int) -> list[str]:
    view = world.trial(trial_id)
    if view.state not in world.expected(trial_id):
        return [f"trial {trial_id} ended {view.state}, not {world.expected(trial_id)}: {view.failure}"]
    slots, until = world.goals[trial_id]
    if view.state != "completed" or not until:
        return []
    reached: dict[str, int] = {}
    for event in world.store.events.of_attempt(view.attempt_id, kinds=("resumed", "report")):
        reached[event.stream] = event.body["step"]
    if len(reached) == slots and set(reached.values()) == {until}:
        return []
    return [f"trial {trial_id} completed, but its ranks reached {reached} instead of {until} on all {slots}"]


def wrong_start(world: World, trial_id: int) -> list[str]:
    """Return attempts that did not resume from the latest known checkpoint of the trial."""
    found = []
    with world.store.db.engine.connect() as connection:
        numbers = {row.id: row.number for row in connection.execute(sa.select(attempts.c.id, attempts.c.number))}
        saved = list(connection.execute(sa.select(checkpoints).where(checkpoints.c.trial_id == trial_id)))
        own = sa.select(attempts.c.id).where(attempts.c.trial_id == trial_id)
        query = sa.select(events).where(events.c.attempt_id.in_(own), events.c.kind == "resumed")
        starts = list(connection.execute(query.order_by(events.c.id)))
    for start in starts:
        number, step = numbers[start.attempt_id], start.body["step"]
        before = [row for row in saved if numbers[row.attempt_id] < number]
        if step and step not in {row.step for row in before}:
            found.append(f"attempt {number} of trial {trial_id} began at step {step}, which has no checkpoint")
        shared = [row for row in before if row.path.startswith("/") and row.removed_at is None]
        # A lost host may have reported its last checkpoints only after the next attempt started.
        known = [row.step for row in shared if numbers[row.attempt_id] == number - 1 and came_before(row, start, world)]
        if known and step < max(known):
            found.append(f"attempt {number} of trial {trial_id} began at step {step}, although {max(known)} was saved")
    return found


def came_before(row: Any, start: Any, world: World) -> bool:
    """Return whether a checkpoint was in the store before a later attempt was planned."""
    view = world.store.attempts.get(start.attempt_id)
    return view.created_at is not None and row.at.timestamp() < view.created_at.timestamp() - 1.0


def wrong_events(world: World) -> list[str]:
    """Return lost and repeated events.

    The events of each file are numbered 1, 2, 3 ..., and the steps of each rank have no gap.
    """
    found = []
    files: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    steps: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    with world.store.db.engine.connect() as connection:
        for row in connection.execute(sa.select(events).order_by(events.c.id)):
            key = (row.attempt_id, row.token, row.host, row.stream)
            if row.seq is not None:  # a gap torn by a full disk has no number
                files[key].append(row.seq)
            if row.kind in ("resumed", "report"):
                steps[key].append(row.body["step"])
        epochs = {
            (row.attempt_id, row.token, row.host, row.stream): row.epoch
            for row in connection.execute(sa.select(streams))
        }
    for key, numbers in files.items():
        if numbers != list(range(1, len(numbers) + 1)) and not epochs.get(key):
            found.append(f"events of {key}: {shown(numbers)}")
    for key, numbers in steps.items():
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            found.append(f"steps of {key}: {shown(numbers)}")
    return found


def shown(numbers: list[int]) -> str:
    """Return the places where numbers do not increase by one, as JSON."""
    bad = [(one, after) for one, after in zip(numbers, numbers[1:], strict=False) if after != one + 1]
    return json.dumps({"first": numbers[:1], "breaks": bad[:5], "last": numbers[-1:]})


def unreleased(world: World) -> int:
    """Return the number of slots that are held according to the store."""
    with world.store.db.engine.connect() as connection:
        query = sa.select(sa.func.count()).select_from(allocation_slots)
        return int(connection.scalar(query.where(allocation_slots.c.released_at.is_(None))) or 0)
