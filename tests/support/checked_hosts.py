"""Test hosts that host checks measure: registered in a store, each in a cgroup whose CPU time can be limited."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.host_rates import by_host, findings
from airflow_provider_dtrain.engine.attempt.host_rates import Measured
from airflow_provider_dtrain.engine.operations.host_rates import check_hosts
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from testbed.netns import NamespaceHosts
from testbed.netns.host import NamespaceHost
from testbed.netns.network import command
from tests.support.registered_hosts import register

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
#: Weight of a host against one other process of this machine, which has 1024.
SHARES = 100 * 1024


def _mount_cgroups(host: NamespaceHost) -> None:
    """Let a host see the cgroups, as a machine does: ``ip netns exec`` has mounted a new /sys over them."""
    script = (
        "mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu && mount -t cgroup -o cpu cgroup "
        "/sys/fs/cgroup/cpu"
    )
    command("nsenter", "-t", str(host.init_pid), "-m", "sh", "-c", script)


class CheckedHosts:
    """Hosts in pool ``gpus``, with two CPU slots each, and a store.

    :param patch: sets the connections to the hosts
    """

    def __init__(self, hosts: NamespaceHosts, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.hosts = hosts
        self.hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=f"sqlite:///{folder}/dtrain.db"))
        self.hook.migrate_store()
        self.groups: dict[str, Path] = {}
        for host in hosts:
            patch.setenv(f"AIRFLOW_CONN_{host.name.replace('-', '_').upper()}", host.airflow_conn())
            self.groups[host.name] = group = CPU_GROUPS / f"dtrain-test-{os.getpid()}-{host.name}"
            if CPU_GROUPS.is_dir():
                group.mkdir(exist_ok=True)
                # On a busy machine a limit must be lower than what the other processes leave to the host.
                (group / "cpu.shares").write_text(str(SHARES))
                (group / "cgroup.procs").write_text(str(host.init_pid))
                _mount_cgroups(host)
        register(self)

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]

    def host(self, name: str) -> NamespaceHost:
        return next(host for host in self.hosts if host.name == name)

    def limit_cpu(self, name: str, share: float | None) -> None:
        """Let a host use a share of each CPU, None for all."""
        cpus = len(os.sched_getaffinity(0))
        quota = -1 if share is None else int(100_000 * share * cpus)
        (self.groups[name] / "cpu.cfs_quota_us").write_text(str(quota))

    def check(self, names: Sequence[str] | None = None, **options: Any) -> Measured:
        records = [self.hook.store.hosts.get(name) for name in names or self.names]
        return check_hosts(self.hook, records, by="test", **options)

    def named(self, found: Measured) -> dict[str, list[str]]:
        return by_host(findings(found.rates, found.slow))

    def held(self) -> list[Any]:
        return [slot for slot in self.hook.store.hosts.slots() if slot.allocation_id is not None]

    def close(self) -> None:
        self.hook.links.close_all()
        self.hosts.close()
        for group in self.groups.values():
            if group.is_dir():
                group.rmdir()
