"""Queue of a pool as a rule of a simulation, with the same code that decides for the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_dtrain.core.scheduling.cycle import step
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, PoolOptions
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState
from airflow_provider_dtrain.core.simulation.simulator import Orders, SimulatedJob


class SimulatedQueue:
    """One pool with its options.

    :param hosts: all free
    :param cost_s: seconds that every gang is known to lose per preemption
    """

    def __init__(self, hosts: Iterable[Host], options: PoolOptions, *, cost_s: float = 60.0) -> None:
        self.scheduler = PoolState(hosts, options)
        self.cost_s = cost_s
        #: Waiting and running requests by id, as first submitted.
        self.requests: dict[str, GangRequest] = {}

    def submit(self, job: SimulatedJob, sequence: int, now: float) -> None:
        """Enqueue the job."""
        request = self.requests[job.job_id] = GangRequest(
            job.job_id,
            job.slots,
            priority=job.priority,
            sequence=sequence,
            group=job.group,
            max_runtime_s=job.max_runtime_s,
            is_preemptible=job.is_preemptible,
        )
        self.scheduler.advance(now)
        self.scheduler.submit(request)

    def finish(self, job_id: str, now: float) -> None:
        """Remove the job."""
        self.scheduler.advance(now)
        self.scheduler.end(job_id)
        del self.requests[job_id]

    def requeue(self, job_id: str, now: float) -> None:
        """Enqueue the job again, with its place in the order and its counters."""
        self.scheduler.advance(now)
        gang = self.scheduler.end(job_id)
        held_s = now - gang.held_from
        waited_s = gang.waited_s + gang.cost_s
        self.scheduler.submit(replace(self.requests[job_id], held_s=held_s, waited_s=waited_s))

    def decide(self, now: float) -> Orders:
        """Return the orders of one pass."""
        outcome = step(self.scheduler, now)
        for job_id, _ in outcome.grants:
            self.scheduler.set_gang(job_id, is_preemptible=self.requests[job_id].is_preemptible, cost_s=self.cost_s)
        due = self.scheduler.next_due()
        stops = [victim for victim, _ in outcome.preemptions]
        return Orders(starts=outcome.grants, stops=stops, due_s=None if due is None else due - now)
