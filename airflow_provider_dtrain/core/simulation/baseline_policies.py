"""Baselines to compare the queue with. They place gangs by the same rules and never stop one."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions
from airflow_provider_dtrain.core.scheduling.placement import find
from airflow_provider_dtrain.core.simulation.simulator import Orders, SimulatedJob


class _Baseline:
    """State that the baselines share: free slots, and the placements of running jobs."""

    def __init__(self, hosts: list[Host], options: PoolOptions) -> None:
        self.free_slots = FreeSlots(hosts)
        self.options = options
        self.running: dict[str, Placement] = {}

    def finish(self, job_id: str, now: float) -> None:
        self.free_slots.give(self.running.pop(job_id))

    def requeue(self, job_id: str, now: float) -> None:
        """Refuse: no baseline stops a job.

        :raises ValueError: always
        """
        raise ValueError(f"Job {job_id!r} has stopped, but no baseline stops jobs.")

    def _start(self, request: GangRequest, placement: Placement) -> tuple[str, Placement]:
        self.free_slots.take(placement)
        self.running[request.request_id] = placement
        return request.request_id, placement


class FirstInFirstOut(_Baseline):
    """First in, first out: while the first job cannot start, none does."""

    def __init__(self, hosts: list[Host], options: PoolOptions) -> None:
        super().__init__(hosts, options)
        self.queue: deque[GangRequest] = deque()

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        """Append the job to the queue."""
        self.queue.append(GangRequest(job.job_id, job.slots))

    def decide(self, now: float) -> Orders:
        """Return the jobs at the head that fit."""
        starts = []
        while self.queue:
            placement = find(self.free_slots, self.queue[0], self.options)
            if placement is None:
                break
            starts.append(self._start(self.queue.popleft(), placement))
        return Orders(starts=starts)


class PriorityWithoutReservation(_Baseline):
    """Priority, then submission: every job that fits starts, and nothing is reserved for other jobs.

    Source: the priority scheduler of Determined, without preemption.
    """

    def __init__(self, hosts: list[Host], options: PoolOptions) -> None:
        super().__init__(hosts, options)
        #: Slots -> heap of (priority, sequence, request): jobs of one size fit or fail together.
        self.queues: dict[int, list[tuple[int, int, GangRequest]]] = {}

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        """Add the job to the queue of its size."""
        entry = (job.priority, sequence, GangRequest(job.job_id, job.slots))
        heapq.heappush(self.queues.setdefault(job.slots, []), entry)

    def decide(self, now: float) -> Orders:
        """Return every job that fits, in order."""
        starts = []
        sizes = {size for size, queue in self.queues.items() if queue}
        while sizes:
            size = min(sizes, key=lambda each: self.queues[each][0][:2])
            request = self.queues[size][0][2]
            placement = find(self.free_slots, request, self.options)
            if placement is None:
                sizes.discard(size)
                continue
            heapq.heappop(self.queues[size])
            starts.append(self._start(request, placement))
            if not self.queues[size]:
                sizes.discard(size)
        return Orders(starts=starts)


@dataclass(frozen=True)
class _Shadow:
    """Latest start of the first job of the queue, and its hosts."""

    job_id: str
    at: float
    hosts: frozenset[str]


class EasyBackfill(_Baseline):
    """EASY backfill: jobs start by submission, and later jobs may start early.

    The first job that does not fit gets a start time that later jobs must not delay. The rule knows every run time
    exactly, which no real pool does: a bound for what can be known.
    Source: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995.
    """

    def __init__(self, hosts: list[Host], options: PoolOptions) -> None:
        super().__init__(hosts, options)
        self.queue: dict[str, tuple[SimulatedJob, GangRequest]] = {}
        #: (end, job id) of running jobs, ascending.
        self.ends: list[tuple[float, str]] = []
        self.shadow: _Shadow | None = None

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        """Append the job to the queue."""
        self.queue[job.job_id] = (job, GangRequest(job.job_id, job.slots))

    def finish(self, job_id: str, now: float) -> None:
        """Release the slots of a job."""
        super().finish(job_id, now)
        self.ends = [entry for entry in self.ends if entry[1] != job_id]

    def decide(self, now: float) -> Orders:
        """Return the jobs at the head that fit, and the jobs behind them that delay none of them."""
        starts: list[tuple[str, Placement]] = []
        while self.queue:
            job, request = next(iter(self.queue.values()))
            placement = find(self.free_slots, request, self.options)
            if placement is None:
                if self.shadow is None or self.shadow.job_id != job.job_id:
                    self.shadow = self._foresee(job, now)
                self._fill(self.shadow, now, starts)
                break
            self._begin(job, request, placement, now, starts)
        return Orders(starts=starts)

    def _begin(
        self,
        job: SimulatedJob,
        request: GangRequest,
        placement: Placement,
        now: float,
        starts: list[tuple[str, Placement]],
    ) -> None:
        del self.queue[job.job_id]
        insort(self.ends, (now + job.duration_s, job.job_id))
        starts.append(self._start(request, placement))

    def _fill(self, shadow: _Shadow, now: float, starts: list[tuple[str, Placement]]) -> None:
        anywhere = set[int]()
        elsewhere = set[int]()
        for job, request in list(self.queue.values())[1:]:
            if job.slots in anywhere:
                continue
            is_short = now + job.duration_s <= shadow.at
            if not is_short and job.slots in elsewhere:
                continue
            placement = find(self.free_slots, request, self.options, frozenset() if is_short else shadow.hosts)
            if placement is not None:
                self._begin(job, request, placement, now, starts)
            else:
                (anywhere if is_short else elsewhere).add(job.slots)

    def _foresee(self, job: SimulatedJob, now: float) -> _Shadow:
        """Return the first start of the job if running jobs end on time and no other job starts."""
        ahead = FreeSlots(self.free_slots.hosts.values())
        for placement in self.running.values():
            ahead.take(placement)
        request = GangRequest(job.job_id, job.slots)
        for at, ended in self.ends:
            ahead.give(self.running[ended])
            found = find(ahead, request, self.options)
            if found is not None:
                return _Shadow(job.job_id, at, frozenset(found.slots))
        return _Shadow(job.job_id, now, frozenset())
