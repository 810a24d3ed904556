"""Connections of type ``dtrain_slurm`` to the login node of a real cluster, as Airflow fetches and tests them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_dtrain.hooks.slurm import SlurmLoginHook
from testbed.netns import NamespaceHost, NamespaceHosts
from testbed.slurm.cluster import SlurmCluster

pytest_plugins = ["testbed.netns.plugin", "testbed.slurm.plugin"]
pytestmark = [pytest.mark.netns, pytest.mark.airflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def login(namespace_hosts: Callable[..., NamespaceHosts], slurm_clusters: Callable[..., SlurmCluster]) -> NamespaceHost:
    """The login node of a cluster, which is its first node too."""
    hosts = namespace_hosts(count=2, slots=2, shared_home=False)
    cluster = slurm_clusters(hosts=hosts)
    lines = (f"export {name}={value}\n" for name, value in cluster.environment.items())
    (hosts.host(0).home / ".bash_profile").write_text("".join(lines))
    return hosts.host(0)


def result_of(monkeypatch: pytest.MonkeyPatch, login: NamespaceHost, **extra: Any) -> tuple[bool, str]:
    document = json.loads(login.airflow_conn())
    document["extra"] = {**document["extra"], **extra}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({**document, "conn_type": "dtrain_slurm"}))
    return SlurmLoginHook("cluster").test_connection()


def test_a_connection_that_can_submit_jobs_names_cluster_and_partition(
    login: NamespaceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {"private_key": "", "private_key_passphrase": "", "account": "", "partition": "", "setup": ""}
    is_well, message = result_of(monkeypatch, login, **empty)
    assert is_well, message
    assert "cluster 'testbed', jobs in partition 'main'" in message


def test_a_connection_that_cannot_names_the_cause(login: NamespaceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    is_well, message = result_of(monkeypatch, login, partition="gpu")
    assert not is_well
    assert "no partition 'gpu'" in message
    is_well, message = result_of(monkeypatch, login, account="a b")
    assert not is_well
    assert "connection 'cluster'" in message
    is_well, message = result_of(monkeypatch, login, key_file="/nowhere")
    assert not is_well
    assert "/nowhere" in message or "refuses" in message
