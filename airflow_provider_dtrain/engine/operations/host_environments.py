"""Environments on hosts, for users who look at them, remove them, or build them before anything is submitted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_dtrain.core.lifecycle.timing import COLLECT_TIMEOUT_S
from airflow_provider_dtrain.engine.attempt.environment_build import (
    BuildFollower,
    HostEnvironmentBuild,
    Log,
    RequestedEnvironment,
)
from airflow_provider_dtrain.engine.attempt.host_calls import send_archives
from airflow_provider_dtrain.engine.attempt.job import Archive
from airflow_provider_dtrain.engine.session.threads import in_connect_thread
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import HostRecord

T = TypeVar("T")

#: Hosts that are reached at the same time.
PARALLEL_HOSTS = 8
_RUN = re.compile(r"(?:([0-9a-f]{8})-)?t(\d{1,18})\.\d+\.\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class HostEnvironment:
    """An environment on a host."""

    host: str
    digest: str
    #: False: it is being built, or a build was killed.
    is_complete: bool
    #: Runs of this host, builds and removals that hold it, in words; None: it is free.
    used_by: str | None
    python: str | None
    #: Path of the interpreter that it was made of.
    interpreter: str | None
    #: SHA-256 of its lock file, with that of wheels that were sent.
    lock: str | None
    package_count: int
    #: ``name==version``. None: they were not requested.
    packages: list[str] | None
    size_bytes: int
    built_at: datetime | None
    built_s: float | None
    used_at: datetime


@dataclass(frozen=True, kw_only=True)
class HostProblem:
    """The reason why a host gave no answer."""

    host: str
    problem: str


def environments(
    hook: DtrainHook, hosts: Sequence[str], pool: str | None = None, *, digest: str | None = None
) -> tuple[list[HostEnvironment], list[HostProblem]]:
    """Return the environments on hosts, and the hosts that could not be reached. Blocks.

    :param hosts: names; empty: all hosts, or those of a pool
    :param digest: only this one, with its packages
    """
    given = {} if digest is None else {"digest": digest}

    def on_host(record: HostRecord) -> list[HostEnvironment]:
        answer = _call(hook, record, "environments", **given)
        return [_environment(hook.store.store_id, record.name, one) for one in answer["environments"]]

    found, problems = _on_hosts(_records(hook, hosts, pool), on_host)
    return [one for part in found for one in part], problems


def _call(hook: DtrainHook, record: HostRecord, command: str, **arguments: Any) -> Mapping[str, Any]:
    link = hook.link(record)
    return link.call(command, timeout_s=COLLECT_TIMEOUT_S, **arguments).result(COLLECT_TIMEOUT_S + 5)


def _records(hook: DtrainHook, names: Sequence[str], pool: str | None) -> Sequence[HostRecord]:
    if names:
        return [hook.store.hosts.get(name) for name in dict.fromkeys(names)]
    if pool is not None:
        hook.store.pools.get(pool)
    return hook.store.hosts.registered(pool)


def _on_hosts(records: Sequence[HostRecord], action: Callable[[HostRecord], T]) -> tuple[list[T], list[HostProblem]]:
    def one(record: HostRecord) -> T | HostProblem:
        if record.state in ("disabled", "unreachable", "lost"):
            return HostProblem(host=record.name, problem=f"it is {record.state}")
        try:
            return action(record)
        except DtrainError as error:
            return HostProblem(host=record.name, problem=str(error))

    with ThreadPoolExecutor(PARALLEL_HOSTS) as threads:
        answers = list(threads.map(one, records))
    problems = [one for one in answers if isinstance(one, HostProblem)]
    return [one for one in answers if not isinstance(one, HostProblem)], problems


def _environment(store_id: str, host: str, found: Mapping[str, Any]) -> HostEnvironment:
    texts = {
        name: None if found.get(name) is None else plain(found[name], 500) for name in ("python", "interpreter", "lock")
    }
    packages = found.get("packages")
    return HostEnvironment(
        host=host,
        digest=found["digest"],
        is_complete=found["is_complete"],
        used_by=use_text(store_id, found["use"], found["runs"], found.get("progress")),
        package_count=found["package_count"],
        packages=None if packages is None else [plain(one, 300) for one in packages],
        size_bytes=found["bytes"],
        built_at=_time(found.get("built_at")),
        built_s=found.get("built_s"),
        used_at=datetime.fromtimestamp(found["used_at"], UTC),
        **texts,
    )


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def use_text(store_id: str, use: str, runs: Sequence[str], progress: str | None = None) -> str | None:
    """Return the users of an environment in words, None if it is free.

    :param runs: names of runs on the host
    """
    if use == "change":
        return f"a build, which {plain(progress, 200)}" if progress else "a build or a removal"
    if use != "run":
        return None
    trials = sorted({one for run in runs if (one := _trial(store_id, run)) is not None})
    own = [f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials))}"] if trials else []
    foreign = len(runs) - sum(_trial(store_id, run) is not None for run in runs)
    own += [f"{foreign} run(s) of another store"] if foreign else []
    return " and ".join(own) or "a run on another host with the same folder"


def _trial(store_id: str, run: str) -> int | None:
    found = _RUN.fullmatch(run)
    return int(found[2]) if found is not None and found[1] in (None, store_id[:8]) else None


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Result of a request to remove an environment."""

    host: str
    digest: str
    size_bytes: int
    #: Its users in words. None: it was removed, or can be.
    used_by: str | None


def remove_environments(
    hook: DtrainHook, unwanted: Sequence[HostEnvironment], *, dry_run: bool
) -> tuple[list[Removal], list[HostProblem]]:
    """Remove environments that are not in use, and return the hosts that could not be reached too. Blocks."""

    def on_host(record: HostRecord) -> list[Removal]:
        removals = []
        for digest in (one.digest for one in unwanted if one.host == record.name):
            answer = _call(hook, record, "remove_environment", digest=digest, dry_run=dry_run)
            used_by = use_text(hook.store.store_id, answer["use"], answer["runs"])
            removals.append(Removal(host=record.name, digest=digest, size_bytes=answer["size"], used_by=used_by))
        return removals

    found, problems = _on_hosts(_records(hook, [one.host for one in unwanted], None), on_host)
    return [one for part in found for one in part], problems


@dataclass(frozen=True, kw_only=True)
class BuiltEnvironment:
    """The environment of a configuration on a host."""

    host: str
    digest: str | None
    #: Path of its interpreter.
    python: str


def build_environments(
    hook: DtrainHook,
    hosts: Sequence[str],
    pool: str | None,
    wanted: RequestedEnvironment,
    code: Archive | None,
    log: Log,
) -> tuple[list[BuiltEnvironment], list[HostProblem]]:
    """Return the environment of a configuration on hosts, built where it is not there, and the failures. Blocks.

    :param hosts: names; empty: all hosts, or those of a pool
    :param code: the archive of the code, if hosts need it for the build
    :param log: gets lines about the progress
    """

    async def build(record: HostRecord) -> BuiltEnvironment:
        link = await in_connect_thread(hook.link, record)
        if code is not None:
            await send_archives(link, {"payloads": code})
        ready = await HostEnvironmentBuild(link, wanted, BuildFollower(log)).ready()
        return BuiltEnvironment(host=record.name, digest=ready.digest, python=ready.python)

    return _on_hosts(_records(hook, hosts, pool), lambda record: asyncio.run(build(record)))
