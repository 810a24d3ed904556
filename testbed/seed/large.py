"""The scene ``large``: one experiment of 10,000 trials, and 1,000 hosts of 8 slots.

Its trials take the shortest way through the store: no ranks, one commit for all their reports.
"""

from __future__ import annotations

import random
from typing import Any

from airflow_provider_dtrain.store.records.trials import EndState, Ticket
from testbed.seed.experiments import Planned
from testbed.seed.run import Failure, killed
from testbed.seed.scenes import TEMPLATE, key
from testbed.seed.simulation import Simulation
from testbed.seed.small import SPACE, document, host
from testbed.seed.training import Course, quality_of

HOURS = 40.0
HOSTS, SLOTS = 1000, 8
TRIALS, SLOTS_PER_TRIAL = 10_000, 4
#: Trials that run, and trials that wait, at the end.
RUNNING, WAITING = 1500, 1000
#: Trials that run at one time, before that.
WAVE = 1900
EPOCHS = 27
#: Hours between two waves.
WAVE_HOURS = 6.0


def large(site: Simulation, *, hosts: int = HOSTS, trials: int = TRIALS) -> None:
    """Let the scene happen, up to now.

    :param hosts: fewer for a test
    :param trials: fewer for a test; running and waiting ones shrink with them
    """
    site.store.templates.set("vision", TEMPLATE, by="admin")
    for number in range(hosts):
        site.store.hosts.add(host(f"gpu-{number:04d}", "big", "NVIDIA H100 80GB HBM3", SLOTS), by="admin")
    sweep = Sweep(site, trials)
    waiting, running = (trials * count // TRIALS for count in (WAITING, RUNNING))
    ended, wave = trials - waiting - running, hosts * SLOTS // SLOTS_PER_TRIAL * WAVE // 2000
    for first in range(0, ended, wave):
        sweep.start(range(first, min(first + wave, ended)))
        sweep.end()
        site.clock.advance(WAVE_HOURS * 3600)
    site.clock.advance_to(site.end, less_s=1800)
    sweep.start(range(ended, ended + running))
    sweep.report(until=0.4)
    site.clock.advance_to(site.end)
    sweep.submit(range(ended + running, trials))
    site.store.queue.schedule("big")
    for number in range(hosts // 100):
        name = f"gpu-{97 * number % hosts:04d}"
        site.store.hosts.set_state(name, ("draining", "unreachable", "disabled")[number % 3], "maintenance", by="admin")
        site.store.hosts.set_slot_enabled(f"gpu-{41 * number % hosts:04d}", 5, False, by="admin")


class Sweep:
    """The experiment, and the trials of it that run."""

    def __init__(self, site: Simulation, trials: int) -> None:
        self.site = site
        self.store = site.store
        searcher = {"name": "adaptive_asha", "max_trials": trials, "max_length": {"epochs": EPOCHS}, "divisor": 3,
                    "max_rungs": 4, "max_concurrent_trials": 0}  # fmt: skip
        described = document("big-sweep", hyperparameters=SPACE, searcher=searcher, labels=["sweep"],
                             resources={"pool": "big", "slots_per_trial": SLOTS_PER_TRIAL})  # fmt: skip
        self.planned = Planned(self.store, key(site, "big_sweep", HOURS, "plan"), described)
        #: Number of a trial -> its ticket and the watch.
        self.running: dict[int, tuple[Ticket, int]] = {}
        #: Allocation -> its host.
        self.hosts: dict[int, str] = {}

    def submit(self, numbers: range) -> dict[int, Ticket]:
        """Submit trials, and return their tickets."""
        # Otherwise each submission checks all hosts.
        return {
            number: self.store.trials.submit(self.planned.submission(number, on_unplaceable="wait"))
            for number in numbers
        }

    def start(self, numbers: range) -> None:
        """Submit trials and start them after one scheduling pass."""
        submitted = self.submit(numbers)
        self.site.clock.advance(2)
        self.store.queue.schedule("big")
        self.hosts = {slot.allocation_id: slot.host for slot in self.store.hosts.slots() if slot.allocation_id}
        for number, ticket in submitted.items():
            watch = self.store.attempts.watch(ticket.attempt_id, watcher="triggerer on airflow-1")
            if self.store.queue.take_up(ticket.attempt_id, watch) is None:
                raise RuntimeError(f"Trial {ticket.trial_id} of a wave got no slots.")
            self.store.attempts.set_running(ticket.attempt_id, watch)
            self.running[number] = ticket, watch

    def report(self, until: float = 1.0) -> None:
        """Report epochs and rungs of the running trials.

        :param until: part of the training that is done
        """
        for number, (ticket, watch) in self.running.items():
            events = self._reports(number, until)
            name = self.hosts[ticket.allocation_id]
            self.store.events.commit(ticket.attempt_id, watch, name, "rank0.events", 0, len(events), events)

    def _reports(self, number: int, until: float) -> list[dict[str, Any]]:
        spec = self.planned.specs[number]
        quality = quality_of(spec["hyperparameters"] or {}, number)
        course = Course(epochs=EPOCHS, batches=390, epoch_s=700, quality=quality, seed=number)
        noise = random.Random(number)  # noqa: S311
        at = self.site.clock.unix
        events: list[dict[str, Any]] = []
        # A trial of this scene reports until its quality says that it would have been stopped.
        last = spec["rungs"][min(len(spec["rungs"]) - 1, int(quality * len(spec["rungs"])))]
        for epoch in range(1, max(1, int(last * until)) + 1):
            score = course.score(epoch / EPOCHS, noise)
            step = 390 * epoch
            events.append({"kind": "report", "step": step, "epoch": float(epoch), "at": at + 700 * epoch,
                           "metrics": {"loss": course.loss(epoch / EPOCHS, noise)}})  # fmt: skip
            events.append({"kind": "validation", "step": step, "epoch": float(epoch), "at": at + 700 * epoch,
                           "metrics": {"accuracy": score}})  # fmt: skip
            if epoch in spec["rungs"]:
                rung = spec["rungs"].index(epoch)
                events.append({"kind": "rung", "rung": rung, "units": epoch, "metric": score, "step": step})
        return [{"at": at, **event, "seq": seq} for seq, event in enumerate(events, 1)]

    def end(self) -> None:
        """Report, and end all running trials as the searcher decided. A few fail, and a few are killed."""
        self.report()
        entries = self.store.searches.rung_entries(self.planned.search_id or 0)
        completed = {entry.trial_id for entry in entries if entry.decision == "complete"}
        for number, (ticket, watch) in self.running.items():
            state, failure = _end_of(number, is_completed=ticket.trial_id in completed)
            name = self.hosts[ticket.allocation_id]
            self.store.queue.release(ticket.attempt_id, watch, name, proof="clear")
            self.store.attempts.end(ticket.attempt_id, watch, state=state, failure=failure)
        self.running.clear()


def _end_of(number: int, *, is_completed: bool) -> tuple[EndState, Failure | None]:
    if number % 47 == 0:
        message = "Rank 0 failed first (exit code 1): torch.OutOfMemoryError: CUDA out of memory."
        return "errored", {"error": "RankFailedError", "kind": "user", "message": message, "host": None, "rank": 0}
    if number % 101 == 0:
        return "killed", killed("op")
    return ("completed" if is_completed else "stopped"), None
