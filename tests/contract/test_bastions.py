"""Hosts behind bastions: real sshd on both, a real ssh as the proxy, and no route to the host itself."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_dtrain.errors import HostUnreachableError, UserError
from airflow_provider_dtrain.hosts.transport.proxy import apply_ways
from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport, fetch_host_key, hook_from_connection
from testbed.netns import NamespaceHost, NamespaceHosts
from testbed.netns.transport import hook_to, ssh_to
from tests.support.supervisor_host import until

pytest_plugins = ["testbed.netns.plugin"]

#: Start of the command for proxy_jump.
JUMP = "ssh -o BatchMode=yes -o ServerAliveInterval=15 -W"


@pytest.fixture(scope="module")
def machines(namespace_hosts: Callable[..., NamespaceHosts]) -> Iterator[NamespaceHosts]:
    """Two bastions, and a host to which this machine has no route."""
    made = namespace_hosts(count=3)
    route = ["unreachable", f"{made.host(2).address}/32"]
    subprocess.run(["ip", "route", "add", *route], check=True)
    yield made
    subprocess.run(["ip", "route", "del", *route], check=True)


@pytest.fixture
def account(machines: NamespaceHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home of the account that runs Airflow, which knows the keys of the bastions, and not that of the host."""
    return new_account([machines.host(0), machines.host(1)], tmp_path, monkeypatch)


def new_account(bastions: list[NamespaceHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of an account that knows the keys of bastions.

    ssh finds the home of its user in /etc/passwd, so a wrapper passes these files to it.
    """
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "known_hosts").write_text("".join(f"{one.address} {one.host_key}\n" for one in bastions))
    (folder / "config").write_text(f"UserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n")
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return tmp_path


def proxies() -> list[psutil.Process]:
    """Return the living proxy commands of this process."""
    return [one for one in psutil.Process().children(recursive=True) if is_proxy(one)]


def is_proxy(process: psutil.Process) -> bool:
    try:
        return process.name() in ("ssh", "nc") and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # It has ended since the list was read.
        return False


def hostname(transport: SSHTransport) -> str:
    try:
        return transport.run(["hostname"], timeout_s=30).stdout.decode().strip()
    finally:
        transport.close()


@pytest.mark.netns
@pytest.mark.parametrize("hops", [(0,), (0, 1)])
def test_proxy_jump_of_the_connection_leads_through_bastions(
    machines: NamespaceHosts, account: Path, hops: tuple[int, ...]
) -> None:
    jump = ",".join(f"root@{machines.host(number).address}:22" for number in hops)
    if len(hops) > 1:
        # ssh takes no key of the command line for the first of several bastions.
        with (account / ".ssh" / "config").open("a") as config:
            config.write(f"IdentityFile {machines.host(0).private_key}\n")
    assert hostname(ssh_to(machines.host(2), extra={"proxy_jump": jump})) == "ns-2"
    until(lambda: proxies() == [], "the end of the proxies")
    assert [one for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE] == []


@pytest.mark.netns
def test_host_proxy_cmd_of_the_connection_gets_address_port_and_user(machines: NamespaceHosts, account: Path) -> None:
    bastion = machines.host(0)
    command = (
        f"sh -c 'echo %r 100%% >>{account}/used; exec ssh -i {bastion.private_key} -W %h:%p root@{bastion.address}'"
    )
    assert hostname(ssh_to(machines.host(2), extra={"host_proxy_cmd": command, "proxy_jump": "me@nowhere"})) == "ns-2"
    assert (account / "used").read_text() == "root 100%\n"


@pytest.mark.netns
@pytest.mark.parametrize("way", ["ProxyJump root@{bastion}", "ProxyCommand ssh -W %h:%p root@{bastion}"])
def test_the_file_of_ssh_names_address_user_port_key_and_proxy(
    machines: NamespaceHosts, account: Path, way: str
) -> None:
    bastion, inner = machines.host(0), machines.host(2)
    with (account / ".ssh" / "config").open("a") as config:
        config.write(
            f"IdentityFile {bastion.private_key}\nHost inner\n HostName {inner.address}\n User root\n Port 22\n"
        )
        config.write(f" {way.format(bastion=bastion.address)}\nHost {inner.address}\n ProxyCommand false\n")
    connection = SimpleNamespace(
        conn_id="inner", host="inner", login=None, port=None, password=None, extra="{}",
        extra_dejson={"host_key": inner.host_key},
    )  # fmt: skip
    assert hostname(SSHTransport("inner", lambda: hook_from_connection(connection))) == "ns-2"


@pytest.mark.netns
def test_a_key_is_fetched_through_the_bastion_before_a_login(machines: NamespaceHosts, account: Path) -> None:
    bastion, inner = machines.host(0), machines.host(2)
    hook = hook_to(inner, host_key=None, proxy_jump=f"root@{bastion.address}")
    assert fetch_host_key(hook, 20).line == inner.host_key
    transport = ssh_to(
        inner, host_key=inner.host_key, extra={"host_key": None, "proxy_jump": f"root@{bastion.address}"}
    )
    assert hostname(transport) == "ns-2"


@pytest.mark.netns
def test_what_the_bastion_says_is_part_of_the_error(machines: NamespaceHosts, account: Path) -> None:
    bastion, inner = machines.host(0), machines.host(2)

    def error(**extra: Any) -> str:
        with pytest.raises(HostUnreachableError) as raised:
            ssh_to(inner, extra=extra).run(["true"], timeout_s=10)
        assert raised.value.host == "ns-2"
        return str(raised.value)

    jump = f"root@{bastion.address}"
    assert "Permission denied" in error(proxy_jump=f"stranger@{bastion.address}")
    said = error(proxy_jump=f"root@{inner.address}")
    assert "its proxy command ended: ssh: connect to host" in said
    assert f"Try it on this machine, as the account that runs Airflow: {JUMP} {inner.address}:22 -i" in said
    assert "no-such-program" in error(host_proxy_cmd="no-such-program --password=secret %h")
    assert "secret" not in error(host_proxy_cmd="false --password=secret")
    with pytest.raises(HostUnreachableError, match="its proxy command sent nothing in time"):
        ssh_to(inner, extra={"host_proxy_cmd": "sleep 1000"}).run(["true"], timeout_s=1)
    (account / ".ssh" / "known_hosts").write_text("")
    assert "Host key verification failed" in error(proxy_jump=jump)


@pytest.mark.netns
def test_a_proxy_that_dies_ends_the_command_and_the_next_one_connects_anew(
    machines: NamespaceHosts, account: Path
) -> None:
    transport = ssh_to(machines.host(2), extra={"proxy_jump": f"root@{machines.host(0).address}"})
    channel = transport.open(["cat"])
    begun = time.monotonic()
    for proxy in proxies():
        os.kill(proxy.pid, signal.SIGKILL)
    assert channel.receive(timeout_s=20) == b""
    assert time.monotonic() - begun < 10
    assert hostname(transport) == "ns-2"


#: Each connection after the tenth that is not authenticated is dropped, not only some.
DROPS = {"max_startups": "10:100:10", "sshd_extra": "LogLevel VERBOSE"}


@pytest.mark.netns
@pytest.mark.parametrize("count", [24, pytest.param(128, marks=pytest.mark.nightly)])
def test_no_connection_is_refused_however_many_hosts_are_behind_a_bastion(
    namespace_hosts: Callable[..., NamespaceHosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    # Hosts are as many connections to two of them: the bastion sees the same, and the test ends in seconds.
    made = namespace_hosts(count=3, **DROPS)
    bastion, *inner = made
    new_account([bastion], tmp_path, monkeypatch)
    jump = f"root@{bastion.address}"
    transports = [
        ssh_to(inner[number % 2], extra={"proxy_jump": jump}, connect_timeout_s=100) for number in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        assert set(pool.map(lambda one: one.run(["true"], timeout_s=100).exit_code, transports)) == {0}
    for transport in transports:
        transport.close()
    assert (bastion.folder / "sshd.log").read_text().count("drop connection #") == 0


def unauthenticated(machine: NamespaceHost) -> socket.socket:
    """Return a connection that sshd has accepted, and that never logs in."""
    found: list[socket.socket] = []

    def is_accepted() -> bool:
        # sshd may still count the connection that waited for its start.
        found.append(socket.create_connection((machine.address, 22), timeout=10))
        return found[-1].recv(4) == b"SSH-"

    until(is_accepted, "a connection that sshd accepts")
    return found[-1]


@pytest.mark.netns
@pytest.mark.parametrize("full", ["bastion", "host"])
def test_a_connection_that_a_bastion_or_its_host_drops_is_tried_again(
    namespace_hosts: Callable[..., NamespaceHosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    made = namespace_hosts(count=2, max_startups="1:100:1", sshd_extra="LogLevel VERBOSE")
    bastion, inner = made
    new_account([bastion], tmp_path, monkeypatch)
    extra = {"proxy_jump": f"root@{bastion.address}"}
    machine = bastion if full == "bastion" else inner

    def drops() -> int:
        return (machine.folder / "sshd.log").read_text().count("drop connection #")

    with unauthenticated(machine) as blocker:
        with pytest.raises(HostUnreachableError, match=r"or its bastion closed \d+ SSH connections.*MaxStartups"):
            ssh_to(inner, extra=extra).run(["true"], timeout_s=2)
        before = drops()
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(hostname, ssh_to(inner, extra=extra))
            key = pool.submit(fetch_host_key, hook_to(inner, **extra), 30)
            until(lambda: drops() > before + 1, "a dropped connection of each")
            blocker.close()
            assert (waiting.result(), key.result().line) == ("ns-1", inner.host_key)


def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, **fields: Any) -> Any:
    """Return a hook for the host ``gpu`` with the ways that this file and this connection name."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(config)
    monkeypatch.setenv("HOME", str(tmp_path))
    extra = fields.pop("extra", {})
    connection = SimpleNamespace(login=fields.get("username"), port=fields.get("port"), extra_dejson=extra)
    hook = SimpleNamespace(
        **{"remote_host": "gpu", "username": "me", "port": 22, "key_file": None, "host_proxy_cmd": None, **fields}
    )
    apply_ways(hook, connection)  # type: ignore[arg-type]
    return hook


@pytest.mark.parametrize(
    ("config", "fields", "expected"),
    [
        ("", {}, None),
        ("Host gpu\n ProxyJump gate\n", {}, f"{JUMP} gpu:22 ssh://gate"),
        ("Host gpu\n ProxyJump none\n", {}, None),
        ("Host gpu\n ProxyJump a,b@c:7,ssh://d\n", {}, f"{JUMP} gpu:22 -J ssh://a,ssh://b@c:7 ssh://d"),
        ("Host gpu\n ProxyJump gate\n", {"extra": {"proxy_jump": "none"}}, None),
        ("Host gpu\n ProxyJump gate\n", {"extra": {"host_proxy_cmd": "none"}}, None),
        ("Host gpu\n ProxyJump gate\n", {"extra": {"proxy_jump": "x"}, "key_file": "/k y"}, f"{JUMP} gpu:22 -i '/k y' ssh://x"),
        ("Host gpu\n HostName fe80::1\n ProxyJump gate\n", {"port": 2222}, f"{JUMP} '[fe80::1]:2222' ssh://gate"),
        ("Host gpu\n Port 9\n User u\n", {"extra": {"host_proxy_cmd": "nc %r %h %p %%"}}, "nc u gpu 9 %"),
        ("Host gpu\n Port 9\n User u\n", {"extra": {"host_proxy_cmd": "n %r %p"}, "username": "x", "port": 8}, "n x 8"),
    ],
)  # fmt: skip
def test_the_proxy_is_the_one_that_ssh_would_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, fields: dict[str, Any], expected: str | None
) -> None:
    assert ways(tmp_path, monkeypatch, config, **fields).host_proxy_cmd == expected


@pytest.mark.parametrize("jump", ["-oProxyCommand=touch /tmp/x", "a b", "a,", "x@", "x@-l", "a/b"])
def test_a_jump_that_ssh_could_take_for_an_option_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    with pytest.raises(UserError, match=re.escape("proxy_jump must be [user@]host[:port]")):
        ways(tmp_path, monkeypatch, "", extra={"proxy_jump": jump})
