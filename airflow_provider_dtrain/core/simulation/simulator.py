"""Simulation of a pool on a simulated clock: jobs arrive, and a rule starts and stops them.

Uses no real clock and no disk. The input is the jobs of a trace, the result is one :class:`SimulationOutcome`. The rule
is either the queue of this package (``queue_policy``) or one of the ``baseline_policies``.

Model of a preemption: A job that is asked to stop does no work from that second on, but holds its slots for
half of ``cost_s`` while it writes its checkpoint and ends. Then it waits again with its place in the order and
its counters. The other half passes after the next start, until the checkpoint is loaded. So a job holds its
slots for exactly ``duration_s + cost_s * preemptions`` in all, and each preemption delays it by ``cost_s`` and
the time that it waits again.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions
from airflow_provider_dtrain.core.scheduling.unschedulable import could_ever

#: Minimum seconds between two decisions that only the clock causes, so that rounding never stops the clock.
SHORTEST_STEP_S = 1.0
#: Decisions between two calls of ``on_progress``.
_PROGRESS_STEPS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedJob:
    """One line of a trace."""

    #: Unique in the trace.
    job_id: str
    #: Seconds since the trace began.
    submit_s: float
    #: Slots of its gang, >= 0.
    slots: int
    #: Seconds of work, >= 0. Only EASY backfill knows it in advance.
    duration_s: float
    #: Group that shares the pool by weight: the experiment of a real trial.
    group: str = ""
    #: 1 .. 99, smaller first.
    priority: int = 42
    #: Maximum seconds of one run, known to every rule; None = no limit.
    max_runtime_s: float | None = None
    #: It can be stopped, and then continues from a checkpoint.
    is_preemptible: bool = True


@dataclass(frozen=True, kw_only=True)
class Orders:
    """Decision of a rule at one time."""

    #: (job id, its slots) that start now.
    starts: Sequence[tuple[str, Placement]] = ()
    #: Ids of running jobs to stop.
    stops: Sequence[str] = ()
    #: Seconds until time alone may change the decision; None = never.
    due_s: float | None = None


class SimulatedPolicy(Protocol):
    """Scheduling rule under simulation. It receives every event, then decides once per point in time."""

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        """Record that a job has arrived."""

    def finish(self, job_id: str, now: float) -> None:
        """Record that a job has done its work and its slots are free."""

    def requeue(self, job_id: str, now: float) -> None:
        """Record that a preempted job has stopped: its slots are free and it waits again."""

    def decide(self, now: float) -> Orders:
        """Return the jobs to start and to stop now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Result of one job."""

    job: SimulatedJob
    #: Seconds since the trace began.
    first_start_s: float
    end_s: float
    #: Number of times it was stopped and waited again.
    preemptions: int

    @property
    def wait_s(self) -> float:
        """Seconds from submission to the end that were not its work: waiting, and the cost of preemptions."""
        return self.end_s - self.job.submit_s - self.job.duration_s


@dataclass(frozen=True, kw_only=True)
class SimulationOutcome:
    """Result of a trace under one rule."""

    #: In the order of their ends.
    completions: Sequence[Completion]
    slots: int
    largest_host: int
    cost_s: float
    #: Slot-seconds that were held, by work or by checkpoints and restarts.
    held_slot_s: float
    #: Seconds during which some job waited, and the free slot-seconds meanwhile.
    contended_s: float
    idle_slot_s: float
    decisions: int


def hosts_of(groups: Iterable[tuple[int, int]]) -> list[Host]:
    """Return hosts by groups of (number of hosts, slots of each)."""
    sizes = [slots for number, slots in groups for _ in range(number)]
    return [Host(f"host-{index:04}", slots) for index, slots in enumerate(sizes, start=1)]


def split(
    jobs: Iterable[SimulatedJob], hosts: Sequence[Host], options: PoolOptions
) -> tuple[list[SimulatedJob], Counter[int]]:
    """Return the jobs that the hosts can ever serve, and how many of each other size were left out."""
    free_slots = FreeSlots(hosts)
    possible = dict[int, bool]()
    kept = []
    left_out = Counter[int]()
    for job in jobs:
        if job.slots not in possible:
            possible[job.slots] = could_ever(free_slots, GangRequest(job.job_id, job.slots), options)
        if possible[job.slots]:
            kept.append(job)
        else:
            left_out[job.slots] += 1
    return kept, left_out


def simulate(
    jobs: Sequence[SimulatedJob],
    hosts: Sequence[Host],
    rule: SimulatedPolicy,
    *,
    cost_s: float = 60.0,
    on_progress: Callable[[int], None] | None = None,
) -> SimulationOutcome:
    """Return the outcome of the jobs under a rule. The same arguments give the same outcome.

    :param jobs: in any order; each must fit the hosts (see :func:`split`)
    :param hosts: all free
    :param rule: fresh, used for this one call
    :param cost_s: seconds of work lost per preemption, >= 0
    :param on_progress: called every 500 decisions with the number of jobs that have ended
    :raises ValueError: the rule gave slots that are held, stopped a job that does not run, or starves jobs
    """
    world = _World(jobs, hosts, rule, cost_s)
    steps = 0
    while world.step():
        steps += 1
        if on_progress is not None and steps % _PROGRESS_STEPS == 0:
            on_progress(len(world.completions))
    return world.outcome(steps)


@dataclass(slots=True)
class _State:
    """Job that has arrived and not ended."""

    job: SimulatedJob
    #: Seconds for which it still has to hold its slots, including restarts.
    left_s: float
    placement: Placement | None = None
    started_s: float = 0.0
    first_start_s: float | None = None
    preemptions: int = 0
    #: Number of its latest start: events of earlier ones are void.
    run: int = 0
    is_stopping: bool = False


class _Event(NamedTuple):
    """End of a run. Events sort by time, then by the order in which they were scheduled."""

    at: float
    order: int
    job_id: str
    run: int


@dataclass(slots=True)
class _Slots:
    """Held slots, tracked separately from the rule's own state in order to check it."""

    held: dict[str, set[int]]
    free: int
    sizes: dict[str, int] = field(default_factory=dict)

    def take(self, job: SimulatedJob, placement: Placement) -> None:
        if placement.size != job.slots:
            raise ValueError(f"Job {job.job_id!r} wants {job.slots} slots and was given {placement.size}.")
        for host, indices in placement.slots.items():
            if not self.held[host].isdisjoint(indices) or max(indices, default=0) >= self.sizes[host]:
                raise ValueError(f"Job {job.job_id!r} was given slots {indices} of {host}, which are not free.")
            self.held[host].update(indices)
        self.free -= job.slots

    def give(self, placement: Placement) -> None:
        for host, indices in placement.slots.items():
            self.held[host].difference_update(indices)
        self.free += placement.size


class _World:
    def __init__(
        self, jobs: Sequence[SimulatedJob], hosts: Sequence[Host], rule: SimulatedPolicy, cost_s: float
    ) -> None:
        self.rule = rule
        self.cost_s = cost_s
        self.arrivals = sorted(jobs, key=lambda job: job.submit_s)
        self.arrived = 0
        self.states: dict[str, _State] = {}
        self.events: list[_Event] = []
        self.foreseen = 0
        self.due_at: float | None = None
        self.now = self.arrivals[0].submit_s if self.arrivals else 0.0
        sizes = {host.name: host.slots for host in hosts}
        self.total = sum(sizes.values())
        self.largest = max(sizes.values(), default=0)
        self.slots = _Slots({name: set() for name in sizes}, self.total, sizes)
        self.waiting = 0
        self.completions: list[Completion] = []
        self.held_slot_s = self.contended_s = self.idle_slot_s = 0.0

    def step(self) -> bool:
        """Advance to the next event, and return False when all jobs have ended."""
        moment = self._next()
        if moment is None:
            if self.states:
                raise ValueError(f"Nothing runs and the rule starts none of {len(self.states)} jobs that wait.")
            return False
        self._pass_time(moment)
        while self.events and self.events[0].at <= moment:
            self._end_run(heapq.heappop(self.events))
        while self.arrived < len(self.arrivals) and self.arrivals[self.arrived].submit_s <= moment:
            self._arrive(self.arrivals[self.arrived])
        self._obey(self.rule.decide(moment))
        return True

    def _next(self) -> float | None:
        while self.events and self._is_void(self.events[0]):
            heapq.heappop(self.events)
        moments = [self.events[0].at] if self.events else []
        if self.arrived < len(self.arrivals):
            moments.append(self.arrivals[self.arrived].submit_s)
        if self.due_at is not None and self.states:
            moments.append(self.due_at)
        return min(moments, default=None)

    def _pass_time(self, moment: float) -> None:
        seconds = moment - self.now
        self.now = moment
        self.held_slot_s += seconds * (self.total - self.slots.free)
        if self.waiting:
            self.contended_s += seconds
            self.idle_slot_s += seconds * self.slots.free

    def _arrive(self, job: SimulatedJob) -> None:
        if job.job_id in self.states:
            raise ValueError(f"Two jobs are called {job.job_id!r}.")
        self.states[job.job_id] = _State(job, job.duration_s)
        self.rule.submit(job, self.arrived, self.now)
        self.arrived += 1
        self.waiting += 1

    def _obey(self, orders: Orders) -> None:
        for job_id, placement in orders.starts:
            self._start(self.states[job_id], placement)
        for job_id in orders.stops:
            self._stop(self.states[job_id])
        due = orders.due_s
        self.due_at = None if due is None else self.now + max(due, SHORTEST_STEP_S)

    def _start(self, state: _State, placement: Placement) -> None:
        if state.placement is not None:
            raise ValueError(f"Job {state.job.job_id!r} runs already.")
        self.slots.take(state.job, placement)
        state.placement = placement
        state.started_s = self.now
        state.run += 1
        if state.first_start_s is None:
            state.first_start_s = self.now
        self.waiting -= 1
        self._foresee(state, state.left_s)

    def _stop(self, state: _State) -> None:
        if state.placement is None or state.is_stopping:
            raise ValueError(f"Job {state.job.job_id!r} cannot be stopped, because it does not run.")
        state.is_stopping = True
        state.left_s += self.cost_s / 2 - (self.now - state.started_s)
        state.preemptions += 1
        state.run += 1
        self._foresee(state, self.cost_s / 2)

    def _foresee(self, state: _State, seconds: float) -> None:
        self.foreseen += 1
        heapq.heappush(self.events, _Event(self.now + seconds, self.foreseen, state.job.job_id, state.run))

    def _is_void(self, event: _Event) -> bool:
        state = self.states.get(event.job_id)
        return state is None or state.run != event.run

    def _end_run(self, event: _Event) -> None:
        state = self.states.get(event.job_id)
        if state is None or state.run != event.run or state.placement is None:
            return
        self.slots.give(state.placement)
        state.placement = None
        if state.is_stopping:
            state.is_stopping = False
            self.waiting += 1
            self.rule.requeue(event.job_id, self.now)
            return
        del self.states[event.job_id]
        start = self.now if state.first_start_s is None else state.first_start_s
        self.completions.append(
            Completion(job=state.job, first_start_s=start, end_s=self.now, preemptions=state.preemptions)
        )
        self.rule.finish(event.job_id, self.now)

    def outcome(self, decisions: int) -> SimulationOutcome:
        return SimulationOutcome(
            completions=self.completions,
            slots=self.total,
            largest_host=self.largest,
            cost_s=self.cost_s,
            held_slot_s=self.held_slot_s,
            contended_s=self.contended_s,
            idle_slot_s=self.idle_slot_s,
            decisions=decisions,
        )
