"""Environment that a configuration asks for, read from its code, and what a build on a host needs of it."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name

from airflow_provider_dtrain.core.config.environment import Environment
from airflow_provider_dtrain.core.lock_files.pins import LockFile, Pin
from airflow_provider_dtrain.core.lock_files.platform import Platform, gaps, has_source, wheels_for
from airflow_provider_dtrain.core.lock_files.reader import Files, read_lock
from airflow_provider_dtrain.errors import Problem


@dataclass(frozen=True, kw_only=True)
class EnvironmentSource:
    """Packages and options of an environment, the same for all hosts."""

    #: Path of the lock file in the code, for messages.
    path: str
    lock: LockFile
    #: SHA-256 of the lock file and of the wheels that are sent with the code.
    digest: str
    wheels: str | None
    python: str | None
    system_site_packages: bool
    allow_builds: bool

    @property
    def description(self) -> dict[str, Any]:
        """Fields that distinguish the environment from others on a host."""
        return {
            "lock": self.digest,
            "wheels": self.wheels,
            "python": self.python,
            "system_site_packages": self.system_site_packages,
            "allow_builds": self.allow_builds,
        }

    def gaps(self, platform: Platform) -> list[str]:
        """Return what the lock file lacks for a platform, as far as it says."""
        return [f"{self.path} {one}" for one in gaps(self.lock, platform, allow_builds=self.allow_builds)]

    def packages(self, facts: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the packages that a host installs, and the tags of usable wheels.

        :param facts: of its interpreter
        """
        platform = Platform.of_facts(facts)
        tags = platform.tags()
        pins: Iterable[Pin] = self.lock.pins(platform.markers())
        if self.system_site_packages:
            installed = {str(canonicalize_name(name)): version for name, version in facts["distributions"].items()}
            pins = [pin for pin in pins if not is_satisfied(pin, installed)]
        return [{"name": pin.name, "version": pin.version, "hashes": self._hashes(pin, tags)} for pin in pins], tags

    def _hashes(self, pin: Pin, tags: Sequence[str]) -> list[str]:
        if pin.files is None:
            return list(pin.hashes)
        sources = [digest for name, digest in pin.files.items() if not name.endswith(".whl")]
        return [*wheels_for(pin, tags), *(sources if self.allow_builds and has_source(pin) else [])] or list(pin.hashes)


@dataclass(frozen=True, kw_only=True)
class ReadyEnvironment:
    """An environment on one host."""

    #: None: the ranks use the packages of the interpreter.
    digest: str | None
    #: Path of the interpreter.
    python: str


def is_satisfied(pin: Pin, installed: Mapping[str, str]) -> bool:
    """Return whether an interpreter has a package in its version already, e.g. in one built for a kind of GPU."""
    version = installed.get(pin.name)
    return version is not None and Specifier(f"=={pin.version}").contains(version, prereleases=True)


def source_of_environment(
    environment: Environment, files: Files, names: Iterable[str]
) -> tuple[EnvironmentSource | None, list[Problem]]:
    """Return the environment that a configuration asks for, None without a lock file, and its problems.

    :param files: of the code
    :param names: paths of all files of the code
    """
    problems = [] if environment.setup is None else list(_setup_problems(environment.setup, files))
    if environment.requirements is None:
        return None, problems
    sent = _sent_wheels(environment.wheels, names)
    if environment.wheels is not None and sent == [] and not environment.wheels.startswith("/"):
        message = f"the code has no wheels in '{environment.wheels}'; put them there, or name a folder of the hosts"
        problems.append(Problem(path="environment.wheels", message=message))
    found = read_lock(environment.requirements, files, wheels=[posixpath.basename(one) for one in sent])
    problems += [Problem(path="environment.requirements", message=one) for one in found.problems]
    if found.lock is None or problems:
        return None, problems
    digest = hashlib.sha256(files(found.path) or b"")
    for name in sent:
        digest.update(f"\0{posixpath.basename(name)}\0{hashlib.sha256(files(name) or b'').hexdigest()}".encode())
    source = EnvironmentSource(
        path=found.path,
        lock=found.lock,
        digest=digest.hexdigest(),
        wheels=environment.wheels,
        python=environment.interpreter,
        system_site_packages=environment.system_site_packages,
        allow_builds=environment.allow_builds,
    )
    return source, problems


def _setup_problems(path: str, files: Files) -> Iterable[Problem]:
    if files(posixpath.normpath(path)) is None:
        yield Problem(path="environment.setup", message=f"the code has no file '{path}'")


def _sent_wheels(folder: str | None, names: Iterable[str]) -> list[str]:
    """Return the paths of the wheels that are sent with the code."""
    if folder is None or folder.startswith("/"):
        return []
    place = posixpath.normpath(folder)
    return sorted(name for name in names if name.endswith(".whl") and posixpath.dirname(name) == place)
