"""Ends of jobs that Slurm itself decides, on real clusters: time limit, preemption, jobs that were forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.slurm.job_ends import EndKind, NextStep, end_of
from airflow_provider_dtrain.core.slurm.job_states import FINAL, RUNNING, JobState
from testbed.slurm import SlurmCluster
from testbed.standalone import wait_until
from tests.support.slurm_login import LoginNode, job_in, submitted

pytest_plugins = ["testbed.slurm.plugin"]
# Slurm's shortest time limit is a minute, and it forgets jobs each minute.
pytestmark = [pytest.mark.nightly, pytest.mark.slow]

#: It writes each signal with its time, and goes on.
SIGNALS = """\
import os, signal, sys, time
file = open(f"{FOLDER}/signals-{os.environ['SLURM_PROCID']}", "w", buffering=1)
for number in (signal.SIGTERM, signal.SIGURG):
    signal.signal(number, lambda number, _: print(signal.Signals(number).name, time.time(), file=file))
sys.stdin.read()
print("START", time.time(), file=file)
while True:
    time.sleep(0.1)
    os.utime(file.name)
"""


@pytest.fixture(scope="module")
def cluster(slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Two nodes, where jobs of one partition preempt those of the other, and ended jobs are forgotten soon."""
    partitions = {
        "low": {"Default": "YES", "MaxTime": 60, "PriorityTier": 1, "PreemptMode": "CANCEL", "GraceTime": 8},
        "high": {"MaxTime": 60, "PriorityTier": 9, "PreemptMode": "OFF"},
    }
    conf = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL", "MinJobAge": 5, "OverTimeLimit": 0}
    return slurm_clusters(nodes=2, partitions=partitions, conf=conf)


@pytest.fixture
def site(cluster: SlurmCluster, tmp_path: Path) -> Iterator[LoginNode]:
    yield LoginNode(cluster, tmp_path)
    cluster.run("scancel", "-u", "root")
    wait_until(lambda: not cluster.run("squeue", "-h").stdout, timeout_s=60, what="an empty queue", poll_s=0.2)


def signals(site: LoginNode, rank: int) -> dict[str, float]:
    """Return name -> time of the first signal of this name."""
    found: dict[str, float] = {}
    for line in (site.folder / f"signals-{rank}").read_text().splitlines():
        name, moment = line.split()
        found.setdefault(name, float(moment))
    return found


def test_a_job_is_warned_before_its_time_limit_and_survives_the_warning(site: LoginNode) -> None:
    client = site.client()
    loader = SIGNALS.replace("FOLDER", repr(str(site.folder)))
    request = site.request("dtrain-limit", nodes=2, slots=2, time_limit_s=120, warning_s=60, loader=loader)
    job_id = submitted(client, request)
    ended = job_in(client, job_id, FINAL, timeout_s=240)
    end = end_of(ended)
    assert end is not None
    assert (end.kind, end.next_step) == (EndKind.TIMEOUT, NextStep.RESUME)
    for rank in range(2):
        found = signals(site, rank)
        assert found["SIGURG"] < found["SIGTERM"] - 20, "the warning ends nothing"
        assert (site.folder / f"signals-{rank}").stat().st_mtime > found["SIGTERM"] + 2, "KillWait is the ranks' own"


def test_a_preempted_job_has_its_grace_time_and_its_kind(site: LoginNode) -> None:
    client = site.client(partition="low")
    loader = SIGNALS.replace("FOLDER", repr(str(site.folder)))
    job_id = submitted(client, site.request("dtrain-low", nodes=2, slots=2, loader=loader))
    wait_until(lambda: (site.folder / "signals-1").exists(), timeout_s=30, what="the ranks", poll_s=0.1)
    urgent = site.client(partition="high", sbatch_options=["--exclusive"])
    submitted(urgent, site.request("dtrain-high", nodes=2))
    ended = job_in(client, job_id, FINAL, timeout_s=120)
    end = end_of(ended)
    assert end is not None
    assert (end.kind, end.next_step) == (EndKind.PREEMPTED, NextStep.RESUME)
    for rank in range(2):
        last_s = (site.folder / f"signals-{rank}").stat().st_mtime
        assert last_s - signals(site, rank)["SIGTERM"] > 6, "the job lived on for most of GraceTime"
    assert job_in(urgent, client.find(["dtrain-high"])["dtrain-high"][0].job_id, RUNNING).state is JobState.RUNNING


def test_a_job_is_forgotten_after_min_job_age(site: LoginNode) -> None:
    client = site.client()
    job_id = submitted(client, site.request("dtrain-old", loader="pass"))
    assert job_in(client, job_id, FINAL).state is JobState.COMPLETED
    began = time.monotonic()
    wait_until(lambda: client.job(job_id) is None, timeout_s=200, what="that the job is forgotten", poll_s=1)
    assert time.monotonic() - began > 3
    assert client.find(["dtrain-old"]) == {}
    client.cancel([job_id])
