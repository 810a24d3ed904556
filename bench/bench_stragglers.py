"""Slow ranks of a running gang: time until the task log names one with its cause, and false names in healthy runs.

Two ranks over gloo on this machine, followed by the engine. Healthy runs and runs with a slow rank alternate: by a CPU
quota, by a slow loader, and by processes on its core.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.series.slow_causes import SlowCause
from airflow_provider_dtrain.resources.telemetry import NamedStraggler
from bench.engine_worlds import LOG, World
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row
from testbed.cpu_quota import CpuQuota, controller_folder

JOB = Path(__file__).resolve().parents[1] / "testbed" / "straggler_job" / "straggler_train.py"
#: Part of a CPU that the slow rank gets.
QUOTA = 0.05
#: Seconds of a healthy run from its first step, of which --quick has none, and ``profiling.straggler_after``.
RUN_S, AFTER_S, QUICK_AFTER_S = 140.0, 60.0, 10.0
#: Most seconds of a run with a slow rank.
SLOW_MOST_S = 120.0
#: Reason of a run -> causes that are right. A starved process may show as one that waits for a CPU.
CAUSES = {
    "quota": {SlowCause.CPU_QUOTA},
    "loader": {SlowCause.LOADER},
    "busy": {SlowCause.CPU_WAIT},
}


async def run_once(
    world: World, kind: str, seconds: float, after_s: float = AFTER_S
) -> tuple[list[NamedStraggler], float | None]:
    """Return the ranks that a run names, and the seconds from its first step to the first name, which ends a slow run.

    :param kind: argument of the program
    :param after_s: time of the rule
    """
    with CpuQuota(QUOTA) as quota:
        entrypoint = f"python straggler_train.py {kind} {seconds:g} '{quota.folder}'"
        variables = {"variables": {"OMP_NUM_THREADS": "1"}}
        document: dict[str, Any] = {"environment": variables, "hyperparameters": {"global_batch_size": 2}}
        document["profiling"] = {"straggler_after": after_s}
        ticket = world.submit(entrypoint, slots=2, **document)
        runtime, task = await world.follow(ticket)
        store = world.hook.store
        began = named_s = None
        while not task.done():
            await asyncio.wait([task], timeout=1.0)
            if began is None and store.events.kinds_of(ticket.attempt_id, ("first_step",)):
                began = time.monotonic()
            if began is not None and named_s is None and store.stragglers.current(ticket.attempt_id):
                named_s = time.monotonic() - began
                if kind != "healthy":
                    runtime.kill()
        outcome = await task
        if named_s is None and (outcome is None or outcome.state != "completed"):
            raise RuntimeError(f"A run of '{kind}' ended as {outcome}.")
        return store.stragglers.of_trial(ticket.trial_id), named_s


def measure(run: Run) -> None:
    logging.disable(logging.WARNING)
    LOG.propagate = False
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        world = World(Path(folder))
        shutil.copy(JOB, Path(folder) / "code")
        world.add_this_machine(slots=2)
        try:
            for number in range(run.rounds):
                slow = list(CAUSES)[number % len(CAUSES)]
                for kind in run.size(("healthy", slow), (slow,)):
                    seconds = RUN_S if kind == "healthy" else SLOW_MOST_S
                    after_s = run.size(AFTER_S, QUICK_AFTER_S)
                    judge(run, kind, *asyncio.run(run_once(world, kind, seconds, after_s)))
        finally:
            world.hook.links.close_all()


def judge(run: Run, kind: str, found: list[NamedStraggler], named_s: float | None) -> None:
    """Add the verdict on one run."""
    load = os.getloadavg()[0]
    names = [(one.rank, str(one.cause), round(one.ratio, 2)) for one in found]
    run.note(f"{kind}, load {load:.0f}: {names or 'no rank'}" + (f" after {named_s:.0f} s." if named_s else "."))
    if kind == "healthy":
        run.add("false names", "ours", len(found))
        return
    run.add("false names of slow runs", "ours", sum(one.rank != 1 for one in found))
    own = [one for one in found if one.rank == 1]
    run.add("missed", "ours", 0 if own else 1)
    if own:
        run.add("wrong cause", "ours", 0 if own[0].cause in CAUSES[kind] else 1)
        run.add("named", "ours", named_s or 0.0)


def missing() -> str | None:
    """Return the reason why this machine cannot run it."""
    return None if controller_folder() is not None else "it needs the right to create cgroups with a CPU quota"


def _none(name: str, what: str) -> Row:
    return Row(
        name=name, what=what, unit="a run", sides={"ours": OURS}, goals=(Goal(side="ours", at_most=0, quantile=1),)
    )


BENCH = Bench(
    what="A rank that is slower than the others",
    rows=(
        Row(
            name="named",
            what="From the first step until the slow rank is named",
            unit="s",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=120, quantile=1),),
        ),
        _none("missed", "Runs with a slow rank that was not named"),
        _none("wrong cause", "Named with another cause than the one that was made"),
        _none("false names", "Ranks that a healthy run names"),
        _none("false names of slow runs", "Other ranks that a run with a slow rank names"),
    ),
    measure=measure,
    rounds=(20, 1),
    missing=missing,
)
