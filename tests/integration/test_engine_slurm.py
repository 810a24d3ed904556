"""The engine on a real Slurm cluster, with a real store, supervisors and ranks."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.external_jobs import EndKind
from airflow_provider_dtrain.hosts.slurm.scheduler import _SCHEDULERS
from testbed.slurm.cluster import SlurmCluster
from tests.support.counting import a_minute_passes, dead_follower, numbers, running, until
from tests.support.engines import Engine, config, held
from tests.support.slurm_pools import count_up, ended_jobs, in_pool, jobs_of, kill_running, queued, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks")]
PARTITIONS = {
    "main": {"Default": "YES", "MaxTime": "1-00:00:00", "PriorityTier": 1, "PreemptMode": "CANCEL", "GraceTime": 20},
    "short": {"MaxTime": 1, "PriorityTier": 1, "PreemptMode": "CANCEL"},
    "urgent": {"MaxTime": 60, "PriorityTier": 9, "PreemptMode": "OFF"},
}
CONF = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "CANCEL",
    "KillWait": 5,
    "SchedulerParameters": "bf_interval=1,sched_interval=2",
}


@pytest.fixture(scope="session", params=["own", pytest.param("later", marks=pytest.mark.nightly)])
def slurm(request: pytest.FixtureRequest, slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Four nodes with partitions of a minute, and one whose jobs preempt others, in each version of Slurm."""
    root = request.getfixturevalue("later_slurm") if request.param == "later" else None
    return slurm_clusters(root=root, partitions=PARTITIONS, conf=CONF)


@pytest.fixture
def pool(engine: Engine, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine with a pool whose slots are CPUs of a Slurm cluster."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    # Schedulers keep the cluster of the test before. A login shell sets PATH anew.
    _SCHEDULERS._forget()
    (Path.home() / ".bash_profile").write_text(f"PATH={slurm.folder}/bin:$PATH\n")
    engine.hook.settings = dataclasses.replace(engine.hook.settings, orphan_timeout_s=15.0)
    set_pool(engine)
    yield engine
    subprocess.run(["scancel", "-u", "root"], timeout=20)


@pytest.mark.each_change("own-4")
@pytest.mark.parametrize("slots", [2, 4, 8])
async def test_a_gang_is_one_job(pool: Engine, slots: int) -> None:
    ticket = pool.submit(in_pool(config("facts", slots=slots)))
    outcome = await pool.carry(ticket, most_s=90)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert outcome.result is not None
    assert sum(len(host["ranks"]) for host in outcome.result["hosts"]) == slots
    assert held(pool) == []
    (job,) = await ended_jobs(pool, ticket)
    assert job.end is not None
    assert job.end.kind == EndKind.COMPLETED
    assert pool.hook.store.hosts.list("hpc") == [], "the nodes of an ended job are no hosts"


async def test_a_training_longer_than_the_limit_runs_through_several_jobs(
    pool: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    set_pool(pool, partition="short")
    ticket = pool.submit(count_up("library", 1000, pause_s=0.1))
    outcome = await pool.carry(ticket, most_s=300)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    trial = pool.hook.store.trials.get(ticket.trial_id)
    assert trial.restarts == 0
    stopped, started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert len(started) >= 2
    assert started == [0, *stopped], "each job begins where the last one stopped"
    assert numbers(caplog, "done at") == [1000]
    await ended_jobs(pool, ticket)


async def test_scancel_by_a_user_kills_the_trial(pool: Engine) -> None:
    ticket = pool.submit(count_up("library", 10_000))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    await running(pool, ticket, carrying)
    (job,) = jobs_of(pool, ticket)
    subprocess.run(["scancel", str(job.number)], check=True, timeout=20)
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "killed", outcome
    assert outcome.failure is not None
    assert "cancelled" in outcome.failure.message
    assert held(pool) == []


@pytest.mark.each_change
async def test_a_kill_of_the_trial_ends_its_job(pool: Engine) -> None:
    await kill_running(pool)


async def test_a_preempted_job_resumes_in_another_one(pool: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticket = pool.submit(count_up("library", 300))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    await running(pool, ticket, carrying)
    urgent = ["sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 8"]
    subprocess.run(urgent, check=True, timeout=20)
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert pool.hook.store.trials.get(ticket.trial_id).restarts == 0
    stopped, started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started == [0, *stopped]
    assert len(started) == 2
    await ended_jobs(pool, ticket)


async def test_a_failed_node_is_left_out(pool: Engine, slurm: SlurmCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticket = pool.submit(count_up("library", 200))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    await running(pool, ticket, carrying)
    (job,) = jobs_of(pool, ticket)
    node = job.nodes[0]
    slurm.crash_node(node)
    slurm.update_node(node, "DOWN")
    try:
        outcome = await carrying
        assert outcome is not None
        assert outcome.state == "completed", outcome
        assert all(node not in one.nodes for one in jobs_of(pool, ticket)[1:])
        assert pool.hook.store.trials.get(ticket.trial_id).restarts == 0
    finally:
        slurm.start_node(node)
        slurm.update_node(node, "RESUME")
    await ended_jobs(pool, ticket)


async def test_ranks_go_on_while_the_controller_is_away(pool: Engine, slurm: SlurmCluster) -> None:
    ticket = pool.submit(count_up("library", 150))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    await running(pool, ticket, carrying)
    slurm.stop_controller()
    try:
        outcome = await carrying
    finally:
        slurm.start_controller()
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert pool.hook.store.trials.get(ticket.trial_id).attempts == 1
    await ended_jobs(pool, ticket)


@pytest.mark.each_change
async def test_a_refused_job_fails_the_trial_with_the_words_of_slurm(pool: Engine) -> None:
    set_pool(pool, partition="nowhere")
    outcome = await pool.carry(pool.submit(count_up("library")))
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert "no partition 'nowhere'" in outcome.failure.message
    set_pool(pool, account="unknown", partition="main")
    large = await pool.carry(pool.submit(in_pool(config("facts", slots=64))))
    assert large is not None
    assert large.failure is not None
    assert large.failure.error == "UnplaceableError"
    assert queued() == []


@pytest.mark.each_change
async def test_a_trial_that_cannot_use_its_nodes_leaves_no_job(pool: Engine) -> None:
    set_pool(pool, slots="gpu")
    outcome = await pool.carry(pool.submit(count_up("library")))
    assert outcome is not None
    assert outcome.failure is not None
    assert "NVML shows 0 GPUs" in outcome.failure.message
    for _ in range(100):
        if queued() == []:
            break
        await asyncio.sleep(0.1)
    assert queued() == [], "no process of recovery runs here"


@pytest.mark.each_change
async def test_setup_lines_that_fail_are_shown(pool: Engine) -> None:
    set_pool(pool, setup="export ONE=1\necho no such module >&2\nfalse\n")
    outcome = await pool.carry(pool.submit(count_up("library")))
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert "no such module" in outcome.failure.message
    assert "Line 3 of the setup lines failed" in outcome.failure.message


async def test_a_failing_rank_restarts_in_the_same_job(pool: Engine) -> None:
    ticket = pool.submit(count_up("fails_once", 20, max_restarts=1))
    outcome = await pool.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    first, second = pool.hook.store.attempts.of_trial(ticket.trial_id)
    assert first.allocation_id == second.allocation_id
    (job,) = {job.job_id: job for job in jobs_of(pool, ticket)}.values()
    assert job.name.endswith(".1")
    await ended_jobs(pool, ticket)


async def test_another_process_takes_a_running_job_over(pool: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticket, _ = await dead_follower(pool, count_up("library", 100))
    pool.hook.links.close_all()
    a_minute_passes(pool)
    outcome = await pool.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert pool.hook.store.trials.get(ticket.trial_id).attempts == 1
    assert len(jobs_of(pool, ticket)) == 1
    await ended_jobs(pool, ticket)


async def test_a_paused_trial_gives_its_job_back(pool: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticket = pool.submit(count_up("library", 100))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    await running(pool, ticket, carrying)
    pool.hook.store.control.pause(ticket.trial_id, "ann")
    await until(lambda: pool.hook.store.trials.get(ticket.trial_id).state == "paused", carrying)
    for _ in range(100):
        if queued() == []:
            break
        await asyncio.sleep(0.2)
    assert queued() == []
    pool.hook.store.control.activate(ticket.trial_id, "ann")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed"
    assert numbers(caplog, "from") == [0, *numbers(caplog, "stopped at")]
    await ended_jobs(pool, ticket)
