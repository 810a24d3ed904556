"""Every transport keeps the same promises: a child process here, a command behind a real sshd or on a job's node."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_dtrain.errors import (
    HostUnreachableError,
)
from airflow_provider_dtrain.hosts.transport.base import Transport
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from testbed.netns.transport import ssh_to
from tests.support.channels import ECHO, PYTHON, drain, eventually, line_of
from tests.support.job_nodes import job_nodes

pytest_plugins = ["testbed.netns.plugin"]


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.netns), "first node", "other node"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    made: Transport
    if request.param.endswith("node"):
        with job_nodes(tmp_path, count=2) as nodes:
            made = nodes.job().transport("node", 0 if request.param == "first node" else 1)
            yield made
            made.close()
        return
    if request.param == "local":
        made = LocalTransport(home=tmp_path)
    else:
        made = ssh_to(request.getfixturevalue("hosts").host(0))
    yield made
    made.close()


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
    with pytest.raises(HostUnreachableError, match="does not accept further input"):
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
