"""Two test hosts in the pool ``pair`` of an engine's store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hosts.channel.link_pool import HostAddress
from testbed.netns.transport import ssh_to
from testbed.programs import install_programs

if TYPE_CHECKING:
    import pytest

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from testbed.netns import NamespaceHosts


def register_pair(hook: DtrainHook, hosts: NamespaceHosts, monkeypatch: pytest.MonkeyPatch, *, slots: int = 2) -> None:
    """Register the first two test hosts with some CPU slots each, and set their connections."""
    for host in list(hosts)[:2]:
        install_programs(host.home)
        conn_id = host.name.replace("-", "_")
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", host.airflow_conn())
        address = HostAddress(
            name=host.name,
            remote_dir=".dtrain",
            state_dir=None,
            python=sys.executable,
            make_transport=lambda host=host: ssh_to(host),
        )
        link = hook.links.get(address)
        record = host_record_from_facts(
            host.name,
            pool="pair",
            conn_id=conn_id,
            facts=link.call("probe").result(60),
            hello=link.hello,
            slots=f"cpu:{slots}",
            remote_dir=".dtrain",
            state_dir=None,
            python=sys.executable,
        )
        hook.store.hosts.add(record)
