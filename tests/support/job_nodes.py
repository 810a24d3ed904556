"""Nodes of a job without Slurm: processes on this machine, with the variables that Slurm would set."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_dtrain.hosts.job.byte_stream import Route, tcp_routes
from airflow_provider_dtrain.hosts.job.connection import JobEvents
from airflow_provider_dtrain.hosts.job.identity import JobIdentity
from airflow_provider_dtrain.hosts.job.job import Job, JobPolicy
from airflow_provider_dtrain.hosts.job.program import serve_argv, serve_input

ADDRESS = "127.0.0.1"


class JobNodes:
    """Processes of the nodes of one job, each with a home folder of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        count: int = 1,
        python: str = sys.executable,
        unattended_s: float = 60.0,
        join_s: float = 30.0,
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder, self.count, self.python = folder, count, python
        self.identity = JobIdentity.create()
        self.job_id = str(random.randrange(1, 2**31))
        self.ports = self.identity.ports()
        self.environ, self.prefix = environ or {}, prefix
        self._input = serve_input(self.identity, ports=self.ports, unattended_s=unattended_s, join_s=join_s)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.jobs: list[Job] = []
        for number in range(count):
            self.start(number)

    def home(self, number: int) -> Path:
        return self.folder / f"node{number}"

    def start(self, number: int) -> None:
        self.home(number).mkdir(parents=True, exist_ok=True)
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.home(number)), "LANG": "C.UTF-8",
            "SLURM_JOB_ID": self.job_id, "SLURM_PROCID": str(number), "SLURM_NTASKS": str(self.count),
            "SLURM_LAUNCH_NODE_IPADDR": ADDRESS, "CUDA_VISIBLE_DEVICES": str(number), **self.environ,
        }  # fmt: skip
        with (self.folder / f"output{number}").open("ab") as output:
            process = subprocess.Popen(
                [*self.prefix, *serve_argv(self.python)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=env,
                cwd="/",
            )
        assert process.stdin is not None
        process.stdin.write(self._input)
        process.stdin.close()
        self.processes[number] = process

    def output(self, number: int) -> str:
        return (self.folder / f"output{number}").read_text()

    def routes(self) -> list[Route]:
        return tcp_routes(ADDRESS, self.ports)

    def job(
        self,
        *,
        events: JobEvents | None = None,
        policy: JobPolicy | None = None,
        routes: Sequence[Route] | None = None,
        identity: JobIdentity | None = None,
    ) -> Job:
        """Return a new user of the job, once its first node listens."""
        self.wait_listening()
        job = Job(
            self.job_id, identity or self.identity, self.routes() if routes is None else routes, events=events,
            policy=policy,
        )  # fmt: skip
        self.jobs.append(job)
        return job

    def wait_listening(self) -> None:
        deadline = time.monotonic() + 30
        while "listens at" not in self.output(0):
            assert time.monotonic() < deadline, self.output(0)
            assert self.processes[0].poll() is None, self.output(0)
            time.sleep(0.01)

    def signal(self, number: int, which: signal.Signals) -> None:
        self.processes[number].send_signal(which)

    def exit_code(self, number: int, timeout_s: float = 30.0) -> int:
        return self.processes[number].wait(timeout_s)

    def close(self) -> None:
        for job in self.jobs:
            job.close()
        for process in self.processes.values():
            process.kill()
            process.wait()


@contextmanager
def job_nodes(
    folder: Path,
    *,
    count: int = 1,
    python: str = sys.executable,
    unattended_s: float = 60.0,
    join_s: float = 30.0,
    environ: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[JobNodes]:
    folder.mkdir(exist_ok=True)
    nodes = JobNodes(
        folder, count=count, python=python, unattended_s=unattended_s, join_s=join_s, environ=environ, prefix=prefix
    )  # fmt: skip
    try:
        yield nodes
    finally:
        nodes.close()
