"""Registers test hosts in a store."""

from __future__ import annotations

import sys
from typing import Protocol

from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from testbed.netns import NamespaceHosts
from testbed.netns.transport import ssh_to
from testbed.programs import install_programs


class Registered(Protocol):
    """An object with hosts and a hook."""

    @property
    def hosts(self) -> NamespaceHosts: ...

    @property
    def hook(self) -> DtrainHook: ...


def register(stage: Registered) -> None:
    """Register the hosts in the store under their own names."""
    for host in stage.hosts:
        install_programs(host.home)
        address = HostAddress(
            name=host.name, remote_dir=".dtrain", state_dir=None, python=sys.executable,
            make_transport=lambda host=host: ssh_to(host),
        )  # fmt: skip
        link = stage.hook.links.get(address)
        record = host_record_from_facts(
            host.name, pool="gpus", conn_id=host.name.replace("-", "_"), facts=link.call("probe").result(120),
            hello=link.hello, slots="cpu:2", remote_dir=".dtrain", python=sys.executable,
        )  # fmt: skip
        stage.hook.store.hosts.add(record)
    stage.hook.links.close_all()
