"""Shared parts of the scenes: lives of trials, and keys of tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from airflow_provider_dtrain.engine.attempt.outcome import Failure
from airflow_provider_dtrain.errors import RankFailedError
from airflow_provider_dtrain.store.records.trials import TrialKey
from testbed.seed.experiments import Planned
from testbed.seed.run import Run, killed
from testbed.seed.simulation import Life, Simulation
from testbed.seed.telemetry import Machines, recorded
from testbed.seed.training import Course, Progress, quality_of, train

TEMPLATE = """\
# Settings that the vision experiments share.
labels: [vision]
max_restarts: 2
hyperparameters:
  global_batch_size: 64
environment:
  variables:
    WANDB_API_KEY: 4f2c9d0b7e
searcher:
  metric: accuracy
  smaller_is_better: false
"""
#: Values that a trial's log begins with.
LOG = "epoch {epoch:3d}  loss {loss:.4f}  {speed:.0f} samples/s"


def run_id(site: Simulation, hours: float) -> str:
    """Return the id of a DAG run that a user triggered at a time before the end of the simulation."""
    return f"manual__{(site.end - timedelta(hours=hours)).replace(microsecond=0).isoformat()}"


def key(site: Simulation, dag_id: str, hours: float, task: str = "trial") -> TrialKey:
    """Return the key of a task of such a DAG run."""
    return TrialKey(dag_id=dag_id, run_id=run_id(site, hours), task_id=task)


def log_of(course: Course, progress: Progress, rank: int) -> str:
    """Return the last lines of a rank's log."""
    noise = random.Random(rank)  # noqa: S311
    lines = [f"rank {rank}: NCCL version 2.27.3+cuda12.9, device cuda:{rank % 8}"]
    for epoch in range(max(0, progress.epoch - 12), progress.epoch):
        loss = course.loss((epoch + 1) / course.epochs, noise)
        lines.append(LOG.format(epoch=epoch + 1, loss=loss, speed=noise.uniform(2900, 3100)))
    return "\n".join(lines) + "\n"


def searched(
    site: Simulation, planned: Planned, number: int, course: Course, *, machines: Machines | None = None
) -> Life:
    """A trial of a search, from its submission to its end.

    :param course: its quality is set by the hyperparameters
    :param machines: figures of its hosts; None = it has no telemetry
    """
    spec = planned.specs[number]
    seed = course.seed + number
    course = replace(course, quality=quality_of(spec["hyperparameters"] or {}, seed), seed=seed)
    run = Run(site, planned.submission(number))
    run.submit()
    if machines is not None:
        site.soon(recorded(run, replace(machines, seed=number)))
    progress = Progress()
    yield from run.start()
    yield from trained(run, course, progress, rungs=spec["rungs"])


def trained(run: Run, course: Course, progress: Progress, *, rungs: Sequence[int] = ()) -> Life:
    """Train to the end, and release the gang on the way whenever that is requested."""
    while True:
        yield from train(run, course, progress, rungs=rungs)
        requests = run.store.control.pending(run.ticket.attempt_id)
        every = [rank for ranks in run.ranks.values() for rank in ranks]
        logs = {rank: log_of(course, progress, rank) for rank in every}
        run.exits(dict.fromkeys(every, -15) if requests.kill_by else {}, logs, sent_signal=requests.kill_by is not None)
        yield 3.0
        if requests.kill_by is not None:
            return run.finish("killed", killed(requests.kill_by))
        if run.verdict != "asked" or requests.stop_by is not None:
            return run.finish("completed" if run.verdict == "completed" else "stopped")
        words = f"paused by {requests.pause_by}" if requests.pause_by else f"preempted for {requests.preempted_for}"
        run.give_way(words, paused=requests.pause_by is not None)
        yield from run.start()


def raises(run: Run, rank: int, message: str, where: Sequence[tuple[str, int, str]]) -> Mapping[str, Any]:
    """Report that a rank raised and that the other ranks were ended, and return the failure.

    :param where: (file, line, code) of the traceback, innermost last
    """
    frames = "".join(f'  File "{file}", line {line}, in {"main" if not i else "step"}\n    {code}\n'
                     for i, (file, line, code) in enumerate(where))  # fmt: skip
    traceback = f"Traceback (most recent call last):\n{frames}{message}\n"
    host = next(name for name, ranks in run.ranks.items() if rank in ranks)
    codes = {one: -15 for ranks in run.ranks.values() for one in ranks} | {rank: 1}
    logs = {one: f"rank {one}: waiting in all_reduce\n" for one in codes}
    logs[rank] = f"rank {rank}: loading shard 17 of 64\n{traceback}"
    run.exits(codes, logs, {rank: {"message": message, "traceback": traceback}}, sent_signal=True)
    error = RankFailedError(rank=rank, host=host, exit_code=1, traceback=traceback, message=message)
    return asdict(Failure.of(error))
