"""Engines on this machine: their hosts, trials and processes, without Airflow."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.submission.submit import render, revive, submit
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from testbed.programs import install_programs
from tests.support.lock_dirs import new_lock_dir

CODE = Path(__file__).parents[1] / "jobs"


def config(arguments: str, *, slots: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "name": "ranks",
        "entrypoint": f"python ranks.py {arguments}",
        "model_dir": "code",
        "max_restarts": 0,
        "resources": {"slots_per_trial": slots},
        **more,
    }


def replace_link(patch: pytest.MonkeyPatch, link: Callable[..., Any]) -> None:
    """Give this process another way to its hosts, also to those whose channels are open."""
    patch.setattr(DtrainHook, "open_link", lambda *_: None)
    patch.setattr(DtrainHook, "link", link)


class Engine:
    """The work of an operator, without Airflow."""

    def __init__(self, hook: DtrainHook) -> None:
        self.hook, self.runs = hook, 0
        self.runtime: Runtime | None = None

    def submit(
        self, document: dict[str, Any], *, folder: Path = CODE, run_id: str | None = None, **options: Any
    ) -> Ticket:
        self.runs += 1
        key = TrialKey(dag_id="dag", run_id=run_id or str(self.runs), task_id="train")
        ticket = submit(self.hook, render(self.hook, document, None, folder), key=key, folder=folder, **options)
        revive(self.hook.store, ticket)
        return ticket

    async def carry(
        self, ticket: Ticket, *, hand_over_after_s: float | None = None, most_s: float = 180
    ) -> Outcome | None:
        log = TaskLog(logging.getLogger("engine"), 10**6)
        self.runtime = await take_over(self.hook, ticket.trial_id, log, watcher="test")
        if hand_over_after_s is not None:
            asyncio.get_running_loop().call_later(hand_over_after_s, self.runtime.hand_over)
        return await asyncio.wait_for(AttemptRunner(self.runtime).run(BackgroundRecovery(self.runtime.hook)), most_s)


def register(hook: DtrainHook, state_dir: Path, *, slots: str = "cpu:2") -> None:
    """Add this machine as a host whose slots have locks that are the test's own."""
    install_programs(Path.home())
    lock_dir = new_lock_dir(state_dir.parent)
    address = HostAddress(
        name="local", remote_dir=".dtrain", state_dir=str(state_dir), lock_dir=lock_dir, python=sys.executable,
        make_transport=lambda: LocalTransport("local"),
    )  # fmt: skip
    link = hook.links.get(address)
    record = host_record_from_facts(
        "local", pool="local", conn_id=None, facts=link.call("probe").result(30), hello=link.hello, slots=slots,
        remote_dir=".dtrain", state_dir=str(state_dir), lock_dir=lock_dir, python=sys.executable,
    )  # fmt: skip
    hook.store.hosts.add(record)


def processes(word: str, below: Path | None = None) -> list[psutil.Process]:
    """Return the living processes with a word in their command line.

    :param below: only those whose working folder is there: other tests of this machine run the same programs
    """
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if below is not None and not str(process.info["cwd"]).startswith(f"{below}/"):
            continue
        if word in " ".join(process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def held(engine: Engine) -> list[Any]:
    return [slot for slot in engine.hook.store.hosts.slots() if slot.allocation_id is not None]


def second(engine: Engine, state_dir: Path) -> None:
    """Register this machine a second time, with separate slots and locks."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folders = {"state_dir": str(state_dir), "lock_dir": new_lock_dir(state_dir)}
    record = engine.hook.store.hosts.get("local")
    engine.hook.store.hosts.add(dataclasses.replace(record, name="other", pid_ns=None, **folders))
