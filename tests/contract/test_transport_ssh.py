"""Features of the SSH transport alone: connections, channels, keys, credentials, addresses."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.errors import (
    HostAuthError,
    HostKeyError,
    HostUnreachableError,
    NotFoundError,
    UserError,
)
from airflow_provider_dtrain.hosts.transport.registry import host_keys
from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport, fetch_host_key, hook_from_connection
from testbed.netns import NamespaceHost, NamespaceHosts
from testbed.netns.transport import connection, hook_to, ssh_to
from tests.support.channels import ECHO, PYTHON, drain, eventually, line_of
from tests.support.tcp_proxy import TcpProxy, copy, end

pytest_plugins = ["testbed.netns.plugin"]

#: A public key, made for these tests.
RSA = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDAnNv2j5OV/1Pqbk0eDBYkZR6PIFcruL5A+uu6JiqaJTRnGIySK0Gqs4imAWKJdyBf9ifyrB"
    "WJ86n2EdkDWgUJjaya2yo5o1Yd3oqhTtYKOVvj1uZzPckdQ7Q6VNuLhatEjn7Uyz/oKgAwqF1KSOfDDJ1zJSP9ZAOk60MeBPte3Q=="
)


@pytest.mark.netns
def test_one_connection_carries_all_commands(hosts: NamespaceHosts) -> None:
    transport = ssh_to(hosts.host(0))
    ports = {transport.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout for _ in range(3)}
    assert len(ports) == 1
    transport.close()


@pytest.mark.netns
def test_a_command_on_a_live_connection_does_not_wait_for_delayed_acknowledgements(hosts: NamespaceHosts) -> None:
    transport = ssh_to(hosts.host(0))
    channel = transport.open([PYTHON, "-c", ECHO])
    times = []
    for _ in range(20):
        started_s = time.monotonic()
        channel.send(b"ping\n")
        line_of(channel)
        times.append(time.monotonic() - started_s)
    transport.close()
    assert sorted(times)[10] < 0.03


@pytest.mark.netns
def test_a_lost_connection_is_made_again_by_the_next_command(hosts: NamespaceHosts) -> None:
    host = hosts.host(1)
    transport = ssh_to(host)
    channel = transport.open(["cat"])
    host.reboot()
    assert drain(channel) == b""
    assert channel.exit_code() is None
    assert transport.run(["hostname"]).stdout == b"ns-1\n"
    transport.close()


@pytest.mark.netns
def test_a_crash_under_a_command_is_an_unknown_end(hosts: NamespaceHosts) -> None:
    host = hosts.host(1)
    transport = ssh_to(host)
    transport.run(["true"])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(transport.run, ["sleep", "60"], timeout_s=30)
        eventually(lambda: ["sleep", "60"] in host.commands().values())
        host.crash()
        with pytest.raises(HostUnreachableError, match="was cut"):
            running.result(timeout=20)
    host.boot()
    host.await_sshd()
    transport.close()


@pytest.mark.netns
def test_a_partition_ends_operations_in_time(hosts: NamespaceHosts) -> None:
    host = hosts.host(2)
    transport = ssh_to(host)
    transport.run(["true"])
    host.partition()
    started_s = time.monotonic()
    with pytest.raises(HostUnreachableError):
        transport.run(["true"], timeout_s=1.0)
    with pytest.raises(HostUnreachableError, match="did not answer|no route to"):
        ssh_to(host, connect_timeout_s=0.5).run(["true"])
    assert time.monotonic() - started_s < 8
    host.heal()
    assert transport.run(["echo", "back"], timeout_s=20).stdout == b"back\n"
    transport.close()


@pytest.mark.netns
def test_more_commands_than_channels_wait_for_one(hosts: NamespaceHosts) -> None:
    transport = ssh_to(hosts.host(0), max_channels=1)
    channel = transport.open(["cat"])
    with pytest.raises(HostUnreachableError, match="All 1 channels"):
        transport.run(["true"], timeout_s=0.2)
    channel.close()
    assert transport.run(["echo", "free"]).stdout == b"free\n"
    transport.close()


@pytest.mark.netns
def test_the_limit_of_sessions_is_named(namespace_hosts: Callable[..., NamespaceHosts]) -> None:
    transport = ssh_to(namespace_hosts(count=1, max_sessions=1).host(0))
    channel = transport.open(["cat"])
    with pytest.raises(HostUnreachableError, match="MaxSessions"):
        transport.run(["true"], timeout_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.run, ["echo", "free"], timeout_s=20)
        channel.close()
        assert waiting.result(timeout=30).stdout == b"free\n"
    transport.close()


@pytest.mark.netns
def test_connections_dropped_by_maxstartups_are_tried_again(namespace_hosts: Callable[..., NamespaceHosts]) -> None:
    host = namespace_hosts(count=1, max_startups="2:100:2").host(0)
    transports = [ssh_to(host) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda one: one.run(["echo", "in"], timeout_s=30), transports))
    assert {one.stdout for one in done} == {b"in\n"}
    for transport in transports:
        transport.close()
    _test_the_drop_is_named(host)


def _test_the_drop_is_named(host: NamespaceHost) -> None:
    sockets = [socket.create_connection((host.address, 22)) for _ in range(2)]
    for sock in sockets:
        sock.recv(4)
    with pytest.raises(HostUnreachableError, match=r"closed \d+ SSH connections.*MaxStartups"):
        ssh_to(host).run(["true"], timeout_s=1.0)
    for sock in sockets:
        sock.close()


@pytest.mark.netns
def test_an_unknown_host_key_is_shown_and_a_pinned_one_accepted(hosts: NamespaceHosts) -> None:
    host = hosts.host(0)
    key = fetch_host_key(hook_to(host))
    assert key.line == host.host_key
    listed = subprocess.run(["ssh-keygen", "-l", "-f", host.folder / "host_key.pub"], capture_output=True, check=True)
    assert key.fingerprint == listed.stdout.decode().split()[1]
    with pytest.raises(HostKeyError, match=r"--accept-host-key") as raised:
        ssh_to(host, extra={"host_key": None}).run(["true"])
    assert key.fingerprint in str(raised.value)
    transport = ssh_to(host, extra={"host_key": None}, host_key=key.line)
    assert transport.run(["hostname"]).stdout == b"ns-0\n"
    transport.close()


@pytest.mark.netns
def test_a_changed_host_key_is_an_error_of_its_own(hosts: NamespaceHosts) -> None:
    host, other = hosts.host(0), hosts.host(1)
    with pytest.raises(HostKeyError, match="another key than before") as raised:
        ssh_to(host, extra={"host_key": None}, host_key=other.host_key).run(["true"])
    assert fetch_host_key(hook_to(host)).fingerprint in str(raised.value)
    transport = ssh_to(host, host_key=other.host_key)
    assert transport.run(["true"]).exit_code == 0, "the connection's own key wins over the pinned one"
    transport.close()


class InTurn(TcpProxy):
    """Machines behind one address, which a connection reaches in turn."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(22)
        self.addresses = addresses
        self.connections = 0

    def serve(self, client: socket.socket) -> None:
        address = self.addresses[self.connections % len(self.addresses)]
        self.connections += 1
        with client, socket.create_connection((address, self.server)) as server:
            back = threading.Thread(target=copy, args=(server, client), daemon=True)
            back.start()
            copy(client, server)
            for one in (client, server):
                end(one)
            back.join(timeout=10)


@pytest.fixture
def in_turn(hosts: NamespaceHosts) -> Iterator[InTurn]:
    """Two hosts behind one address."""
    with InTurn([hosts.host(number).address for number in (0, 1)]) as proxy:
        yield proxy


def behind(proxy: InTurn, host: NamespaceHost, host_key: str) -> SSHTransport:
    fetched = connection(host)
    fetched.host, fetched.port = "127.0.0.1", proxy.port
    fetched.extra_dejson["host_key"] = host_key
    fetched.extra = json.dumps(fetched.extra_dejson)
    return SSHTransport("login", lambda: hook_from_connection(fetched))


@pytest.mark.netns
def test_machines_behind_one_name_have_a_key_each(hosts: NamespaceHosts, in_turn: InTurn) -> None:
    keys = "\n".join(f"{hosts.host(number).host_key} of machine {number}" for number in (1, 0))
    transport = behind(in_turn, hosts.host(0), keys)
    assert transport.run(["hostname"]).stdout == b"ns-0\n"
    hosts.host(0).reboot()
    assert transport.run(["hostname"]).stdout == b"ns-1\n", "the next connection reaches the other machine"
    transport.close()
    assert in_turn.connections == 2


@pytest.mark.netns
def test_a_machine_behind_a_name_whose_key_is_not_listed_is_refused(hosts: NamespaceHosts, in_turn: InTurn) -> None:
    keys = f"{hosts.host(2).host_key}\n{hosts.host(1).host_key}"
    with pytest.raises(HostKeyError, match="another key than before"):
        behind(in_turn, hosts.host(0), keys).run(["true"])
    transport = behind(in_turn, hosts.host(0), keys)
    assert transport.run(["hostname"]).stdout == b"ns-1\n"
    transport.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rubbish", "'rubbish' is no host key of the form TYPE BASE64"),
        ("ssh-ed25519 ?", "is no host key"),
        (RSA, "must have one type, got ssh-ed25519 and ssh-rsa"),
    ],
    ids=["word", "no base64", "other type"],
)
def test_a_line_without_a_key_of_the_same_type_is_named(line: str, words: str) -> None:
    extra = {"host_key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDLBxYpOz3JBT0DmRZQYpPGPtgcr1xjCdLCLxo0UV5Cs\n{line}"}
    fetched = SimpleNamespace(
        conn_id="login",
        host="127.0.0.1",
        login="ann",
        port=22,
        password=None,
        extra=json.dumps(extra),
        extra_dejson=extra,
    )
    with pytest.raises(UserError, match=re.escape(words)):
        hook_from_connection(fetched)


@pytest.mark.netns
@pytest.mark.parametrize("setting", ["no_host_key_check", "allow_host_key_change"])
def test_a_connection_cannot_switch_the_check_of_the_key_off(hosts: NamespaceHosts, setting: str) -> None:
    host, other = hosts.host(0), hosts.host(1)
    unchecked = {"host_key": None, setting: True}
    with pytest.raises(HostKeyError, match="another key than before"):
        ssh_to(host, extra=unchecked, host_key=other.host_key).run(["true"])
    with pytest.raises(HostKeyError, match="--accept-host-key"):
        ssh_to(host, extra=unchecked).run(["true"])
    transport = ssh_to(host, extra=unchecked, host_key=host.host_key)
    assert transport.run(["hostname"]).stdout == b"ns-0\n"
    transport.close()


@pytest.mark.netns
def test_a_stored_key_that_is_none_is_named(hosts: NamespaceHosts) -> None:
    with pytest.raises(HostKeyError, match="cannot be read"):
        ssh_to(hosts.host(0), extra={"host_key": None}, host_key="ssh-ed25519 rubbish").run(["true"])


@pytest.mark.netns
def test_refused_credentials_are_named_with_what_was_tried(hosts: NamespaceHosts, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    with pytest.raises(HostAuthError, match="refused the login of user 'root' with key file"):
        ssh_to(hosts.host(0), extra={"key_file": str(stranger)}).run(["true"])
    with pytest.raises(HostAuthError, match="cannot be read on this machine"):
        ssh_to(hosts.host(0), extra={"key_file": str(tmp_path / "gone")}).run(["true"])


@pytest.mark.netns
def test_a_private_key_in_the_connection_works_and_is_masked(hosts: NamespaceHosts) -> None:
    from airflow.sdk._shared.secrets_masker import redact

    host = hosts.host(0)
    key = host.private_key.read_text()
    transport = ssh_to(host, extra={"key_file": None, "private_key": key})
    assert transport.run(["hostname"]).stdout == b"ns-0\n"
    secret = key.splitlines()[2]
    assert redact(f"a log line with {secret} inside") == "a log line with *** inside"
    transport.close()


@pytest.mark.netns
def test_a_private_key_that_is_none_is_the_users_error(hosts: NamespaceHosts) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        ssh_to(hosts.host(0), extra={"key_file": None, "private_key": "rubbish"}).run(["true"])


def test_refused_silent_and_unknown_addresses_have_words_of_their_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        free = socket.create_server(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        for address, number, words in (
            ("127.0.0.1", port, "refuses connections"),
            ("127.0.0.1", silent.getsockname()[1], "sent no data"),
            ("host.invalid", 22, "address is unknown"),
        ):
            fetched = SimpleNamespace(
                conn_id="c", host=address, login="u", port=number, password=None, extra=None, extra_dejson={}
            )
            transport = SSHTransport("gpu-01", lambda fetched=fetched: hook_from_connection(fetched))
            with pytest.raises(HostUnreachableError, match=words) as raised:
                transport.run(["true"], timeout_s=0.5)
            assert raised.value.host == "gpu-01"


def test_a_missing_connection_names_the_command_that_adds_it() -> None:
    with pytest.raises(NotFoundError, match="airflow connections add no_such_conn"):
        host_keys("no_such_conn")


@pytest.mark.netns
def test_a_connection_from_the_environment_is_found_by_its_id(
    hosts: NamespaceHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.host(0)
    monkeypatch.setenv("AIRFLOW_CONN_NS_0", host.airflow_conn())
    keys = host_keys("ns_0")
    assert keys is not None
    assert keys.fetch(20).line == host.host_key
