"""A follower of a Slurm job that dies at any step of its submission: the next one continues, with the same job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dtrain.hosts.slurm.scheduler import SlurmScheduler
from airflow_provider_dtrain.store.database.tables import external_jobs
from airflow_provider_dtrain.store.external_jobs import ExternalJobs
from airflow_provider_dtrain.store.queue.requests import Queue
from testbed.slurm.cluster import SlurmCluster
from tests.support.counting import a_minute_passes, numbers
from tests.support.engines import Engine, held
from tests.support.slurm_pools import count_up, ended_jobs, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks")]
STEPS = [
    *((ExternalJobs, name) for name in ("begin", "submitting", "submitted", "polled", "grant")),
    (SlurmScheduler, "submit"),
    (SlurmScheduler, "channel"),
    (Queue, "take_up"),
]


class Death(BaseException):
    """End of a process, which runs no handler of exceptions."""


@pytest.fixture
def pool(engine: Engine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    set_pool(engine)
    yield engine
    slurm_cluster.run("scancel", "--user=root")


def dying(patch: pytest.MonkeyPatch, of: type, name: str, *, after: bool) -> None:
    """Let the next call of a method end its caller, before or after its work."""
    real: Callable[..., Any] = getattr(of, name)
    calls: list[str] = []

    def method(*args: Any, **kwargs: Any) -> Any:
        if calls:
            return real(*args, **kwargs)
        calls.append(name)
        if after:
            real(*args, **kwargs)
        raise Death(name)

    patch.setattr(of, name, method)


@pytest.mark.each_change("submit-after", "submitted-before")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("of", "name"), STEPS, ids=[name for _, name in STEPS])
async def test_the_next_follower_continues_with_the_same_job(
    pool: Engine, of: type, name: str, after: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    slurm_cluster: SlurmCluster,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    dying(monkeypatch, of, name, after=after)
    ticket = pool.submit(count_up("library", 3))
    with pytest.raises(Death):
        await pool.carry(ticket)
    a_minute_passes(pool)
    # A submission that was begun may still be accepted for a while.
    store = pool.hook.store
    with store.db.engine.begin() as conn:
        settled = external_jobs.update().where(external_jobs.c.submitted_at.is_not(None))
        conn.execute(settled.values(submitted_at=store.db.now() - timedelta(minutes=5)))
    outcome = await asyncio.wait_for(pool.carry(ticket), 90)
    assert outcome is not None
    assert outcome.state == "completed", outcome
    assert numbers(caplog, "done at") == [3]
    (job,) = await ended_jobs(pool, ticket)
    mark = job.name.rsplit("-", 1)[0]
    known = slurm_cluster.run("squeue", "-h", "-t", "all", "-o", "%j").stdout.split()
    assert [one for one in known if one.startswith(mark)] == [job.name], "one submission"
    assert held(pool) == []
