"""Slurm pools under bad input: full homes, drained partitions, loud setup lines, old interpreters, changes by hand."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.hosts.slurm.scheduler import _SCHEDULERS
from testbed.slurm.cluster import SlurmCluster
from tests.support.counting import numbers, running, until
from tests.support.engines import Engine, held
from tests.support.slurm_pools import count_up, ended_jobs, jobs_of, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [pytest.mark.usefixtures("quick_looks"), pytest.mark.nightly]


@pytest.fixture(scope="module", params=["own", "later"])
def slurm(request: pytest.FixtureRequest, slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Clusters of the machine's own version of Slurm, and of a later one."""
    root = request.getfixturevalue("later_slurm") if request.param == "later" else None
    return slurm_clusters(root=root, nodes=2, conf={"KillWait": 2})


@pytest.fixture
def pool(engine: Engine, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    # Schedulers keep the cluster of the test before. A login shell sets PATH anew.
    _SCHEDULERS._forget()
    (Path.home() / ".bash_profile").write_text(f"PATH={slurm.folder}/bin:$PATH\n")
    set_pool(engine)
    yield engine
    slurm.run("scancel", "--user=root")


async def reason_of(pool: Engine, attempt_id: int, word: str, carrying: asyncio.Future[object]) -> None:
    await until(lambda: word in pool.hook.store.attempts.get(attempt_id).reason, carrying)


async def test_setup_lines_that_print_megabytes_start_the_gang(pool: Engine) -> None:
    set_pool(pool, setup="head -c 40000000 /dev/urandom | base64\nhead -c 20000000 /dev/zero >&2\n")
    ticket = pool.submit(count_up("library", 3))
    outcome = await pool.carry(ticket, most_s=90)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    await ended_jobs(pool, ticket)


async def test_an_interpreter_that_is_too_old_is_named(pool: Engine, tmp_path: Path) -> None:
    old = tmp_path / "python3.6"
    old.write_text("#!/bin/sh\necho 'dtrain: Python 3.9 or newer is needed, not 3.6.8' >&2\nexit 1\n")
    old.chmod(0o755)
    set_pool(pool, python=str(old))
    outcome = await pool.carry(pool.submit(count_up("library")), most_s=90)
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert "Python 3.9 or newer is needed, not 3.6.8" in outcome.failure.message


async def test_a_full_home_on_the_nodes_is_named(pool: Engine, slurm: SlurmCluster) -> None:
    home = str(Path.home())
    for node in slurm.nodes.values():
        subprocess.run(node.enter(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", home]), check=True, timeout=20)
        # The profile takes the only page.
        fill = f"echo 'PATH={slurm.folder}/bin:$PATH' >{home}/.bash_profile"
        subprocess.run(node.enter(["sh", "-c", fill]), timeout=20, check=True)
    try:
        outcome = await pool.carry(pool.submit(count_up("library")), most_s=90)
    finally:
        for node in slurm.nodes.values():
            subprocess.run(node.enter(["umount", "-l", home]), check=True, timeout=20)
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert "No space left" in outcome.failure.message


async def test_a_trial_waits_while_its_partition_takes_no_jobs(pool: Engine, slurm: SlurmCluster) -> None:
    ticket = pool.submit(count_up("library", 3))
    slurm.run("scontrol", "update", "PartitionName=main", "State=DRAIN")
    carrying = asyncio.ensure_future(pool.carry(ticket, most_s=120))
    try:
        attempt_id = pool.hook.store.trials.get(ticket.trial_id).attempt_id
        await reason_of(pool, attempt_id, "partition", carrying)
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert len(await ended_jobs(pool, ticket)) == 1


async def test_a_job_that_is_put_back_into_the_queue_is_replaced(
    pool: Engine, slurm: SlurmCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = pool.submit(count_up("library", 100))
    carrying = asyncio.ensure_future(pool.carry(ticket, most_s=170))
    await running(pool, ticket, carrying)
    (job,) = jobs_of(pool, ticket)
    slurm.run("scontrol", "update", f"JobId={job.number}", "Requeue=1")
    slurm.run("scontrol", "requeue", str(job.number))
    await until(lambda: len(jobs_of(pool, ticket)) > 1, carrying)
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert pool.hook.store.trials.get(ticket.trial_id).restarts == 0
    assert numbers(caplog, "done at") == [100]
    await ended_jobs(pool, ticket)
    assert held(pool) == []


async def test_a_held_job_waits_with_the_command_that_releases_it(pool: Engine, slurm: SlurmCluster) -> None:
    set_pool(pool, sbatch_options=["--begin=now+1hour"])
    ticket = pool.submit(count_up("library", 3))
    carrying = asyncio.ensure_future(pool.carry(ticket, most_s=120))
    attempt_id = pool.hook.store.trials.get(ticket.trial_id).attempt_id
    await reason_of(pool, attempt_id, "BeginTime", carrying)
    (job,) = jobs_of(pool, ticket)
    slurm.run("scontrol", "hold", str(job.number))
    await reason_of(pool, attempt_id, "scontrol release", carrying)
    slurm.run("scontrol", "release", str(job.number))
    slurm.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome
    await ended_jobs(pool, ticket)


async def test_a_job_whose_time_is_shortened_by_hand_resumes_in_another_one(
    pool: Engine, slurm: SlurmCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = pool.submit(count_up("library", 150))
    carrying = asyncio.ensure_future(pool.carry(ticket, most_s=170))
    await running(pool, ticket, carrying)
    (job,) = jobs_of(pool, ticket)
    slurm.run("scontrol", "update", f"JobId={job.number}", "EndTime=now+1")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert len(jobs_of(pool, ticket)) == 2 or numbers(caplog, "from") == [0]
    assert numbers(caplog, "done at") == [150]
    assert pool.hook.store.trials.get(ticket.trial_id).restarts == 0
    await recover(pool.hook)
    await ended_jobs(pool, ticket)
