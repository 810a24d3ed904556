"""A gang that several tasks use in turn, as one job of a real Slurm cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.submission.submit import render, revive, submit
from airflow_provider_dtrain.engine.upkeep.held_gangs import GangWaiter, HeldGang, as_xcom, ask_for_gang, end_held_gang
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.errors import GangEndedError
from airflow_provider_dtrain.store import external_jobs
from airflow_provider_dtrain.store.records.gangs import GangSubmission, GangView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from testbed.slurm.cluster import SlurmCluster
from tests.support.engines import CODE, Engine, config, held
from tests.support.slurm_pools import queued, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks")]
LOG = TaskLog(logging.getLogger("gang"), 10**6)


@pytest.fixture
def pool(engine: Engine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    set_pool(engine)
    yield engine
    slurm_cluster.run("scancel", "--user=root")


async def hold(engine: Engine) -> GangView:
    key = TrialKey(dag_id="dag", run_id="run", task_id="gang")
    asked = ask_for_gang(engine.hook, GangSubmission(key=key, pool="hpc", slots=4))
    view = await asyncio.wait_for(GangWaiter(engine.hook, asked.allocation_id, LOG, watcher="test").run(), 60)
    assert view is not None
    return view


def on_gang(engine: Engine, gang: GangView, task: str) -> Ticket:
    key = TrialKey(dag_id="dag", run_id="run", task_id=task)
    stored = render(engine.hook, config("facts", slots=4), None, CODE, pool=gang.pool)
    ticket = submit(engine.hook, stored, key=key, folder=CODE, gang=HeldGang.parse(as_xcom(gang)))
    revive(engine.hook.store, ticket)
    return ticket


async def test_the_tasks_of_a_held_gang_use_one_job_which_ends_with_the_gang(
    pool: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = await hold(pool)
    assert len(gang.placement) == 2
    (line,) = queued()
    for task in ("first", "second"):
        outcome = await pool.carry(on_gang(pool, gang, task))
        assert outcome is not None
        assert outcome.state == "completed", outcome
        assert queued() == [line], "the same job"
    left = await end_held_gang(pool.hook, gang.allocation_id, "released", LOG, watcher="test")
    assert left.state == "released"
    monkeypatch.setattr(external_jobs, "ENDS_WITHIN", external_jobs.ENDS_WITHIN * 0)
    for _ in range(60):
        await recover(pool.hook)
        if queued() == []:
            break
        await asyncio.sleep(0.5)
    assert queued() == []
    assert held(pool) == []


async def test_a_held_gang_whose_job_a_user_cancels_ends_for_its_tasks(
    pool: Engine, slurm_cluster: SlurmCluster
) -> None:
    gang = await hold(pool)
    slurm_cluster.run("scancel", queued()[0].split()[0])
    job = pool.hook.store.external_jobs.of_allocation(gang.allocation_id)
    for _ in range(60):
        await recover(pool.hook)
        assert job is not None
        if (job := pool.hook.store.external_jobs.get(job.job_id)).is_over:
            break
        await asyncio.sleep(0.5)
    outcome = await pool.carry(on_gang(pool, gang, "late"))
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.error == GangEndedError.__name__
    assert "was cancelled" in outcome.failure.message
