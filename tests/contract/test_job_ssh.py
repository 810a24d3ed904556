"""A job on hosts behind a login node, which followers reach over SSH."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from airflow_provider_dtrain.errors import HostError, HostUnreachableError
from airflow_provider_dtrain.hosts.job.byte_stream import relay_route, ssh_routes
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.job.job import Job
from airflow_provider_dtrain.hosts.job.program import relay_argv, serve_argv, serve_input
from airflow_provider_dtrain.hosts.transport.base import Channel
from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport
from testbed.netns import NamespaceHosts
from testbed.netns.transport import ssh_to
from tests.support.channels import PYTHON, drain, eventually

pytest_plugins = ["testbed.netns.plugin"]
pytestmark = pytest.mark.netns


class RemoteJob:
    """A job with its first node on host 1 and another node on host 2. Host 0 is the login node."""

    def __init__(self, hosts: NamespaceHosts) -> None:
        self.hosts = hosts
        self.job_id, self.identity = "4711", JobIdentity.create()
        self.login, self.transports = ssh_to(hosts.host(0)), [ssh_to(hosts.host(1)), ssh_to(hosts.host(2))]
        self.channels = [self._serve(number) for number in range(2)]

    def _serve(self, number: int) -> Channel:
        variables = {
            "SLURM_JOB_ID": self.job_id, "SLURM_PROCID": number, "SLURM_NTASKS": 2,
            "SLURM_LAUNCH_NODE_IPADDR": self.hosts.host(1).address,
        }  # fmt: skip
        prefix = [f"{name}={value}" for name, value in variables.items()]
        channel = self.transports[number].open(["env", *prefix, *serve_argv(PYTHON)])
        channel.send(serve_input(self.identity, ports=self.identity.ports(), unattended_s=60, join_s=60))
        return channel

    def job(self, login: SSHTransport | None = None) -> Job:
        routes = ssh_routes(login or self.login, self.hosts.host(1).address, self.identity.ports())
        return Job(self.job_id, self.identity, routes)

    def close(self) -> None:
        with suppress(HostError):
            self.job().end(timeout_s=10)
        for one in (self.login, *self.transports):
            one.close()


@pytest.fixture
def remote(hosts: NamespaceHosts) -> Iterator[RemoteJob]:
    made = RemoteJob(hosts)
    eventually(lambda: b"listens at" in made.channels[0].errors())
    yield made
    made.close()


def test_commands_run_on_every_node_through_the_login_node(remote: RemoteJob) -> None:
    job = remote.job()
    content = os.urandom(1 << 20) * 8
    for number in range(2):
        transport = job.transport("node", number)
        assert transport.run(["hostname"]).stdout.decode().strip() == remote.hosts.host(number + 1).name
        assert transport.run(["cat"], stdin=content).stdout == content
    job.close()


def test_the_first_node_listens_at_one_address(remote: RemoteJob) -> None:
    listening = remote.transports[0].run(["ss", "-Hltn"]).stdout.decode().split()
    ports = {str(port) for port in remote.identity.ports()}
    assert [one for one in listening if one.rpartition(":")[2] in ports] == [
        one for one in listening if one.startswith(remote.hosts.host(1).address) and one.rpartition(":")[2] in ports
    ]
    assert any(one.rpartition(":")[2] in ports for one in listening)


def test_a_lost_connection_to_the_login_node_is_made_again(remote: RemoteJob) -> None:
    job = remote.job()
    transport = job.transport("node", 1)
    channel = transport.open(["cat"])
    remote.hosts.host(0).reboot()
    assert drain(channel) == b""
    assert transport.run(["echo", "again"], timeout_s=30).stdout == b"again\n"
    job.close()


@pytest.mark.nightly
def test_a_login_node_without_forwarding_is_named_and_a_relay_works(
    remote: RemoteJob, namespace_hosts: Callable[..., NamespaceHosts]
) -> None:
    # In place of srun, the relay runs on the first node itself.
    strict = ssh_to(namespace_hosts(count=1, sshd_extra="AllowTcpForwarding no").host(0))
    routes = ssh_routes(strict, remote.hosts.host(1).address, remote.identity.ports())
    with pytest.raises(HostUnreachableError, match="AllowTcpForwarding"):
        Job(remote.job_id, remote.identity, routes).transport("node", 0).run(["true"])
    relay = relay_route(remote.transports[0], relay_argv(PYTHON, remote.identity, remote.job_id))
    job = Job(remote.job_id, remote.identity, [*routes, relay])
    content = os.urandom(1 << 20) * 8
    assert job.transport("node", 1).run(["cat"], stdin=content).stdout == content
    assert job.route is relay
    job.close()
    strict.close()
