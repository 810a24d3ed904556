"""Engines for benchmarks: a private store, with this machine or namespace hosts registered in it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from testbed.netns import NamespaceHosts, missing

POOL = "bench"
LOG = logging.getLogger("bench")


class World:
    """One store with hosts of the pool ``bench``.

    :param home: folder for all files; becomes the home directory of this process
    """

    def __init__(self, home: Path) -> None:
        os.environ["HOME"] = str(home)
        # Without airflow.cfg, Airflow's SDK has no valid key.
        os.environ.setdefault("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
        self.home, self.runs = home, 0
        url = f"sqlite:///{home}/dtrain.db"
        os.environ["AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN"] = url
        options = dataclasses.replace(settings(), sql_alchemy_conn=url, checkpoint_dir=home / "checkpoints")
        self.hook = DtrainHook(options)
        (home / "code").mkdir()

    def add_this_machine(self, slots: int) -> None:
        """Register this machine with CPU slots, without the machine-wide slot locks."""
        state_dir = str(self.home / "state")
        address = HostAddress(
            name="local", remote_dir=".dtrain", state_dir=state_dir, lock_dir="none", python=sys.executable,
            make_transport=lambda: LocalTransport("local"),
        )  # fmt: skip
        self._add("local", address, slots, conn_id=None, state_dir=state_dir, lock_dir="none")

    def add_namespace_hosts(self, hosts: NamespaceHosts, slots: int) -> None:
        """Register namespace hosts, reached by SSH."""
        from airflow.sdk import Connection

        from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport, hook_from_connection

        for host in hosts:
            conn_id = host.name.lower().replace("-", "_")
            os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = host.airflow_conn()
            connection = Connection.get(conn_id)
            address = HostAddress(
                name=host.name, remote_dir=".dtrain", state_dir=None, python=sys.executable,
                make_transport=lambda name=host.name, connection=connection: SSHTransport(
                    name, lambda: hook_from_connection(connection)),
            )  # fmt: skip
            self._add(host.name, address, slots, conn_id=conn_id)

    def _add(self, name: str, address: HostAddress, slots: int, **more: Any) -> None:
        link = self.hook.links.get(address)
        facts = link.call("probe").result(30)
        record = host_record_from_facts(
            name, pool=POOL, facts=facts, hello=link.hello, slots=f"cpu:{slots}", remote_dir=".dtrain",
            python=sys.executable, **more,
        )  # fmt: skip
        self.hook.store.hosts.add(record)

    def submit(self, entrypoint: Any, *, slots: int, **more: Any) -> Ticket:
        """Submit a trial of the code in ``code``."""
        self.runs += 1
        document = {
            "name": "bench", "entrypoint": entrypoint, "model_dir": "code", "max_restarts": 0,
            "resources": {"slots_per_trial": slots, "pool": POOL}, **more,
        }  # fmt: skip
        key = TrialKey(dag_id="bench", run_id=str(self.runs), task_id="train")
        return submit(self.hook, render(self.hook, document, None, self.home), key=key, folder=self.home)

    async def follow(self, ticket: Ticket) -> tuple[Runtime, asyncio.Task[Any]]:
        """Return the follower of a trial and its running coroutine."""
        runtime = await take_over(self.hook, ticket.trial_id, TaskLog(LOG, 10**6), watcher="bench")
        return runtime, asyncio.create_task(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)))


def quiet() -> None:
    """Disable the logs of stores and engines."""
    logging.disable(logging.WARNING)


@contextlib.contextmanager
def world_of(hosts: int, ranks_per_host: int) -> Iterator[tuple[World, int, str]]:
    """Yield a world with namespace hosts, or with this machine if it has none, its slots, and words about its hosts."""
    is_local = missing() is not None
    count = 1 if is_local else hosts
    with contextlib.ExitStack() as stack:
        world = World(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="w"))))
        if is_local:
            world.add_this_machine(ranks_per_host)
        else:
            spaces = stack.enter_context(NamespaceHosts(count=count, slots=ranks_per_host))
            world.add_namespace_hosts(spaces, ranks_per_host)
        stack.callback(world.hook.links.close_all)
        yield world, count * ranks_per_host, f"{count} {'local host' if is_local else 'namespace hosts over SSH'}"
