"""Commands on the nodes of a job: environment, links, many streams at once, and several followers."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.job.byte_stream import relay_route
from airflow_provider_dtrain.hosts.job.job import Job, JobPolicy
from airflow_provider_dtrain.hosts.job.program import relay_argv
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.supervisor.serve.frames import WINDOW
from tests.support.channels import ECHO, PYTHON, drain, eventually, line_of
from tests.support.job_nodes import ADDRESS, JobNodes, job_nodes
from tests.support.supervisor_host import interpreters

#: Writes without end, and reports its progress on standard error.
FLOOD = "import os\nwhile True: os.write(1, b'x' * 65536)"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[JobNodes]:
    with job_nodes(
        tmp_path, count=3, environ={"PMI_RANK": "1", "PMIX_ID": "2", "SRUN_DEBUG": "3", "MODULE": "a"}
    ) as made:
        yield made


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("python", interpreters())
def test_a_link_installs_the_supervisor_and_follows_on_every_node(tmp_path: Path, python: str) -> None:
    with job_nodes(tmp_path, count=2, python=python) as nodes:
        job = nodes.job()
        for number in range(2):
            state_dir = str(tmp_path / f"state{number}")
            link = HostLink.connect(
                job.transport(f"n{number}", number), remote_dir="~/.dtrain", state_dir=state_dir, python=python
            )
            assert link.call("clock").result(20)["wall_s"] == pytest.approx(time.time(), abs=5)
            assert (nodes.home(number) / ".dtrain" / "supervisor").is_dir()
            link.close()


def test_commands_get_the_environment_without_slurm(nodes: JobNodes) -> None:
    job = nodes.job()
    for number in (0, 2):
        lines = job.transport("node", number).run(["env"]).stdout.decode().splitlines()
        names = {line.partition("=")[0] for line in lines}
        assert not {name for name in names if name.startswith(("SLURM", "PMI", "SRUN"))}
        assert {f"CUDA_VISIBLE_DEVICES={number}", "MODULE=a", f"HOME={nodes.home(number)}"} <= set(lines)


def test_no_argument_and_no_variable_of_the_nodes_has_the_key(nodes: JobNodes) -> None:
    job = nodes.job()
    eventually(lambda: len(job.hosts()) == len(nodes.processes))
    secret = nodes.identity.key.splitlines()[1].encode()
    for process in nodes.processes.values():
        for name in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{process.pid}/{name}").read_bytes()
        links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
        assert not [one for one in links if "memfd" in one]


def test_a_command_has_a_session_of_its_own(nodes: JobNodes) -> None:
    done = nodes.job().transport("node", 1).run([PYTHON, "-c", "import os; print(os.getsid(0) == os.getpid())"])
    assert done.stdout == b"True\n"


def test_a_command_outlives_its_channel_if_it_wants(nodes: JobNodes) -> None:
    transport = nodes.job().transport("node", 1)
    script = (
        "import sys; print('up', flush=True); sys.stdin.read(); open('read', 'w').close(); import time; time.sleep(60)"
    )
    channel = transport.open([PYTHON, "-c", f"import os; open('pid', 'w').write(str(os.getpid())); {script}"])
    assert line_of(channel) == b"up\n"
    channel.close()
    eventually(lambda: (nodes.home(1) / "read").exists())
    pid = int((nodes.home(1) / "pid").read_text())
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [0, 1])
def test_64_commands_run_at_once(nodes: JobNodes, number: int) -> None:
    transport = nodes.job().transport("node", number)
    channels = [transport.open([PYTHON, "-c", ECHO]) for _ in range(64)]
    for index, channel in enumerate(channels):
        channel.send(b"word %d\n" % index)
    assert [line_of(channel) for channel in channels] == [b"WORD %d\n" % index for index in range(64)]
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("number", [0, 1])
def test_bytes_arrive_unchanged_both_ways_at_once(nodes: JobNodes, number: int) -> None:
    transport = nodes.job().transport("node", number)
    content = os.urandom(1 << 20) * 40
    started_s = time.monotonic()
    channel = transport.open(["cat"])
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(lambda: (channel.send(content, timeout_s=60), channel.finish_input()))
        received = hashlib.sha256()
        while chunk := channel.receive(timeout_s=60):
            received.update(chunk)
        sent.result()
    print(f"{len(content) / 1e6 / (time.monotonic() - started_s):.0f} MB/s each way")
    assert received.digest() == hashlib.sha256(content).digest()
    assert channel.wait_exit(10) == 0


def test_a_stream_that_is_not_read_stalls_no_other_and_fills_no_memory(nodes: JobNodes) -> None:
    job = nodes.job()
    transports = [job.transport(f"node{number}", number) for number in range(2)]
    for transport in transports:
        transport.run(["true"])
    before = {number: rss_bytes(process.pid) for number, process in nodes.processes.items()}
    floods = [transport.open([PYTHON, "-c", FLOOD]) for transport in transports for _ in range(4)]
    # Input that the command does not read is no different.
    deaf = transports[1].open(["sleep", "1000"])
    with pytest.raises(HostUnreachableError, match="did not read everything"):
        deaf.send(b"x" * (4 * WINDOW), timeout_s=2)
    for transport in transports:
        assert transport.run(["cat"], stdin=b"y" * WINDOW, timeout_s=30).stdout == b"y" * WINDOW
    for number, process in nodes.processes.items():
        assert rss_bytes(process.pid) - before[number] < 30 << 20
    for flood in floods:
        assert flood.receive(timeout_s=5)
        flood.close()
    deaf.close()


def test_a_follower_that_reads_nothing_at_all_fills_no_memory(nodes: JobNodes) -> None:
    job = nodes.job()
    transport = job.transport("node", 1)
    channels = [transport.open([PYTHON, "-c", FLOOD]) for _ in range(16)]
    eventually(lambda: channels[-1].receive(timeout_s=5) is not None)
    before = {number: rss_bytes(process.pid) for number, process in nodes.processes.items()}
    time.sleep(1)
    for number, process in nodes.processes.items():
        assert rss_bytes(process.pid) - before[number] < 16 << 20
    for channel in channels:
        channel.close()


def test_two_followers_have_streams_of_their_own(nodes: JobNodes) -> None:
    first, second = nodes.job(), nodes.job()
    one, two = (
        first.transport("node", 1).open([PYTHON, "-c", ECHO]),
        second.transport("node", 1).open([PYTHON, "-c", ECHO]),
    )
    one.send(b"one\n")
    two.send(b"two\n")
    assert (line_of(one), line_of(two)) == (b"ONE\n", b"TWO\n")
    first.close()
    two.send(b"still\n")
    assert line_of(two) == b"STILL\n"
    assert drain(one) == b""
    two.close()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from airflow_provider_dtrain.hosts.job.byte_stream import tcp_routes
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.job.job import Job
identity = JobIdentity(certificate={certificate!r}, key={key!r})
job = Job({job_id!r}, identity, tcp_routes({address!r}, {ports!r}))
for number in range(2):
    channel = job.transport("node", number).open(["sh", "-c", "echo $$ > pid; cat; echo > ended"])
    channel.send(b"some input\\n")
    while not channel.receive(timeout_s=1): pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_commands_of_a_killed_follower_read_the_end_of_their_input(nodes: JobNodes) -> None:
    nodes.wait_listening()
    source = KILLED.format(
        root=str(Path.cwd()), certificate=nodes.identity.certificate, key=nodes.identity.key, job_id=nodes.job_id,
        address=ADDRESS, ports=nodes.ports,
    )  # fmt: skip
    follower = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"ready\n"
    follower.kill()
    follower.communicate()
    for number in range(2):
        eventually((nodes.home(number) / "ended").exists)
    assert nodes.job().transport("node", 1).run(["true"]).exit_code == 0


def test_a_program_that_cannot_be_executed_is_named(nodes: JobNodes) -> None:
    transport = nodes.job().transport("node", 1)
    (nodes.home(1) / "data").write_text("no program")
    assert transport.run(["./data"]).exit_code == 126
    assert transport.run(["./missing"]).stderr == b"./missing: No such file or directory\n"
    nodes.home(1).rename(nodes.folder / "moved")
    with pytest.raises(HostUnreachableError, match="has no home folder"):
        transport.run(["true"])


def test_a_node_without_descriptors_refuses_commands_and_recovers(tmp_path: Path) -> None:
    with job_nodes(tmp_path, prefix=("prlimit", "--nofile=40:40")) as nodes:
        job = nodes.job()
        transport = job.transport("node", 0)
        channels = []
        with pytest.raises(HostUnreachableError, match="Too many open files"):  # noqa: PT012
            while len(channels) < 40:
                channels.append(transport.open([PYTHON, "-c", ECHO]))
        # Neither a connected follower nor one that waits is harmed.
        channels[0].send(b"still\n")
        assert line_of(channels[0]) == b"STILL\n"
        for channel in channels:
            channel.close()
        assert nodes.job().transport("node", 0).run(["true"], timeout_s=20).exit_code == 0
        job.end()
        assert nodes.exit_code(0) == 0


@pytest.mark.parametrize("output", ["/dev/full", "&-"])
def test_a_job_whose_output_cannot_be_written_works(tmp_path: Path, output: str) -> None:
    with job_nodes(tmp_path, prefix=("sh", "-c", f'exec "$@" 2>{output}', "sh")) as nodes:
        job = Job(nodes.job_id, nodes.identity, nodes.routes())

        def is_connected() -> bool:
            try:
                return job.transport("node", 0).run(["sh", "-c", "echo noise >&2"]).stderr == b"noise\n"
            except HostUnreachableError:
                return False

        eventually(is_connected)
        job.set_policy(JobPolicy(orphan_timeout_s=60, on_warning=("sh", "-c", "echo noise; echo > asked")))
        nodes.signal(0, signal.SIGTERM)
        eventually((nodes.home(0) / "asked").exists)
        job.end()
        assert nodes.exit_code(0) == 0


def test_an_argument_may_be_long_but_not_endless(nodes: JobNodes) -> None:
    transport = nodes.job().transport("node", 1)
    assert transport.run(["echo", "x" * 100_000]).stdout == b"x" * 100_000 + b"\n"
    with pytest.raises(HostUnreachableError, match="longer than 1,048,576 bytes"):
        transport.run(["echo", "x" * 2_000_000])
    with pytest.raises(HostUnreachableError, match="cannot execute a command"):
        transport.run(["echo", "a\0b"])
    assert transport.run(["true"]).exit_code == 0


def test_the_connection_closes_with_the_last_transport_and_opens_again(nodes: JobNodes) -> None:
    job = nodes.job()
    first, second = job.transport("a", 0), job.transport("b", 1)
    first.run(["true"])
    connection = job.connection(time.monotonic() + 10)
    first.close()
    assert second.run(["true"]).exit_code == 0
    assert connection.is_alive
    second.close()
    assert not connection.is_alive
    with pytest.raises(HostUnreachableError, match="closed on this side"):
        second.run(["true"])
    assert job.transport("c", 2).run(["true"]).exit_code == 0


def test_input_arrives_although_the_connection_closes_at_once(nodes: JobNodes) -> None:
    content = b"z" * (WINDOW - 1)
    for number in range(2):
        transport = nodes.job().transport("node", number)
        channel = transport.open(["sh", "-c", "cat > written; mv written complete"])
        channel.send(content)
        transport.close()
        eventually((nodes.home(number) / "complete").exists)
        assert (nodes.home(number) / "complete").read_bytes() == content


def test_a_relay_carries_the_connection_behind_the_output_of_a_login_script(nodes: JobNodes) -> None:
    login = LocalTransport()
    # Like srun, grep passes on whole lines only.
    argv = [
        "sh",
        "-c",
        'echo Welcome; "$@" | grep --line-buffered ""',
        "sh",
        *relay_argv(sys.executable, nodes.identity, nodes.job_id),
    ]
    job = nodes.job(routes=[relay_route(login, argv)])
    content = os.urandom(1 << 20) * 8
    assert job.transport("node", 1).run(["cat"], stdin=content).stdout == content
    missing = relay_argv(sys.executable, nodes.identity, "1")
    with pytest.raises(HostUnreachableError, match="no process of the job listens"):
        nodes.job(routes=[relay_route(login, missing)]).transport("node", 0).run(["true"])
    job.end()
    assert [nodes.exit_code(number) for number in range(3)] == [0, 0, 0]


def test_a_command_of_a_node_that_has_not_connected_fails_in_time(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2) as nodes:
        transport = nodes.job().transport("node", 1)
        assert transport.run(["true"]).exit_code == 0
        with pytest.raises(HostUnreachableError, match="has not connected"):
            nodes.job().transport("gone", 7).run(["true"], timeout_s=0.5)
