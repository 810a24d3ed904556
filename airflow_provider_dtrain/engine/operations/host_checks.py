"""Checks of ``doctor`` for hosts and external schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.host_facts import clock_text
from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.engine.operations.probe_report import (
    is_clock_wrong,
    key_warnings,
    probe_host,
    warnings,
)
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.store.database.schema import NETWORK_FILE_SYSTEMS

if TYPE_CHECKING:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.store.records.trials import HostRecord, Pool
    from airflow_provider_dtrain.store.store import Store

PARALLEL_HOSTS = 8
#: A scheduler is polled each 30 s, and each 5 minutes while it answers that it gets too many requests.
POLLED_WITHIN = timedelta(minutes=10)
_NO_FOLLOWER = "No process follows trials of the pool: start the triggerer, or the workers of tasks that do not defer"


class Line(TypedDict):
    """Result of one check, with the finding and, if it is not ok, the remedy."""

    check: str
    ok: bool
    message: str


def line(check: str, ok: bool, message: str) -> Line:
    """Return one line of the report."""
    return {"check": check, "ok": ok, "message": message}


def _guarded(check: str, probe_host: Callable[[], str]) -> Line:
    """Return a line of the report. An error of this provider is a failed check with its message."""
    try:
        return line(check, True, probe_host())
    except DtrainError as error:
        return line(check, False, str(error))


def host_checks(hook: DtrainHook) -> list[Line]:
    """Return checks of all registered hosts, and of the external schedulers of pools."""
    external = [pool for pool in hook.store.pools.list() if pool.is_external]
    found = _registered_hosts(hook, has_jobs=bool(external))
    for pool in external:
        found += [*_scheduler(pool), job_states(hook.store, pool)]
    return found


def _scheduler(pool: Pool) -> list[Line]:
    """Return the checks of the scheduler of a pool, which its nodes need no probe for."""
    from airflow_provider_dtrain.hooks.schedulers import scheduler

    name = f"pool {pool.name}"
    try:
        return [line(f"{name}: {one.name}", one.is_ok, one.message) for one in scheduler(pool).checks()]
    except DtrainError as error:
        return [line(name, False, str(error))]


def job_states(store: Store, pool: Pool) -> Line:
    """Return how old the stored states of a pool's jobs are. Only processes that follow trials poll a scheduler."""
    jobs = len(store.external_jobs.live(pool.name))
    name = f"pool {pool.name}: states of jobs"
    if not jobs:
        return line(name, True, "no job")
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    if pool.polled_at is None:
        return line(name, False, f"{count}, and no process has asked their scheduler yet. {_NO_FOLLOWER}")
    age = store.db.now() - pool.polled_at
    asked = f"{count}, as of {duration(age.total_seconds())} ago"
    return line(name, age <= POLLED_WITHIN, asked if age <= POLLED_WITHIN else f"{asked}. {_NO_FOLLOWER}")


def _registered_hosts(hook: DtrainHook, *, has_jobs: bool) -> list[Line]:
    records = hook.store.hosts.registered()
    if not records:
        added = (
            "jobs bring their own. This machine: airflow dtrain hosts add local"
            if has_jobs
            else "the host 'local' is added with the first trial"
        )
        return [line("hosts", True, f"none registered; {added}")]
    with ThreadPoolExecutor(PARALLEL_HOSTS) as threads:
        return [line for lines in threads.map(lambda record: _host(hook, record), records) for line in lines]


def _host(hook: DtrainHook, record: HostRecord) -> list[Line]:
    name = f"host {record.name}"
    if record.state == "disabled":
        return [line(name, True, f"disabled ({record.state_reason or 'no reason given'}); not probed")]
    facts: JsonObject = {}

    def connect() -> str:
        facts.update(probe_host(hook, record)[1])
        return f"answers; Python {facts.get('python')}, PyTorch {facts.get('torch') or 'missing'}"

    lines = [_guarded(name, connect)]
    with suppress(DtrainError):
        lines += [line(f"{name}: host key", False, warning) for warning in key_warnings(record)]
    if facts:
        lines.append(line(f"{name}: clock", not is_clock_wrong(facts), f"{clock_text(facts)} from here"))
        if not facts.get("problems") and not facts.get("doubts"):
            lines.append(line(f"{name}: launch", True, "files, locks, an interpreter and a fence work"))
        lines += host_lines(name, facts, NETWORK_FILE_SYSTEMS.__contains__)
        for warning in warnings(record.name, facts):
            if "clock" not in warning:
                lines.append(line(f"{name}: warning", False, warning))
    for sentence in record.findings.splitlines():
        fix = f"Once it is repaired, run: airflow dtrain hosts check {record.name}"
        lines.append(line(f"{name}: speed", False, f"{sentence}. {fix}"))
    if record.state in ("unreachable", "lost"):
        message = (
            f"{record.state} since its last probe. Once it is reachable, run: airflow dtrain hosts probe {record.name}"
        )
        lines.append(line(f"{name}: state", False, message))
    return lines


def host_lines(name: str, facts: Mapping[str, Any], is_network: Callable[[str], bool]) -> Iterator[Line]:
    """Yield settings of a host that would end or confuse runs.

    :param is_network: returns whether a type of file system is a network file system
    """
    kind = facts.get("state_dir_fs")
    if isinstance(kind, str) and is_network(kind):
        message = f"state_dir lies on {kind}, but locks and pids need a local disk. Register the host with --state-dir"
        yield line(f"{name}: state_dir", False, message)
    if facts.get("linger") is False and facts.get("kill_user_processes") is True:
        yield line(
            f"{name}: logout",
            False,
            "logind has KillUserProcesses=yes and the account does not linger: runs die with the last SSH session. On "
            "the host: loginctl enable-linger",
        )
