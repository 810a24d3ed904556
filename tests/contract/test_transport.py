"""Every transport keeps the same promises: a child process here, a command behind a real sshd."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
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
from airflow_provider_dtrain.hosts.local import LocalTransport
from airflow_provider_dtrain.hosts.ssh import SSHTransport, fetch_host_key, hook_from_connection, hook_from_id
from airflow_provider_dtrain.hosts.transport import Channel, Transport
from tests.netns import NamespaceHost, NamespaceHosts
from tests.netns.transport import ssh_to

pytest_plugins = ["tests.netns.plugin"]

PYTHON = sys.executable
ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.netns)])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    made: Transport
    if request.param == "local":
        made = LocalTransport(home=tmp_path)
    else:
        made = ssh_to(request.getfixturevalue("hosts").host(0))
    yield made
    made.close()


def drain(channel: Channel, timeout_s: float = 20.0) -> bytes:
    output, deadline = b"", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        chunk = channel.receive(timeout_s=1.0)
        if chunk == b"":
            return output
        output += chunk or b""
    raise AssertionError(f"no end of output, so far {output!r}")


def line_of(channel: Channel) -> bytes:
    output, deadline = b"", time.monotonic() + 20
    while not output.endswith(b"\n"):
        assert time.monotonic() < deadline
        output += channel.receive(timeout_s=1.0) or b""
    return output


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_command_returns_its_output_errors_and_exit_status(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "cat; echo problem >&2; exit 7"], stdin=b"given")
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"given", b"problem\n")


def test_a_missing_program_is_exit_status_127(transport: Transport) -> None:
    assert transport.run(["no-such-program-here"]).exit_code == 127
    channel = transport.open(["no-such-program-here"])
    assert drain(channel) == b""
    eventually(lambda: channel.exit_code() == 127)
    assert b"no-such-program-here" in channel.errors()


def test_no_argument_is_read_by_a_shell(transport: Transport) -> None:
    nasty = ["$HOME", "a b", "'quoted'", '"', "", "*", "; exit 3", "new\nline", "`id`", "\\", "ümläut"]
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert json.loads(transport.run([PYTHON, "-c", program, *nasty]).stdout) == nasty


def test_commands_start_in_the_home_directory(transport: Transport) -> None:
    done = transport.run(["sh", "-c", 'test "$(pwd -P)" = "$(cd "$HOME" && pwd -P)"'])
    assert done.exit_code == 0


def test_a_megabyte_each_way_arrives_unchanged(transport: Transport) -> None:
    content = os.urandom(3_000_000)
    assert transport.run(["cat"], stdin=content).stdout == content


def test_input_that_nobody_reads_blocks_nothing(transport: Transport) -> None:
    done = transport.run(["sh", "-c", "echo early"], stdin=b"x" * 3_000_000, timeout_s=20)
    assert (done.exit_code, done.stdout) == (0, b"early\n")


def test_a_flood_of_errors_does_not_stop_the_output(transport: Transport) -> None:
    flood = "import sys\nfor i in range(40): sys.stderr.write('e' * 100_000)\nprint('done')\nsys.stderr.write('last')"
    done = transport.run([PYTHON, "-c", flood], timeout_s=30)
    assert done.stdout == b"done\n"
    assert done.stderr.endswith(b"last")
    assert len(done.stderr) <= 64 * 1024


def test_a_command_past_its_deadline_is_an_error_in_time(transport: Transport) -> None:
    started_s = time.monotonic()
    with pytest.raises(HostUnreachableError, match="had not ended"):
        transport.run(["sleep", "30"], timeout_s=0.5)
    assert time.monotonic() - started_s < 5


def test_a_channel_answers_line_by_line(transport: Transport) -> None:
    channel = transport.open([PYTHON, "-c", ECHO])
    assert channel.receive(timeout_s=0.01) is None
    assert channel.exit_code() is None
    for word in (b"one", b"two"):
        channel.send(word + b"\n")
        assert line_of(channel) == word.upper() + b"\n"
    channel.close()
    channel.close()
    with pytest.raises(HostUnreachableError, match="takes no more input"):
        channel.send(b"x" * 10_000_000)
    assert channel.receive(timeout_s=1) == b""


def test_closing_a_channel_wakes_its_reader(transport: Transport) -> None:
    channel = transport.open(["cat"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive, timeout_s=30)
        started_s = time.monotonic()
        channel.close()
        assert waiting.result(timeout=10) == b""
    assert time.monotonic() - started_s < 5


def test_a_closed_channel_ends_the_input_of_its_command(transport: Transport) -> None:
    script = "import sys; sys.stdin.read(); open('ended', 'w').close()"
    channel = transport.open([PYTHON, "-c", "print('up', flush=True);" + script])
    assert line_of(channel) == b"up\n"
    channel.close()
    eventually(lambda: transport.run(["test", "-e", "ended"]).exit_code == 0)


def test_many_threads_share_a_transport(transport: Transport) -> None:
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda i: transport.run(["sh", "-c", f"cat; echo {i}"], stdin=b"in "), range(32)))
    assert [one.stdout for one in done] == [f"in {i}\n".encode() for i in range(32)]


def test_a_closed_transport_ends_its_channels(transport: Transport) -> None:
    channel = transport.open(["cat"])
    transport.close()
    transport.close()
    assert drain(channel) == b""


def test_a_local_command_survives_a_signal_to_our_process_group(tmp_path: Path) -> None:
    transport = LocalTransport(home=tmp_path)
    channel = transport.open([PYTHON, "-c", "import os; print(os.getsid(0) == os.getpid(), flush=True); input()"])
    assert line_of(channel) == b"True\n"
    transport.close()


def test_a_local_command_sees_no_credentials_of_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SECRET", "ssh://user:hunter2@host")
    done = LocalTransport(home=tmp_path, env={"LD_LIBRARY_PATH": "/usr/lib/cuda"}).run(["env"])
    assert b"hunter2" not in done.stdout
    assert b"LD_LIBRARY_PATH=/usr/lib/cuda" in done.stdout


def test_a_local_command_past_its_deadline_is_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachableError):
        LocalTransport(home=tmp_path).run(["sh", "-c", f"sleep 98765 & echo $! > {tmp_path}/pid; wait"], timeout_s=1)
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "(sleep) Z" in Path(f"/proc/{pid}/stat").read_text())


def test_a_missing_home_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachableError, match="no home folder"):
        LocalTransport(home=tmp_path / "gone").run(["true"])


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
        eventually(lambda: b"sleep" in b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in host.pids()))
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
    with pytest.raises(HostUnreachableError, match="did not answer|no way to"):
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
    with pytest.raises(HostUnreachableError, match=r"hung up on \d+ SSH connections.*MaxStartups"):
        ssh_to(host).run(["true"], timeout_s=1.0)
    for sock in sockets:
        sock.close()


@pytest.mark.netns
def test_an_unknown_host_key_is_shown_and_a_pinned_one_accepted(hosts: NamespaceHosts) -> None:
    host = hosts.host(0)
    key = fetch_host_key(host.address, 22, 10)
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
    assert fetch_host_key(host.address).fingerprint in str(raised.value)
    transport = ssh_to(host, host_key=other.host_key)
    assert transport.run(["true"]).exit_code == 0, "the connection's own key wins over the pinned one"
    transport.close()


@pytest.mark.netns
def test_a_stored_key_that_is_none_is_named(hosts: NamespaceHosts) -> None:
    with pytest.raises(HostKeyError, match="cannot be read"):
        ssh_to(hosts.host(0), extra={"host_key": None}, host_key="ssh-ed25519 rubbish").run(["true"])


@pytest.mark.netns
def test_refused_credentials_are_named_with_what_was_tried(hosts: NamespaceHosts, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    with pytest.raises(HostAuthError, match="did not let user 'root' in; tried: key file"):
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
            ("127.0.0.1", silent.getsockname()[1], "said nothing"),
            ("host.invalid", 22, "address is unknown"),
        ):
            fetched = SimpleNamespace(
                conn_id="c", host=address, login="u", port=number, password=None, extra=None, extra_dejson={}
            )
            transport = SSHTransport("gpu-01", lambda fetched=fetched: hook_from_connection(fetched))
            with pytest.raises(HostUnreachableError, match=words) as raised:
                transport.run(["true"], timeout_s=0.5)
            assert raised.value.host == "gpu-01"


def test_a_missing_connection_names_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="airflow connections add no_such_conn"):
        hook_from_id("no_such_conn")
    with pytest.raises(NotFoundError):
        SSHTransport("gpu-01", lambda: hook_from_id("no_such_conn")).run(["true"])


@pytest.mark.netns
def test_a_connection_from_the_environment_is_found_by_its_id(
    hosts: NamespaceHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.host(0)
    monkeypatch.setenv("AIRFLOW_CONN_NS_0", host.airflow_conn())
    transport = SSHTransport("ns-0", lambda: hook_from_id("ns_0"))
    assert transport.run(["hostname"]).stdout == b"ns-0\n"
    transport.close()


def descriptors() -> set[str]:
    names = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.add(os.readlink(f"/proc/self/fd/{name}"))
    return names


def test_a_forked_child_lets_go_of_channels_and_the_parent_keeps_them(transport: Transport) -> None:
    channel = transport.open([PYTHON, "-c", ECHO])
    channel.send(b"before\n")
    assert line_of(channel) == b"BEFORE\n"
    ours = {one for one in descriptors() if one.startswith("socket:")}
    child = os.fork()
    if child == 0:
        os._exit(0 if len(ours & descriptors()) < len(ours) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    channel.send(b"after\n")
    assert line_of(channel) == b"AFTER\n"
    channel.close()
