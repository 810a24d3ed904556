"""Login node of a test cluster, and requests for jobs whose ranks end when a test allows it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.core.slurm.cluster import SlurmJob
from airflow_provider_dtrain.core.slurm.job_states import JobState
from airflow_provider_dtrain.core.slurm.node_shape import NodeShape
from airflow_provider_dtrain.core.slurm.options import slurm_options
from airflow_provider_dtrain.core.slurm.submission import JobRequest
from airflow_provider_dtrain.hosts.slurm.client import SlurmClient, Submitted
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from testbed.slurm import SlurmCluster
from testbed.standalone import wait_until

#: It waits until a file is there, and writes its slots and input.
LOADER = """\
import os, sys, time
text = sys.stdin.read()
with open(f"{FOLDER}/rank-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_PROCID']}", "w") as file:
    file.write(repr((text, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("SLURM_CPUS_PER_TASK"))))
while not os.path.exists(FOLDER + "/end"):
    time.sleep(0.05)
"""


class LoginNode:
    """Login node of a cluster: a home folder whose profile behaves as those of real sites."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.profile("")

    def profile(self, text: str) -> None:
        """Set the lines of the login shell's profile."""
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.cluster.environment.items())
        (self.folder / ".bash_profile").write_text(f"{variables}{text}\n")

    def fake(self, program: str, script: str) -> None:
        """Put a program before Slurm's own."""
        (self.folder / "bin").mkdir(exist_ok=True)
        (self.folder / "bin" / program).write_text(f"#!/bin/bash\n{script}\n")
        (self.folder / "bin" / program).chmod(0o755)
        self.profile(f"PATH={self.folder}/bin:$PATH")

    def client(self, *, timeout_s: float = 30.0, **document: Any) -> SlurmClient:
        transport = LocalTransport("login", home=self.folder)
        options = slurm_options({"cpus_per_slot": 1, "memory_per_slot": "64M", **document})
        return SlurmClient(transport, options, submit_timeout_s=timeout_s, query_timeout_s=timeout_s)

    def request(self, name: str, *, nodes: int = 1, slots: int = 1, **values: Any) -> JobRequest:
        fields: dict[str, Any] = {
            "time_limit_s": 600, "warning_s": 60, "stdin": "",
            "loader": LOADER.replace("FOLDER", repr(str(self.folder))),
        }  # fmt: skip
        return JobRequest(name=name, shape=NodeShape(nodes=nodes, slots_per_node=slots), **{**fields, **values})

    def end_ranks(self) -> None:
        """Let the programs of all jobs end."""
        (self.folder / "end").touch()


def submitted(client: SlurmClient, request: JobRequest) -> int:
    answer = client.submit(request)
    assert isinstance(answer, Submitted), answer
    return answer.job_id


def job_in(client: SlurmClient, job_id: int, states: frozenset[JobState], timeout_s: float = 30) -> SlurmJob:
    """Wait until a job is in one of the states, and return it."""
    seen: list[SlurmJob | None] = []

    def reached() -> bool:
        seen.append(client.job(job_id))
        return seen[-1] is not None and seen[-1].state in states

    wait_until(reached, timeout_s=timeout_s, what=f"job {job_id} in {sorted(states)}", poll_s=0.2)
    assert seen[-1] is not None
    return seen[-1]
