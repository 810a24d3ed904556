"""Pools of a cluster that is not the one of the login node: two real clusters that share one slurmdbd."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.external_jobs import EndKind
from airflow_provider_dtrain.hosts.slurm import scheduler
from airflow_provider_dtrain.hosts.slurm.scheduler import _SCHEDULERS
from testbed.slurm.cluster import SlurmCluster
from testbed.standalone import wait_until
from tests.support.engines import Engine, config, held
from tests.support.slurm_pools import ended_jobs, in_pool, jobs_of, kill_running, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.usefixtures("quick_looks")]


@pytest.fixture(scope="module")
def clusters(slurm_clusters: Callable[..., SlurmCluster], slurm_accounting: Path) -> tuple[SlurmCluster, SlurmCluster]:
    """The cluster of the login node, and one behind it."""
    login = slurm_clusters(nodes=1, gpus_per_node=0, conf={"ClusterName": "alpha"}, accounting=str(slurm_accounting))
    conf = {"ClusterName": "beta", **login.shared()}
    other = slurm_clusters(nodes=2, node_prefix="m", gpus_per_node=0, conf=conf)
    wait_until(lambda: is_registered(login), timeout_s=60, what="beta in the accounting", poll_s=0.5)
    return login, other


def is_registered(login: SlurmCluster) -> bool:
    listed = login.run("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster,controlhost", check=False).stdout
    return "beta|127.0.0.1" in listed


@pytest.fixture
def pool(
    engine: Engine, clusters: tuple[SlurmCluster, SlurmCluster], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """The engine with a pool of the cluster behind the login node."""
    for name, value in clusters[0].environment.items():
        monkeypatch.setenv(name, value)
    _SCHEDULERS._forget()
    (Path.home() / ".bash_profile").write_text(f"PATH={clusters[0].folder}/bin:$PATH\n")
    engine.hook.settings = dataclasses.replace(engine.hook.settings, orphan_timeout_s=15.0)
    set_pool(engine, clusters="beta")
    yield engine
    subprocess.run(["scancel", "-M", "beta", "-u", "root"], timeout=20)


async def test_a_gang_runs_on_the_cluster_that_the_pool_names(pool: Engine) -> None:
    ticket = pool.submit(in_pool(config("facts", slots=4)))
    outcome = await pool.carry(ticket, most_s=90)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    (job,) = await ended_jobs(pool, ticket)
    assert job.nodes == ("m1", "m2")
    assert job.end is not None
    assert job.end.kind == EndKind.COMPLETED
    assert held(pool) == []


async def test_a_kill_ends_the_job_there(pool: Engine) -> None:
    await kill_running(pool)


async def test_the_channel_through_a_step_of_the_job_names_the_cluster(
    pool: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "tcp_routes", lambda *_: [])
    ticket = pool.submit(in_pool(config("facts", slots=2)))
    outcome = await pool.carry(ticket, most_s=90)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert [job.nodes for job in jobs_of(pool, ticket)] == [("m1",)]
