"""Jobs of an external scheduler in the store: what pages and commands show of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dtrain.api.prepared import as_json, compact
from airflow_provider_dtrain.client.decoder import record
from airflow_provider_dtrain.core.external_jobs import EndKind, ExternalJob, JobEnd, JobPhase, JobStatus, scheduler_name
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.core.scheduler_facts import NodeSize, PartitionFacts, SchedulerFacts, to_document
from airflow_provider_dtrain.engine.operations.host_checks import job_states
from airflow_provider_dtrain.engine.operations.rank_log import check_reach
from airflow_provider_dtrain.engine.submission.explanation import explain_trial
from airflow_provider_dtrain.engine.upkeep.host_actions import refuse_node
from airflow_provider_dtrain.errors import ConflictError, HostLostError
from airflow_provider_dtrain.resources.hosts import Cluster
from airflow_provider_dtrain.store.queries.gangs import gang_page
from airflow_provider_dtrain.store.queries.hosts import cluster_details
from airflow_provider_dtrain.store.queries.jobs import use_of
from airflow_provider_dtrain.store.queries.rights import AllRights
from airflow_provider_dtrain.store.records.pages import QueueQuery
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord, Ticket
from airflow_provider_dtrain.store.store import Store
from tests.support.store_world import Clock


@pytest.fixture
def pool(store: Store) -> str:
    store.pools.set_scheduler("hpc", backend="slurm", slot_type="cpu", scheduler={"slots": "cpu"})
    return "hpc"


@pytest.fixture
def ticket(pool: str, submit: Callable[..., Ticket]) -> Ticket:
    return submit(slots=2, pool=pool)


@pytest.fixture
def job(store: Store, ticket: Ticket) -> ExternalJob:
    """A job that its scheduler has as number 4711."""
    begun = store.external_jobs.begin(allocation(store, ticket), b"sealed", most=None)
    assert isinstance(begun, ExternalJob)
    store.external_jobs.submitting(begun.job_id)
    store.external_jobs.submitted(begun.job_id, "4711")
    return store.external_jobs.get(begun.job_id)


def allocation(store: Store, ticket: Ticket) -> int:
    return store.attempts.get(ticket.attempt_id).allocation_id


def report(store: Store, job: ExternalJob, phase: JobPhase, **more: Any) -> None:
    status = JobStatus(number="4711", name=job.name, phase=phase, **more)
    store.external_jobs.polled(job.pool, {job.job_id: status})


def run(store: Store, ticket: Ticket, job: ExternalJob, clock: Clock) -> None:
    """Start the job, and grant its slots."""
    report(store, job, JobPhase.RUNNING, nodes=("n1",), started_at=clock.now, ends_at=clock.now + timedelta(hours=1))
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    slots = tuple(SlotRecord(index=index) for index in range(2))
    node = HostRecord(name="n1.1", pool="hpc", slot_type="cpu", slots=slots, external_job_id=job.job_id, node=0)
    store.external_jobs.grant(ticket.attempt_id, watch, job.job_id, [node])


def test_the_queue_shows_number_reason_and_expected_start_of_a_waiting_job(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    at = clock.now + timedelta(minutes=10)
    report(store, job, JobPhase.WAITING, reason="The nodes are in use.", expected_at=at)
    store.external_jobs.note_reason(job.allocation_id, "The nodes are in use.")
    (row,) = gang_page(store, AllRights(), QueueQuery(pool="hpc", limit=None)).rows
    assert row.job is not None
    assert (row.job.number, row.job.scheduler, row.job.expected_at) == ("4711", "slurm", at)
    assert (row.position, row.queue_class, row.state_text) == (None, None, "waiting")
    assert row.expected_at == at
    found = explain_trial(store, AllRights(), ticket.trial_id)
    assert (found.outlook, found.job, found.reason) == ("later", "4711", "The nodes are in use.")
    assert (found.position, found.queue_class) == (None, None)
    assert found.expected == f"about {at:%Y-%m-%d %H:%MZ}, as its scheduler estimates"


def test_an_estimate_that_moves_little_is_not_written(store: Store, ticket: Ticket, job: ExternalJob) -> None:
    at = datetime(2026, 2, 1, 12, tzinfo=UTC)
    report(store, job, JobPhase.WAITING, expected_at=at)
    version = store.cluster_page.version()
    report(store, job, JobPhase.WAITING, expected_at=at + timedelta(seconds=59))
    assert store.external_jobs.get(job.job_id).expected_at == at
    assert store.cluster_page.version() == version, "pages are not rendered again"
    report(store, job, JobPhase.WAITING, expected_at=at + timedelta(seconds=60))
    assert store.external_jobs.get(job.job_id).expected_at == at + timedelta(seconds=60)
    assert store.cluster_page.version() != version
    report(store, job, JobPhase.WAITING)
    assert store.external_jobs.get(job.job_id).expected_at is None
    assert explain_trial(store, AllRights(), ticket.trial_id).expected is None


def test_the_cluster_shows_jobs_nodes_and_partitions(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    used = PartitionFacts(
        name="main", is_used=True, state="UP", nodes=2, usable_nodes=1, sizes=[NodeSize(slots=2, nodes=2)],
        usable_sizes=[NodeSize(slots=2, nodes=1)], default_time_s=None, max_time_s=3600,
    )  # fmt: skip
    facts = SchedulerFacts(
        at=clock.now, program="Slurm", cluster="c", partitions=[used], time_limit_s=60, max_jobs=None,
        excluding=["--constraint=a100"], problem="",
    )  # fmt: skip
    before = store.cluster_page.version()
    store.pools.note_facts("hpc", to_document(facts))
    assert store.cluster_page.version() != before
    run(store, ticket, job, clock)
    found = cluster_details(store, AllRights())
    assert record(Cluster, json.loads(as_json(compact(found)))) == found, "the client reads what the API sends"
    assert found.schedulers == {"hpc": facts}
    assert [(one.number, one.phase, one.nodes) for one in found.jobs] == [("4711", "running", ["n1"])]
    assert [(one.name, one.job) for one in found.hosts] == [("n1.1", "4711")]
    assert [(one.backend, one.held, one.hosts) for one in found.pools] == [("slurm", 2, 1)]
    assert store.hosts.registered() == []
    assert store.hosts.exist(), "a node is a host"
    assert store.hosts.pools_with_hosts() == set()
    assert cluster_details(store, AllRights(), "other").jobs == []
    store.pools.set_scheduler("hpc", backend="slurm", slot_type="cpu", scheduler={"slots": "cpu", "partition": "x"})
    assert store.pools.get("hpc").facts is None, "facts of other options mislead"


def test_a_pool_with_a_live_job_stays_and_its_nodes_refuse_commands_of_hosts(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    run(store, ticket, job, clock)
    kill = rf"job 4711, 1 request.* trial {ticket.trial_id}\. .*trials kill {ticket.trial_id}, or cancel the jobs"
    with pytest.raises(ConflictError, match=kill):
        store.pools.remove("hpc")
    with pytest.raises(ConflictError, match=kill):
        store.pools.set_scheduler("hpc", backend="slurm", slot_type="cuda", scheduler={})
    with pytest.raises(ConflictError, match=rf"node of job 4711 .* trials kill {ticket.trial_id}"):
        refuse_node(store, store.hosts.get("n1.1"), "be drained")


def test_the_timeline_has_submission_start_and_end_of_a_job(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    submitted_at = clock.now
    clock.advance(30)
    started_at = clock.now
    run(store, ticket, job, clock)
    clock.advance(3600)
    end = JobEnd(kind=EndKind.TIMEOUT, message="Slurm job 4711 reached its time limit.", cpu_share=0.5)
    report(store, job, JobPhase.ENDED, ends_at=started_at + timedelta(minutes=30), end=end)
    found = {one.kind: one for one in store.timeline.of_trial(ticket.trial_id)}
    assert found["job_submitted"].at == submitted_at
    assert found["job_started"].text == "Job 4711 of slurm started on n1, 30 s after its submission."
    assert found["job_started"].until == started_at + timedelta(minutes=30)
    assert found["job_ended"].text == "Slurm job 4711 reached its time limit."
    assert found["job_ended"].detail["node_hours"] == 0.5
    assert found["job_ended"].detail["end"] == "timeout"
    use = use_of(store.external_jobs.of_trial(ticket.trial_id), clock.now)
    assert use is not None
    assert (use.jobs, use.node_hours, use.waited_s, use.cpu_share) == (1, 0.5, 30.0, 0.5)


def test_the_waits_of_a_trial_follow_each_other_and_short_ones_belong_to_the_next(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    begun = clock.now
    for reason, seconds in (
        ("Priority.", 20.0),
        ("It is asked.", 0.5),
        ("The nodes are in use.", 30.0),
        ("Boots.", 4.0),
    ):
        store.external_jobs.note_reason(job.allocation_id, reason)
        clock.advance(seconds)
    run(store, ticket, job, clock)
    waits = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind == "waited"]
    assert [one.detail["reason"] for one in waits] == ["Priority.", "The nodes are in use.", "Boots."]
    assert [((one.at - begun).total_seconds(), one.until and (one.until - begun).total_seconds()) for one in waits] == [
        (0.0, 20.0), (20.0, 50.5), (50.5, 54.5),
    ]  # fmt: skip


def test_a_wait_of_a_week_has_few_entries(store: Store, ticket: Ticket, job: ExternalJob, clock: Clock) -> None:
    for number in range(600):
        store.external_jobs.note_reason(job.allocation_id, f"The job is number {number} in its queue.")
        clock.advance(7 * 86400.0 / 600)
    waits = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind == "waited"]
    assert 50 < len(waits) < 160


@pytest.mark.parametrize(
    ("kind", "reason", "entry", "text"),
    [
        (EndKind.TIMEOUT, "Slurm warns.", "released", "Slurm job 4711 ended."),
        (EndKind.PREEMPTED, "Slurm warns.", "preempted", "Slurm job 4711 ended."),
        (EndKind.CANCELLED, "Slurm warns.", "released", "Slurm job 4711 ended."),
        (EndKind.COMPLETED, "paused by ann", "released", "paused by ann"),
    ],
)
def test_entries_name_why_an_attempt_lost_its_job_and_belong_to_it(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock, kind: EndKind, reason: str, entry: str, text: str
) -> None:
    run(store, ticket, job, clock)
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.take_up(ticket.attempt_id, watch)
    store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"n1.1": {"ranks": []}}})
    store.attempts.set_running(ticket.attempt_id, watch)
    clock.advance(60)
    store.attempts.set_stopping(ticket.attempt_id, watch, reason)
    store.queue.release(ticket.attempt_id, watch, ["n1.1"], proof="clear")
    store.attempts.yield_gang(ticket.attempt_id, watch, reason=reason, paused=False)
    clock.advance(5)
    report(store, job, JobPhase.ENDED, end=JobEnd(kind=kind, message="Slurm job 4711 ended."))
    entries = {one.kind: one for one in store.timeline.of_trial(ticket.trial_id)}
    assert {"released", "preempted"} & set(entries) == {entry}
    assert entries[TimelineKind(entry)].text == f"Released its slots: {text}"
    of_job = [one for one in entries.values() if one.kind.startswith("job_")]
    assert [(one.kind, one.attempt) for one in of_job] == [("job_submitted", 1), ("job_started", 1), ("job_ended", 1)]


def test_a_kill_by_the_end_of_a_job_has_no_user(store: Store, ticket: Ticket) -> None:
    store.control.kill(ticket.trial_id, scheduler_name("hpc", "Slurm job 4711 was cancelled."))
    (entry,) = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind == "kill_requested"]
    assert entry.text == (
        "The trial is killed, because its job was ended. Request of the scheduler of pool 'hpc': "
        "Slurm job 4711 was cancelled."
    )
    store.control.kill(ticket.trial_id, "ann")
    (entry,) = [one for one in store.timeline.of_trial(ticket.trial_id) if one.kind == "kill_requested"]
    assert entry.text == "User ann requested that the trial is killed."


def test_the_key_of_a_job_does_not_outlive_it(store: Store, ticket: Ticket, job: ExternalJob) -> None:
    assert store.external_jobs.get(job.job_id).access == b"sealed"
    report(store, job, JobPhase.ENDED, end=JobEnd(kind=EndKind.COMPLETED, message="It ended."))
    assert store.external_jobs.get(job.job_id).access == b""


def test_a_request_has_one_live_job_and_the_next_one_has_another_name(
    store: Store, ticket: Ticket, job: ExternalJob
) -> None:
    again = store.external_jobs.begin(job.allocation_id, b"other", most=None)
    assert isinstance(again, ExternalJob)
    assert (again.job_id, again.name, again.access) == (job.job_id, job.name, b"sealed")
    report(store, job, JobPhase.ENDED, end=JobEnd(kind=EndKind.LOST, message="It is not known."))
    after = store.external_jobs.begin(job.allocation_id, b"other", most=None)
    assert isinstance(after, ExternalJob)
    assert after.name != job.name
    assert after.phase == JobPhase.SUBMITTING


def test_limits_are_kept_before_a_job_is_submitted(
    store: Store, submit: Callable[..., Ticket], job: ExternalJob
) -> None:
    waiting = submit(slots=2, pool="hpc", max_slots=3)
    reason = store.external_jobs.begin(allocation(store, waiting), b"", most=1)
    assert isinstance(reason, str)
    assert "--max-jobs is 1" in reason
    # The first trial of the experiment has set no cap, and its job has two slots.
    experiment = store.attempts.get(waiting.attempt_id).experiment_id
    store.control.set("experiment", experiment, by="ann", max_slots=3)
    reason = store.external_jobs.begin(allocation(store, waiting), b"", most=None)
    assert isinstance(reason, str)
    assert "max_slots is 3" in reason
    store.control.set("experiment", experiment, by="ann", max_slots=4)
    assert isinstance(store.external_jobs.begin(allocation(store, waiting), b"", most=2), ExternalJob)


def test_a_job_that_we_have_cancelled_was_not_ended_by_a_user(store: Store, job: ExternalJob) -> None:
    end = JobEnd(kind=EndKind.CANCELLED, message="It was cancelled.")
    store.external_jobs.cancelling([job.job_id])
    report(store, job, JobPhase.ENDED, end=end)
    found = store.external_jobs.get(job.job_id).end
    assert found is not None
    assert found.kind == EndKind.COMPLETED


def test_one_process_polls_a_pool_and_another_one_only_after_its_lease(
    store: Store, job: ExternalJob, clock: Clock
) -> None:
    assert store.external_jobs.take_poll("hpc")
    assert not store.external_jobs.take_poll("hpc")
    clock.advance(61)
    assert store.external_jobs.take_poll("hpc"), "the first one died"
    store.external_jobs.polled("hpc", {})
    assert not store.external_jobs.take_poll("hpc")
    clock.advance(31)
    assert store.external_jobs.take_poll("hpc")


def test_a_job_whose_gang_has_ended_is_cancelled_unless_it_ends_by_itself(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    assert store.external_jobs.surplus() == []
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.attempts.end(ticket.attempt_id, watch, state="killed", failure=None)
    clock.advance(31)
    assert [one.job_id for one in store.external_jobs.surplus()] == [job.job_id]
    store.external_jobs.cancelling([job.job_id])
    assert store.external_jobs.surplus() == []
    clock.advance(61)
    assert [one.job_id for one in store.external_jobs.surplus()] == [job.job_id], "again, because it has not ended"


def test_doctor_names_states_of_jobs_that_no_process_has_polled_for_long(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    def found() -> tuple[bool, str]:
        row = job_states(store, store.pools.get("hpc"))
        return row["ok"], row["message"].partition(".")[0]

    assert found() == (False, "1 job, and no process has asked their scheduler yet")
    store.external_jobs.polled("hpc", {})
    clock.advance(300)
    assert found() == (True, "1 job, as of 5 min ago")
    clock.advance(400)
    assert found() == (False, "1 job, as of 12 min ago")
    report(store, job, JobPhase.ENDED, end=JobEnd(kind=EndKind.COMPLETED, message="It ended."))
    assert found() == (True, "no job")


def test_the_nodes_of_a_job_that_was_given_back_are_not_asked(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock
) -> None:
    run(store, ticket, job, clock)
    check_reach(store, store.attempts.get(ticket.attempt_id), 0)
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.take_up(ticket.attempt_id, watch)
    store.queue.release(ticket.attempt_id, watch, ["n1.1"], proof="clear")
    with pytest.raises(HostLostError, match="^Job 4711 was given back"):
        check_reach(store, store.attempts.get(ticket.attempt_id), 0)


def test_a_pass_of_the_queue_grants_no_node_of_a_job(
    store: Store, ticket: Ticket, job: ExternalJob, submit: Callable[..., Ticket], clock: Clock
) -> None:
    run(store, ticket, job, clock)
    other = submit(slots=1, pool="hpc")
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.take_up(ticket.attempt_id, watch)
    store.queue.release(ticket.attempt_id, watch, ["n1.1"], proof="clear")
    assert store.queue.schedule("hpc").granted == ()
    assert store.attempts.get(other.attempt_id).allocation_state == "waiting"
