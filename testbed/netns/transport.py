"""Transports to test hosts, created as a trigger creates them from a fetched connection."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport, hook_from_connection
from testbed.netns.host import NamespaceHost

if TYPE_CHECKING:
    from airflow.providers.ssh.hooks.ssh import SSHHook


def connection(host: NamespaceHost, **extra: Any) -> SimpleNamespace:
    """Return an Airflow connection to a host, without extras that are None."""
    document = json.loads(host.airflow_conn(**extra))
    extra_dejson = {key: value for key, value in document["extra"].items() if value is not None}
    return SimpleNamespace(
        conn_id=host.name, host=document["host"], login=document["login"], port=document["port"], password=None,
        extra=json.dumps(extra_dejson), extra_dejson=extra_dejson,
    )  # fmt: skip


def hook_to(host: NamespaceHost, **extra: Any) -> SSHHook:
    """Return the hook of a connection to a host."""
    return hook_from_connection(connection(host, **extra))


def ssh_to(
    host: NamespaceHost, *, host_key: str | None = None, extra: dict[str, Any] | None = None, **options: Any
) -> SSHTransport:
    """Return a transport to a host, not connected yet."""
    fetched = connection(host, **(extra or {}))
    return SSHTransport(host.name, lambda: hook_from_connection(fetched), host_key=host_key, **options)
