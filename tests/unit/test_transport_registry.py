"""The registry of transports: one module per type of Airflow connection."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.hosts.transport import registry
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport


def connection(kind: str) -> Any:
    return SimpleNamespace(conn_id="c", conn_type=kind)


def test_a_host_without_connection_is_this_machine_and_shows_no_key() -> None:
    assert isinstance(registry.transport_to("local", None, None), LocalTransport)
    assert not registry.needs_connection(None)
    assert registry.host_keys(None) is None


@pytest.mark.parametrize("conn_type", ["ssh", "dtrain_slurm"])
def test_connections_to_hosts_and_login_nodes_lead_to_ssh(conn_type: str) -> None:
    assert isinstance(registry.transport_to("gpu-01", connection(conn_type), None), SSHTransport)
    assert registry.needs_connection("c")


@pytest.mark.parametrize("kind", ["http", "", None])
def test_another_type_of_connection_is_refused_with_the_accepted_ones(kind: str) -> None:
    with pytest.raises(
        UserError, match=r"Airflow connection 'c' of a host must have one of the types ssh, dtrain_slurm, got"
    ):
        registry.transport_to("gpu-01", connection(kind), None)


def test_each_kind_has_what_the_protocol_names() -> None:
    for name in registry.MODULES.values():
        kind = importlib.import_module(name).KIND
        assert callable(kind.transport)
        assert callable(kind.host_keys)


def test_a_further_transport_is_a_module_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("transport_of_a_test")
    transport = LocalTransport("pod")
    vars(module)["KIND"] = SimpleNamespace(transport=lambda *_: transport, host_keys=lambda _: None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry.MODULES, "kubernetes", module.__name__)
    assert registry.transport_to("pod", connection("kubernetes"), None) is transport
