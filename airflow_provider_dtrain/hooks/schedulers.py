"""External schedulers of pools, and the channels of this process to the nodes of their jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_dtrain.errors import HostUnreachableError, NotFoundError
from airflow_provider_dtrain.hooks.sealing import opened_bytes
from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.external_jobs import ExternalJob
    from airflow_provider_dtrain.hosts.schedulers.base import ExternalScheduler, JobChannel
    from airflow_provider_dtrain.store.records.trials import Pool


class JobChannels:
    """Channels to jobs of one process. Thread-safe. A forked child starts without its parent's."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], JobChannel] = {}

    def get(self, store_id: str, job_id: int, make: Callable[[], JobChannel]) -> JobChannel:
        """Return the channel to a job, made by ``make`` if there is none."""
        if self._pid != os.getpid():
            self._forget()
        with self._lock:
            if (store_id, job_id) not in self._open:
                self._open[store_id, job_id] = make()
            return self._open[store_id, job_id]

    def current(self, store_id: str, job_id: int) -> JobChannel | None:
        """Return the channel to a job, None without one."""
        return self._open.get((store_id, job_id)) if self._pid == os.getpid() else None

    def drop(self, store_id: str, job_id: int) -> None:
        """Close the channel to a job."""
        with self._lock:
            channel = self._open.pop((store_id, job_id), None)
        if channel is not None:
            channel.close()


CHANNELS = JobChannels()


async def ascheduler(pool: Pool) -> ExternalScheduler:
    """Return the scheduler of a pool without blocking the event loop.

    :raises NotFoundError: its Airflow connection does not exist
    """
    kind = scheduler_kind(pool.backend)
    conn_id = kind.connection_id(pool.scheduler)
    connection = None
    if conn_id is not None:
        try:
            connection = await BaseHook.aget_connection(conn_id)
        except Exception as error:
            raise _no_connection(pool.name, conn_id, error) from error
    return kind.scheduler(pool.name, pool.scheduler, connection)


def scheduler(pool: Pool) -> ExternalScheduler:
    """Return the scheduler of a pool. Blocks.

    :raises NotFoundError: its Airflow connection does not exist
    """
    return scheduler_with(pool.name, pool.backend, pool.scheduler)


def scheduler_with(pool: str, backend: str, options: Mapping[str, Any]) -> ExternalScheduler:
    """Return the scheduler that a pool has with these options. Blocks.

    :raises NotFoundError: its Airflow connection does not exist
    """
    kind = scheduler_kind(backend)
    conn_id = kind.connection_id(options)
    connection: Any = None
    if conn_id is not None:
        try:
            connection = BaseHook.get_connection(conn_id)
        except Exception as error:
            raise _no_connection(pool, conn_id, error) from error
    return kind.scheduler(pool, options, connection)


def job_channel(store_id: str, job: ExternalJob, of_pool: ExternalScheduler) -> JobChannel:
    """Return the channel of this process to the nodes of a job.

    :raises HostUnreachableError: the job has ended
    """
    if job.is_over:
        message = job.end.message if job.end is not None else f"Job {job.number} has ended."
        raise HostUnreachableError(next(iter(job.hosts), job.name), message)
    return CHANNELS.get(store_id, job.job_id, lambda: of_pool.channel(job, opened_bytes(job.access)))


def _no_connection(pool: str, conn_id: str, error: Exception) -> NotFoundError:
    return NotFoundError(
        f"Pool '{pool}' needs Airflow connection '{conn_id}', which cannot be fetched: {error}. "
        f"Add it under Admin > Connections."
    )
