"""Environment on one host: found there, or built before the ranks start."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_dtrain.core.config.environment_source import ReadyEnvironment
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.core.lifecycle.timing import (
    COMMAND_TIMEOUT_S,
    ENVIRONMENT_LOG_S,
    ENVIRONMENT_POLL_S,
    INDEX_STALL_S,
    SETUP_S,
)
from airflow_provider_dtrain.core.lock_files.platform import Platform
from airflow_provider_dtrain.engine.attempt.host_calls import send_archives
from airflow_provider_dtrain.engine.attempt.job import Archive
from airflow_provider_dtrain.engine.session.runtime import answer
from airflow_provider_dtrain.engine.session.threads import in_launch_thread
from airflow_provider_dtrain.errors import (
    EnvironmentBuildError,
    EnvironmentTimeoutError,
    HostError,
    HostRefusedError,
    PayloadError,
)
from airflow_provider_dtrain.hosts.uv_program import uv_for
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config.environment import Environment
    from airflow_provider_dtrain.core.config.environment_source import EnvironmentSource
    from airflow_provider_dtrain.hosts.channel.link import HostLink

#: Failures of the host. With another one the same packages may be installed.
_OF_HOST = frozenset(("disk_full", "read_only", "killed", "no_lock", "in_use", "internal", "os_error"))
#: Seconds for an answer, which may run a setup script.
_ANSWER_S = COMMAND_TIMEOUT_S + SETUP_S + ENVIRONMENT_POLL_S
#: Builds of one environment on one host that an attempt starts: another gang's build may have been killed.
_BUILDS = 3


@dataclass(frozen=True, kw_only=True)
class RequestedEnvironment:
    """Environment of a configuration, with what hosts need for its build."""

    section: Environment
    #: None: the ranks use the packages of the interpreter.
    source: EnvironmentSource | None
    #: Setup script, as the commands to a host name it.
    setup: Mapping[str, str] | None
    #: Digest of the code, which has the wheels that are sent; None: it is not sent.
    payload: str | None
    #: Package index with its credentials; None: that of the host.
    index: Mapping[str, Any] | None = field(repr=False)

    @property
    def path(self) -> str:
        """Path of the lock file in the code, for messages."""
        assert self.source is not None
        return self.source.path


class Log(Protocol):
    """Receiver of lines for users."""

    def info(self, message: str, *args: object) -> None:
        """Report progress."""

    def warning(self, message: str, *args: object) -> None:
        """Report what may be wrong."""


class BuildFollower:
    """Follower of a build. This one only logs.

    :param log: gets a line at the start, every ten seconds, and at the end
    """

    def __init__(self, log: Log) -> None:
        self.log = log

    async def check(self) -> None:
        """Raise an error if the build is no longer waited for."""

    async def builds(self, host: str, progress: str) -> None:
        """Note the progress of a build on a host."""

    async def ends(self, host: str, result: str, *, is_ready: bool) -> None:
        """Note the end of a build on a host."""


class HostEnvironmentBuild:
    """An environment on one host, and the build that makes it if it is not there."""

    def __init__(self, link: HostLink, wanted: RequestedEnvironment, follower: BuildFollower) -> None:
        self.link = link
        self.wanted = wanted
        self.follower = follower
        self._began: float | None = None
        self._logged = 0.0

    async def ready(self) -> ReadyEnvironment:
        """Return the environment, after its build if it is not there.

        :raises EnvironmentBuildError: a package cannot be installed
        :raises HostError: the host is at fault, e.g. its disk is full
        """
        try:
            found = await self._ready()
        except (EnvironmentBuildError, HostError) as error:
            if self._began is not None:
                await self.follower.ends(self.link.host, str(error), is_ready=False)
            raise
        if self._began is not None:
            took = duration(time.monotonic() - self._began)
            self.follower.log.info(
                "Environment %s is ready on host '%s' after %s", self.wanted.path, self.link.host, took
            )
            count = len(found.get("packages") or ())
            await self.follower.ends(self.link.host, f"{count} package(s) in {took}", is_ready=True)
        if refused := [plain(name, 100) for name in found.get("refused_variables") or ()]:
            self.follower.log.warning(
                "%s sets %s, which the launch sets for each rank; it has no effect",
                self.wanted.section.setup,
                ", ".join(refused),
            )
        return ReadyEnvironment(digest=found["digest"], python=found["python"])

    async def _ready(self) -> JsonObject:
        found = await self._ask()
        builds = 0
        waits_for = None
        while found["state"] != "ready":
            await self.follower.check()
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
                await self._progress(plain(found.get("progress"), 200))
                found = await self._ask(waits_for=waits_for, wait_s=ENVIRONMENT_POLL_S)
        return found

    async def _ask(self, **more: Any) -> JsonObject:
        source = self.wanted.source
        described = {"python": self.wanted.section.interpreter} if source is None else source.description
        try:
            more = {**more, "environment": described, "setup": self.wanted.setup}
            return await answer(self.link, "environment", timeout_s=_ANSWER_S, **more)
        except HostRefusedError as error:
            if error.code not in ("no_python", "setup"):
                raise
            lines = [plain(line, 500) for line in error.details.get("lines") or ()]
            raise EnvironmentBuildError(self.link.host, error.reason, lines=lines) from error

    async def _start(self, found: Mapping[str, Any], build: str) -> JsonObject:
        log, host, source = self.follower.log, self.link.host, self.wanted.source
        assert source is not None
        if found.get("damage"):
            log.warning("Host '%s': the environment is damaged and is built again: %s", host, plain(found["damage"]))
        facts = found["facts"]
        host_platform = Platform.of_facts(facts)
        if lacking := source.gaps(host_platform):
            raise EnvironmentBuildError(host, " ".join(lacking))
        packages, tags = source.packages(facts)
        self._began = self._began or time.monotonic()
        self._logged = time.monotonic()
        python = plain(facts["python"], 64)
        log.info(
            "Environment %s is built on host '%s': %d package(s) for Python %s",
            source.path,
            host,
            len(packages),
            python,
        )
        await self.follower.builds(host, f"begins with {len(packages)} package(s) for Python {python}")
        request = {
            "id": build,
            "packages": packages,
            "tags": tags,
            "payload": self.wanted.payload,
            "uv": None if found.get("has_uv") else await self._send_uv(host_platform),
            "index": self.wanted.index,
            "timeout_s": self.wanted.section.build_timeout,
            "stall_s": INDEX_STALL_S,
        }
        return await self._ask(build=request, waits_for=build)

    async def _send_uv(self, host_platform: Platform) -> str | None:
        """Send uv to a host that has none, and return its digest. None: the host uses pip."""
        try:
            packed = await in_launch_thread(uv_for, host_platform, self.wanted.index)
        except PayloadError as error:
            message = "%s Host '%s' uses pip. Install uv there, or on an index that this machine reaches."
            self.follower.log.warning(message, error, self.link.host)
            return None
        if packed is None:
            return None
        await send_archives(self.link, {"tools": Archive(digest=packed.digest, content=lambda: packed.content)})
        return packed.digest

    async def _progress(self, progress: str) -> None:
        log, host = self.follower.log, self.link.host
        if self._began is None:
            self._began = self._logged = time.monotonic()
            log.info("Environment %s is being built on host '%s'", self.wanted.path, host)
        elif time.monotonic() - self._logged >= ENVIRONMENT_LOG_S:
            self._logged = time.monotonic()
            log.info("The build of the environment on host '%s' %s", host, progress)
        await self.follower.builds(host, progress)

    def _error(self, found: Mapping[str, Any]) -> EnvironmentBuildError | HostError:
        code = plain(found.get("code") or "unknown", 64)
        message = plain(found.get("message") or "no reason given", 2000)
        lines = [plain(line, 500) for line in found.get("lines") or ()]
        host = self.link.host
        if code in _OF_HOST:
            return HostRefusedError(host, f"Host '{host}' cannot build the environment ({code}): {message}", code=code)
        if code == "timeout":
            return EnvironmentTimeoutError(host, message, limit_s=self.wanted.section.build_timeout, lines=lines)
        package = found.get("package")
        return EnvironmentBuildError(host, message, package=plain(package, 200) if package else None, lines=lines)
