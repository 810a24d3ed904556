"""Environments of a launch: found on each host of the gang, or built there before any rank is started."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.config.environment_source import ReadyEnvironment
from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.core.lifecycle.timing import (
    COMMAND_TIMEOUT_S,
    ENVIRONMENT_BUILD_S,
    ENVIRONMENT_LOG_S,
    ENVIRONMENT_POLL_S,
    INDEX_STALL_S,
    SETUP_S,
)
from airflow_provider_dtrain.core.lock_files.platform import Platform
from airflow_provider_dtrain.engine.attempt.host_calls import on_all, send_archives
from airflow_provider_dtrain.engine.attempt.job import Archive
from airflow_provider_dtrain.engine.session.runtime import answer
from airflow_provider_dtrain.engine.session.threads import in_launch_thread
from airflow_provider_dtrain.errors import EnvironmentBuildError, HostError, HostRefusedError
from airflow_provider_dtrain.hooks.secrets import package_index
from airflow_provider_dtrain.hosts.payload import uv
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.environment_source import EnvironmentSource
    from airflow_provider_dtrain.engine.attempt.job import Job
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Failures of the host. With another one the same packages may be installed.
_OF_HOST = frozenset(("disk_full", "read_only", "killed", "no_lock", "in_use", "internal", "os_error"))
#: Seconds for an answer, which may run a setup script.
_ANSWER_S = COMMAND_TIMEOUT_S + SETUP_S + ENVIRONMENT_POLL_S
#: Builds of one environment on one host that an attempt starts: another gang's build may have been killed.
_BUILDS = 3


async def ready_environments(
    rt: Runtime, view: AttemptView, job: Job, links: Mapping[str, HostLink]
) -> dict[str, ReadyEnvironment]:
    """Return the environment on each host, after its build if it is not there. Without a lock file there are none.

    :raises EnvironmentBuildError: a package cannot be installed
    :raises HostError: a host is at fault, e.g. its disk is full
    """
    if job.environment is None and job.config.environment.setup is None:
        return {}
    index = await package_index(job.config) if job.environment is not None else None
    return await on_all(links, lambda _, link: _OnHost(rt, view, job, link, index).ready())


class _OnHost:
    """The environment of an attempt on one host."""

    def __init__(
        self,
        rt: Runtime,
        view: AttemptView,
        job: Job,
        link: HostLink,
        index: Mapping[str, Any] | None,
    ) -> None:
        self.rt = rt
        self.view = view
        self.job = job
        self.link = link
        self.index = index
        self._began: float | None = None
        self._logged = 0.0

    async def ready(self) -> ReadyEnvironment:
        """Return the environment, after its build if it is not there."""
        found = await self._ask()
        builds = 0
        waits_for = None
        while found["state"] != "ready":
            await self.rt.check()
            if found["state"] == "failed":
                raise self._error(found)
            if found["state"] == "absent":
                if builds == _BUILDS:
                    raise HostError(
                        self.link.host, f"Host '{self.link.host}' does not start the build of an environment."
                    )
                builds += 1
                waits_for = secrets.token_hex(8)
                found = await self._start(found, waits_for)
            else:
                waits_for = found.get("build") or waits_for
                self._log(str(found.get("progress")))
                found = await self._ask(waits_for=waits_for, wait_s=ENVIRONMENT_POLL_S)
        if self._began is not None:
            took = duration(time.monotonic() - self._began)
            self.rt.log.info("Environment %s is ready on host '%s' after %s", self._source.path, self.link.host, took)
        if refused := [plain(name, 100) for name in found.get("refused_variables") or ()]:
            path = self.job.config.environment.setup
            self.rt.log.warning(
                "%s sets %s, which the launch sets for each rank; it has no effect", path, ", ".join(refused)
            )
        return ReadyEnvironment(digest=found["digest"], python=found["python"])

    async def _ask(self, **more: Any) -> dict[str, Any]:
        section = self.job.config.environment
        source = self.job.environment
        described = {"python": section.interpreter} if source is None else source.description
        try:
            more = {**more, "environment": described, "setup": self.job.setup}
            return await answer(self.link, "environment", timeout_s=_ANSWER_S, **more)
        except HostRefusedError as error:
            if error.code not in ("no_python", "setup"):
                raise
            lines = [plain(line, 500) for line in error.details.get("lines") or ()]
            raise EnvironmentBuildError(self.link.host, str(error), lines=lines) from error

    @property
    def _source(self) -> EnvironmentSource:
        assert self.job.environment is not None
        return self.job.environment

    async def _start(self, found: Mapping[str, Any], build: str) -> dict[str, Any]:
        if found.get("damage"):
            damage = plain(found["damage"])
            self.rt.log.warning("Host '%s': the environment is damaged and is built again: %s", self.link.host, damage)
        facts = found["facts"]
        if lacking := self._source.gaps(Platform.of_facts(facts)):
            raise EnvironmentBuildError(self.link.host, " ".join(lacking))
        packages, tags = self._source.packages(facts)
        self._began = self._began or time.monotonic()
        self._logged = time.monotonic()
        self.rt.log.info(
            "Environment %s is built on host '%s': %d package(s) for Python %s",
            self._source.path,
            self.link.host,
            len(packages),
            plain(facts["python"], 64),
        )
        payload = self.job.archives.get("payloads")
        request = {
            "id": build,
            "packages": packages,
            "tags": tags,
            "payload": payload.digest if payload is not None else None,
            "uv": None if found.get("has_uv") else await self._send_uv(str(facts["machine"])),
            "index": self.index,
            "timeout_s": ENVIRONMENT_BUILD_S,
            "stall_s": INDEX_STALL_S,
        }
        return await self._ask(build=request, waits_for=build)

    async def _send_uv(self, machine: str) -> str | None:
        """Send the uv of this machine to a host of the same kind, and return its digest. None: the host uses pip."""
        packed = await in_launch_thread(uv) if machine == platform.machine() else None
        if packed is None:
            return None
        await send_archives(self.link, {"tools": Archive(digest=packed.digest, content=lambda: packed.content)})
        return packed.digest

    def _log(self, progress: str) -> None:
        if self._began is None:
            self._began = self._logged = time.monotonic()
            self.rt.log.info("Environment %s is being built on host '%s'", self._source.path, self.link.host)
        elif time.monotonic() - self._logged >= ENVIRONMENT_LOG_S:
            self._logged = time.monotonic()
            self.rt.log.info("The build of the environment on host '%s' %s", self.link.host, plain(progress, 200))

    def _error(self, found: Mapping[str, Any]) -> EnvironmentBuildError | HostError:
        code = plain(found.get("code") or "unknown", 64)
        message = plain(found.get("message") or "no reason given", 2000)
        if code in _OF_HOST:
            text = f"Host '{self.link.host}' cannot build the environment ({code}): {message}"
            return HostRefusedError(self.link.host, text, code=code)
        package = found.get("package")
        lines = [plain(line, 500) for line in found.get("lines") or ()]
        return EnvironmentBuildError(
            self.link.host, message, package=plain(package, 200) if package else None, lines=lines
        )
