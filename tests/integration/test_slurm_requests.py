"""Requests to the controller: few per gang, none per node, and one poll for all jobs and processes together."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.external_jobs import JobPhase
from airflow_provider_dtrain.engine.slots.job_request import poll
from airflow_provider_dtrain.errors import SchedulerAwayError
from airflow_provider_dtrain.hosts.slurm.client import SlurmClient
from airflow_provider_dtrain.hosts.slurm.scheduler import _SCHEDULERS
from airflow_provider_dtrain.store.database.tables import external_jobs
from airflow_provider_dtrain.store.store import Store
from testbed.slurm.cluster import SlurmCluster
from tests.support.engines import Engine, held
from tests.support.slurm_pools import count_up, ended_jobs, set_pool

pytest_plugins = ["testbed.slurm.plugin"]
WAITING = 1000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Program and its first word -> requests to the controller, which ``test_slurm_client.py`` compares with sdiag."""
    counts: Counter[str] = Counter()
    real = SlurmClient._run

    def run(client: SlurmClient, argv: Sequence[str], *, requests: int, **how: Any) -> Any:
        words = [word for word in argv if not word.startswith("-")]
        counts[" ".join(words[:3] if argv[0] == "scontrol" else words[:1])] += requests
        return real(client, argv, requests=requests, **how)

    monkeypatch.setattr(SlurmClient, "_run", run)
    return counts


@pytest.fixture
def pool(engine: Engine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    _SCHEDULERS._forget()
    set_pool(engine)
    yield engine
    slurm_cluster.run("scancel", "--user=root")


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_looks")
async def test_a_gang_of_any_width_costs_four_requests_besides_the_poll(pool: Engine, asked: Counter[str]) -> None:
    costs = []
    for slots in (2, 8):
        before = asked.copy()
        ticket = pool.submit(count_up("library", 30, resources={"slots_per_trial": slots}))
        outcome = await pool.carry(ticket, most_s=90)
        assert outcome is not None
        assert outcome.state == "completed", outcome
        await ended_jobs(pool, ticket)
        assert held(pool) == []
        costs.append(asked - before)
    first, second = ({name: count for name, count in cost.items() if name != "squeue"} for cost in costs)
    # The facts of the cluster, for the first gang of a process: partitions, nodes and configuration.
    facts = {"sinfo", "scontrol show partition", "scontrol show node", "scontrol show config"}
    assert sum(count for name, count in first.items() if name in facts) <= 7, first
    assert sum(count for name, count in first.items() if name not in facts) <= 4, first
    assert sum(second.values()) <= 4, second
    # 2 requests for each squeue: the first look is 1 s after the submission.
    assert all(cost["squeue"] <= 30 for cost in costs), costs


class Scheduler:
    """A scheduler that knows all jobs and counts how often it is asked."""

    def __init__(self) -> None:
        self.polls: list[datetime] = []
        self.error: SchedulerAwayError | None = None
        self.now = datetime(2026, 5, 1, tzinfo=UTC)
        self._lock = threading.Lock()

    def poll(self, jobs: Sequence[Any]) -> dict[int, Any]:
        with self._lock:
            self.polls.append(self.now)
        if self.error is not None:
            raise self.error
        assert len(jobs) == WAITING
        return {}


async def _db(method: Any, /, *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(method, *args, **kwargs)


def _polls(engine: Engine, scheduler: Scheduler, seconds: int) -> list[float]:
    """Let four processes with their own connections ask every second, and return the seconds between two polls."""
    stores = [Store.open(engine.hook.settings.sql_alchemy_conn, clock=lambda: scheduler.now) for _ in range(4)]
    scheduler.polls.clear()

    async def ask_all() -> None:
        hooks = [SimpleNamespace(store=store) for store in stores]
        calls = [poll(hook, "hpc", scheduler, _db) for hook in hooks for _ in range(3)]  # type: ignore[arg-type]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert error is None or isinstance(error, SchedulerAwayError)

    async def work() -> None:
        for _ in range(seconds):
            await ask_all()
            scheduler.now += timedelta(seconds=1)

    try:
        asyncio.run(work())
    finally:
        for store in stores:
            store.close()
    return [(b - a).total_seconds() for a, b in zip(scheduler.polls, scheduler.polls[1:], strict=False)]


def test_one_poll_serves_all_processes_and_a_thousand_waiting_trials(engine: Engine) -> None:
    set_pool(engine)
    ticket = engine.submit(count_up("library"))
    store = engine.hook.store
    job = store.external_jobs.begin(ticket.allocation_id, b"sealed", most=None)
    assert not isinstance(job, str)
    with store.db.engine.begin() as conn:
        row = dict(conn.execute(sa.select(external_jobs)).one()._mapping)
        row |= {"phase": JobPhase.WAITING, "submitted_at": store.db.now()}
        more = [{**row, "id": n + 1, "name": f"dtrain-s-t{n}.1.1", "number": str(n + 1)} for n in range(1, WAITING)]
        conn.execute(external_jobs.insert(), more)
    store.external_jobs.submitted(job.job_id, "1")
    scheduler = Scheduler()
    pauses = _polls(engine, scheduler, 150)
    assert pauses[0] >= 5
    assert pauses == sorted(pauses), "the pauses grow while nothing changes"
    assert pauses[-1] == 30
    assert len(scheduler.polls) <= 9
    scheduler.error = SchedulerAwayError("too many requests", is_rate_limited=True)
    pauses = _polls(engine, scheduler, 200)
    assert pauses[-1] >= 60, pauses
