"""Lifetime of the processes of a job: policies, warnings, lost nodes, and the end."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from queue import Queue
from subprocess import TimeoutExpired

import pytest

from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hosts.job.connection import JobEvents
from airflow_provider_dtrain.hosts.job.job import Job, JobPolicy, Jobs
from tests.support.channels import drain, eventually
from tests.support.job_nodes import JobNodes, job_nodes

#: Exit codes of the program: ended by a follower, without a follower, without the first node.
ENDED, ORPHANED, DISCONNECTED = 0, 3, 4
NOTE = ("sh", "-c", "echo asked >> asked; pwd >> asked")


def watched() -> tuple[JobEvents, Queue[tuple[int, str]], Queue[int]]:
    warnings: Queue[tuple[int, str]] = Queue()
    lost: Queue[int] = Queue()
    return JobEvents(on_warning=lambda node, cause: warnings.put((node, cause)), on_lost=lost.put), warnings, lost


def asked(nodes: JobNodes, number: int) -> int:
    path = nodes.home(number) / "asked"
    return path.read_text().count("asked\n") if path.exists() else 0


def connected(nodes: JobNodes, **options: object) -> Job:
    """Return a connected user of the job, with all nodes. It stays connected until it is closed."""
    job = nodes.job(**options)  # type: ignore[arg-type]
    job.transport("watched", 0)
    eventually(lambda: len(job.hosts()) == nodes.count)
    return job


def test_a_job_that_no_follower_uses_ends_itself(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2, unattended_s=1.0) as nodes:
        assert [nodes.exit_code(number) for number in range(2)] == [ORPHANED, ENDED]
        assert "no follower for 1 s" in nodes.output(0)


def test_a_follower_that_only_stays_connected_keeps_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.hosts.job.connection.JOB_PING_S", 0.2)
    with job_nodes(tmp_path, unattended_s=2.0) as nodes:
        transport = nodes.job().transport("node", 0)
        transport.run(["true"])
        with pytest.raises(TimeoutExpired):
            nodes.exit_code(0, timeout_s=5.0)
        transport.close()
        assert nodes.exit_code(0) == ORPHANED


def test_a_policy_replaces_the_limit_of_an_unused_job(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2, unattended_s=1.5) as nodes:
        nodes.job(policy=JobPolicy(orphan_timeout_s=60.0)).hosts()
        with pytest.raises(TimeoutExpired):
            nodes.exit_code(0, timeout_s=4.0)
        # A request without a transport leaves no connection that keeps the job.
        nodes.job().set_policy(JobPolicy(orphan_timeout_s=0.5))
        assert [nodes.exit_code(number) for number in range(2)] == [ORPHANED, ENDED]


def test_the_end_of_a_job_ends_all_nodes(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=3) as nodes:
        connected(nodes).end()
        assert [nodes.exit_code(number) for number in range(3)] == [ENDED] * 3


@pytest.mark.parametrize(("which", "cause"), [(signal.SIGURG, "URG"), (signal.SIGTERM, "TERM")])
def test_a_signal_of_slurm_warns_every_follower_and_asks_the_ranks(
    tmp_path: Path, which: signal.Signals, cause: str
) -> None:
    with job_nodes(tmp_path, count=2) as nodes:
        events, warnings, _ = watched()
        job = connected(nodes, events=events)
        job.set_policy(JobPolicy(orphan_timeout_s=60.0, on_warning=NOTE))
        for number in range(2):
            nodes.signal(number, which)
        assert {warnings.get(timeout=10), warnings.get(timeout=10)} == {(0, cause), (1, cause)}
        for number in range(2):
            eventually(lambda number=number: asked(nodes, number) == 1)  # type: ignore[misc]
            assert str(nodes.home(number)) in (nodes.home(number) / "asked").read_text()
        # A later follower gets the warnings too, and the job lives on.
        events, warnings, _ = watched()
        assert connected(nodes, events=events).transport("node", 1).run(["true"]).exit_code == 0
        assert {warnings.get(timeout=10), warnings.get(timeout=10)} == {(0, cause), (1, cause)}


def test_a_warning_asks_the_ranks_although_no_follower_is_there(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2) as nodes:
        job = connected(nodes)
        job.set_policy(JobPolicy(orphan_timeout_s=60.0, warn_at=time.time() + 1.5, on_warning=NOTE))
        job.close()
        for number in range(2):
            eventually(lambda number=number: asked(nodes, number) == 1)  # type: ignore[misc]
        events, warnings, _ = watched()
        later = connected(nodes, events=events)
        assert {warnings.get(timeout=10), warnings.get(timeout=10)} == {(0, "time"), (1, "time")}
        # The same time again is the same warning.
        later.set_policy(JobPolicy(orphan_timeout_s=60.0, warn_at=1.0, on_warning=NOTE))
        for number in range(2):
            eventually(lambda number=number: asked(nodes, number) == 2)  # type: ignore[misc]
        later.set_policy(JobPolicy(orphan_timeout_s=60.0, warn_at=1.0, on_warning=NOTE))
        time.sleep(1.5)
        assert [asked(nodes, number) for number in range(2)] == [2, 2]


def test_a_lost_node_ends_its_streams_only_and_may_come_back(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=3) as nodes:
        events, _, lost = watched()
        job = connected(nodes, events=events, policy=JobPolicy(orphan_timeout_s=60.0, on_warning=NOTE))
        kept, cut = job.transport("kept", 1).open(["cat"]), job.transport("cut", 2).open(["cat"])
        nodes.processes[2].kill()
        nodes.processes[2].wait()
        assert lost.get(timeout=10) == 2
        assert drain(cut) == b""
        assert b"no longer connected to the first node" in cut.errors()
        with pytest.raises(HostUnreachableError, match="cut while a command ran"):
            cut.wait_exit(5)
        kept.send(b"still\n")
        assert kept.receive(timeout_s=10) == b"still\n"
        nodes.start(2)
        assert job.transport("back", 2).run(["true"]).exit_code == 0
        # It has got the policy.
        nodes.signal(2, signal.SIGURG)
        eventually(lambda: asked(nodes, 2) == 1)
        kept.close()


def test_nodes_without_their_first_node_end_in_time(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2, join_s=2.0) as nodes:
        job = connected(nodes)
        channel = job.transport("node", 1).open(["sh", "-c", "cat; echo > ended"])
        nodes.processes[0].kill()
        assert drain(channel) == b""
        eventually((nodes.home(1) / "ended").exists)
        assert nodes.exit_code(1) == DISCONNECTED
        with pytest.raises(HostUnreachableError, match="No way leads to the first node"):
            job.transport("again", 0).run(["true"], timeout_s=5)


def test_a_node_reaches_a_first_node_that_starts_later(tmp_path: Path) -> None:
    with job_nodes(tmp_path, count=2) as nodes:
        connected(nodes)
        nodes.processes[0].kill()
        nodes.processes[0].wait()
        (tmp_path / "output0").unlink()
        nodes.start(0)
        assert connected(nodes).transport("node", 1).run(["true"]).exit_code == 0


def test_a_process_has_one_connection_to_a_job(tmp_path: Path) -> None:
    with job_nodes(tmp_path) as nodes:
        nodes.wait_listening()
        jobs = Jobs()
        job = jobs.get(nodes.job_id, nodes.job)
        assert jobs.get(nodes.job_id, nodes.job) is job
        connection = job.connection(time.monotonic() + 10)
        jobs.drop(nodes.job_id)
        assert not connection.is_alive
        assert jobs.get(nodes.job_id, nodes.job) is not job
