"""Environments of a launch: found on each host of the gang, or built there before any rank is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.config.environment_source import ReadyEnvironment
from airflow_provider_dtrain.engine.attempt.environment_build import (
    BuildFollower,
    HostEnvironmentBuild,
    RequestedEnvironment,
)
from airflow_provider_dtrain.engine.attempt.host_calls import on_all
from airflow_provider_dtrain.hooks.secrets import package_index

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink


async def ready_environments(rt: Runtime, job: Job, links: Mapping[str, HostLink]) -> dict[str, ReadyEnvironment]:
    """Return the environment on each host, after its build if it is not there. Without a lock file there are none.

    :raises EnvironmentBuildError: a package cannot be installed
    :raises HostError: a host is at fault, e.g. its disk is full
    """
    section = job.config.environment
    if job.environment is None and section.setup is None:
        return {}
    payload = job.archives.get("payloads")
    wanted = RequestedEnvironment(
        section=section,
        source=job.environment,
        setup=job.setup,
        payload=None if payload is None else payload.digest,
        index=await package_index(job.config) if job.environment is not None else None,
    )
    follower = _AttemptFollower(rt)
    return await on_all(links, lambda _, link: HostEnvironmentBuild(link, wanted, follower).ready())


class _AttemptFollower(BuildFollower):
    """Follower of builds that an attempt waits for. The page of the trial shows them."""

    def __init__(self, rt: Runtime) -> None:
        super().__init__(rt.log)
        self.rt = rt

    async def check(self) -> None:
        await self.rt.check()

    async def builds(self, host: str, progress: str) -> None:
        await self.rt.db(self.rt.store.attempts.note_build, self.rt.attempt_id, self.rt.watch, host, progress)

    async def ends(self, host: str, result: str, *, is_ready: bool) -> None:
        await self.rt.db(
            self.rt.store.attempts.note_build, self.rt.attempt_id, self.rt.watch, host, result, is_ready=is_ready
        )
