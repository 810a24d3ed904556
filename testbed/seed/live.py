"""A trial that trains in real time: metrics and telemetry each second, until the seeding script is ended."""

from __future__ import annotations

import math
import random

from testbed.seed.experiments import Planned
from testbed.seed.run import Run
from testbed.seed.scenes import key
from testbed.seed.simulation import AskedError, Life, Simulation
from testbed.seed.small import document
from testbed.seed.telemetry import Machines, record

NAME = "live-digits"
#: Batches in a second, and seconds between two validations.
BATCHES, VALIDATES_EVERY = 5, 10


def live(site: Simulation) -> Life:
    """Train until a control request comes."""
    described = document(NAME, hyperparameters={"lr": 0.006, "epochs": 100000}, labels=["live"],
                         resources={"pool": "cpu", "slots_per_trial": 2}, description="Trains now")  # fmt: skip
    run = Run(site, Planned(site.store, key(site, "live_digits", 0, "train"), described).submission())
    run.submit()
    yield from run.start()
    noise, second, since = random.Random(1), 0, int(site.clock.unix)  # noqa: S311
    machines = Machines(every_s=1, step_s=1 / BATCHES)
    try:
        while True:
            yield 1.0
            second += 1
            report(run, second, noise)
            now = int(site.clock.unix)
            record(run, machines, since, now)
            since = now
    except AskedError:
        by = site.store.control.pending(run.ticket.attempt_id).kill_by
        run.exits({}, {0: f"ended after {second} s\n"})
        run.finish("stopped" if by is None else "killed")


def report(run: Run, second: int, noise: random.Random) -> None:
    """Report the metrics of a second."""
    loss = 0.2 + 2.1 * math.exp(-second / 120) + noise.gauss(0, 0.02)
    step, epoch = BATCHES * second, second / 60
    run.commit([{"kind": "report", "step": step, "metrics": {"loss": loss}, "epoch": epoch}])
    if second % VALIDATES_EVERY == 0:
        accuracy = 0.95 - 0.85 * math.exp(-second / 90) + noise.gauss(0, 0.004)
        metrics = {"accuracy": accuracy, "loss": loss * 1.1}
        run.commit([{"kind": "validation", "step": step, "metrics": metrics, "epoch": epoch}])
