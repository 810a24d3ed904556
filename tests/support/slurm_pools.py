"""Trials of an engine on a Slurm cluster: its pools, its jobs and their end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

from airflow_provider_dtrain.core.external_jobs import ExternalJob
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support import counting
from tests.support.engines import Engine, held


def set_pool(engine: Engine, name: str = "hpc", **options: Any) -> None:
    kind = scheduler_kind("slurm")
    document = kind.checked({"slots": "cpu", "slots_per_node": 2, "python": sys.executable, **options})
    engine.hook.store.pools.set_scheduler(name, backend="slurm", slot_type=kind.slot_type(document), scheduler=document)


def in_pool(document: dict[str, Any], pool: str = "hpc", **resources: Any) -> dict[str, Any]:
    document["resources"] |= {"pool": pool, **resources}
    return document


def count_up(way: str, last: int = 60, *, pool: str = "hpc", **more: Any) -> dict[str, Any]:
    return in_pool(counting.config(way, last, **more), pool)


def queued() -> list[str]:
    done = subprocess.run(["squeue", "-h", "-o", "%i %T %j"], capture_output=True, text=True, timeout=20, check=True)
    return [line for line in done.stdout.splitlines() if "COMPLETING" not in line]


def jobs_of(pool: Engine, ticket: Ticket) -> list[ExternalJob]:
    store = pool.hook.store
    found = [store.external_jobs.of_allocation(one.allocation_id) for one in store.attempts.of_trial(ticket.trial_id)]
    return [job for job in found if job is not None]


async def kill_running(pool: Engine) -> None:
    """Run a trial, kill it by a request of a user, and check that its job ends and no slot is held."""
    ticket = pool.submit(count_up("library", 10_000))
    carrying = asyncio.ensure_future(pool.carry(ticket))
    await counting.running(pool, ticket, carrying)
    pool.hook.store.control.kill(ticket.trial_id, "ann")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "killed"
    assert held(pool) == []
    await ended_jobs(pool, ticket)


async def ended_jobs(pool: Engine, ticket: Ticket) -> list[ExternalJob]:
    """Return the jobs of a trial once Slurm has ended them, and the store knows."""
    for _ in range(120):
        await recover(pool.hook)
        found = jobs_of(pool, ticket)
        if all(job.is_over for job in found) and queued() == []:
            return found
        await asyncio.sleep(0.5)
    raise AssertionError((jobs_of(pool, ticket), queued()))
