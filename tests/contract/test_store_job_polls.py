"""Jobs of external schedulers in the store: polls, unclear submissions, and jobs that are put back into the queue."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dtrain.core.external_jobs import EndKind, ExternalJob, JobEnd, JobPhase, JobStatus
from airflow_provider_dtrain.store import external_jobs
from testbed.stores import host

pytestmark = pytest.mark.each_change


@pytest.fixture(autouse=True)
def _pool(store: Any) -> None:
    store.pools.set_scheduler("hpc", backend="slurm", slot_type="cpu", scheduler={"slots": "cpu"})


def begun(store: Any, submit: Any, number: str | None = "7") -> tuple[Any, ExternalJob]:
    """Return a trial's ticket and the job of its request, submitted unless there is no number."""
    ticket = submit(slots=2, pool="hpc")
    job = store.external_jobs.begin(ticket.allocation_id, b"sealed", most=None)
    store.external_jobs.submitting(job.job_id)
    if number is not None:
        store.external_jobs.submitted(job.job_id, number)
    return ticket, store.external_jobs.get(job.job_id)


def status(store: Any, job: ExternalJob, phase: JobPhase = JobPhase.RUNNING, **fields: Any) -> JobStatus:
    values = {"nodes": ("n1",), "started_at": store.db.now().replace(microsecond=0), **fields}
    return JobStatus(number=str(job.number), name=job.name, phase=phase, **values)


def granted(store: Any, submit: Any) -> tuple[Any, ExternalJob]:
    ticket, job = begun(store, submit)
    store.external_jobs.polled("hpc", {job.job_id: status(store, job)})
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    record = dataclasses.replace(host("n1.1", 2), pool="hpc", external_job_id=job.job_id, node=0)
    store.external_jobs.grant(ticket.attempt_id, watch, job.job_id, [record])
    return ticket, store.external_jobs.get(job.job_id)


def test_a_submission_that_was_certainly_not_accepted_leaves_no_trace(store: Any, submit: Any) -> None:
    _, job = begun(store, submit, number=None)
    assert job.submitted_at is not None
    store.external_jobs.not_submitted(job.job_id)
    assert store.external_jobs.get(job.job_id).submitted_at is None
    store.external_jobs.submitting(job.job_id)
    store.external_jobs.submitted(job.job_id, "8")
    store.external_jobs.not_submitted(job.job_id)
    assert store.external_jobs.get(job.job_id).submitted_at is not None


def test_a_granted_job_that_waits_again_is_cancelled_and_its_second_start_is_no_grant(
    store: Any, submit: Any, clock: Any
) -> None:
    _, job = granted(store, submit)
    assert store.external_jobs.surplus() == []
    waiting = status(store, job, JobPhase.WAITING, nodes=(), started_at=None)
    store.external_jobs.polled("hpc", {job.job_id: waiting})
    assert [one.job_id for one in store.external_jobs.surplus()] == [job.job_id]
    clock.advance(60)
    again = status(store, job, nodes=("n2",))
    store.external_jobs.polled("hpc", {job.job_id: again})
    found = store.external_jobs.get(job.job_id)
    assert (found.phase, found.nodes) == (JobPhase.WAITING, ("n1",))
    assert [one.job_id for one in store.external_jobs.surplus()] == [job.job_id]
    store.external_jobs.cancelling([job.job_id])
    assert store.external_jobs.surplus() == []
    end = JobEnd(kind=EndKind.CANCELLED, message="It was cancelled.")
    store.external_jobs.polled("hpc", {job.job_id: status(store, job, JobPhase.ENDED, end=end)})
    found = store.external_jobs.get(job.job_id)
    assert found.end is not None
    assert found.end.kind == EndKind.COMPLETED, "we cancelled it, and no user"


def test_a_job_that_waits_for_its_first_start_is_not_cancelled(store: Any, submit: Any) -> None:
    _, job = begun(store, submit)
    store.external_jobs.polled("hpc", {job.job_id: status(store, job, JobPhase.WAITING, nodes=(), started_at=None)})
    assert store.external_jobs.surplus() == []


def test_the_job_of_an_attempt_that_has_ended_is_cancelled_although_a_node_does_not_answer(
    store: Any, submit: Any, clock: Any
) -> None:
    ticket, job = granted(store, submit)
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.take_up(ticket.attempt_id, watch)
    clock.advance(60)
    assert store.external_jobs.surplus() == []
    store.attempts.end(ticket.attempt_id, watch, state="errored")
    assert store.attempts.get(ticket.attempt_id).allocation_state == "expired"
    assert store.external_jobs.surplus() == [], "it may end by itself"
    clock.advance(external_jobs.ENDS_WITHIN.total_seconds() + 1)
    assert [one.job_id for one in store.external_jobs.surplus()] == [job.job_id]


def test_polls_are_one_at_a_time_and_grow_apart(store: Any, submit: Any, clock: Any) -> None:
    for number in range(3):
        begun(store, submit, str(number))
    pauses = []
    for _ in range(7):
        assert store.external_jobs.take_poll("hpc")
        assert not store.external_jobs.take_poll("hpc")
        store.external_jobs.polled("hpc", {})
        waited = 0
        while not store.external_jobs._is_due("hpc"):
            clock.advance(1)
            waited += 1
        pauses.append(waited)
    assert pauses[0] <= 8
    assert pauses == sorted(pauses)
    assert pauses[-1] == external_jobs.POLL_MOST_S
    assert store.external_jobs.take_poll("hpc")
    clock.advance(external_jobs.POLL_LEASE_S + 1)
    assert store.external_jobs.take_poll("hpc"), "the process that polled has died"


def test_too_many_requests_double_the_pause_up_to_five_minutes(store: Any, submit: Any, clock: Any) -> None:
    begun(store, submit), begun(store, submit, "8")
    pauses = []
    for _ in range(8):
        assert store.external_jobs.take_poll("hpc")
        store.external_jobs.polled("hpc", None, is_limited=True)
        began = store.db.now()
        while not store.external_jobs._is_due("hpc"):
            clock.advance(1)
        pauses.append((store.db.now() - began) // timedelta(seconds=1))
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]
    store.external_jobs.take_poll("hpc")
    store.external_jobs.polled("hpc", {})
    clock.advance(external_jobs.POLL_MOST_S)
    assert store.external_jobs.take_poll("hpc"), "an answer ends it"
