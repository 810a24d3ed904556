"""Jobs that the controller has forgotten, as a real slurmdbd accounts for them, and accounts without rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.slurm.job_ends import EndKind, end_of
from airflow_provider_dtrain.core.slurm.job_states import FINAL, RUNNING, JobState
from airflow_provider_dtrain.core.slurm.refusals import FailureKind
from airflow_provider_dtrain.hosts.slurm.client import Refused
from testbed.slurm import SlurmCluster
from testbed.standalone import wait_until
from tests.support.slurm_login import LoginNode, job_in, submitted

pytest_plugins = ["testbed.slurm.plugin"]
pytestmark = [pytest.mark.nightly, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(slurm_clusters: Callable[..., SlurmCluster], slurm_accounting: Path) -> SlurmCluster:
    """Two nodes, where ended jobs are forgotten within seconds, and every account needs an association."""
    conf = {"MinJobAge": 2, "AccountingStorageEnforce": "associations,limits", "JobAcctGatherFrequency": 1}
    made = slurm_clusters(nodes=2, conf=conf, accounting=str(slurm_accounting))
    made.run("sacctmgr", "-i", "add", "account", "other")
    return made


@pytest.fixture
def site(cluster: SlurmCluster, tmp_path: Path) -> Iterator[LoginNode]:
    yield LoginNode(cluster, tmp_path)
    cluster.run("scancel", "-u", "root")


def test_a_job_that_the_controller_has_forgotten_is_read_from_the_accounting(
    site: LoginNode, cluster: SlurmCluster
) -> None:
    client, begun_s = site.client(), time.time()
    assert client.config().has_accounting
    ended = submitted(client, site.request("dtrain-s-t1.1.1", nodes=2))
    cancelled = submitted(client, site.request("dtrain-s-t2.2.1"))
    job_in(client, cancelled, RUNNING)
    client.cancel([cancelled])
    job_in(client, ended, RUNNING)
    site.end_ranks()
    for number in (ended, cancelled):
        wait_until(lambda number=number: not cluster.job(str(number)), timeout_s=90, what="a forgotten job", poll_s=0.5)  # type: ignore[misc]
    found = job_in(client, ended, FINAL)
    assert (found.job_id, found.name, found.state, found.exit_code) == (ended, "dtrain-s-t1.1.1", JobState.COMPLETED, 0)
    assert (found.nodes, found.partition, found.time_limit_s) == (("n1", "n2"), "main", 600)
    assert found.submitted_s is not None
    assert found.started_s is not None
    assert found.ends_s is not None
    assert begun_s - 2 <= found.submitted_s <= found.started_s <= found.ends_s <= time.time() + 2
    other = job_in(client, cancelled, FINAL)
    assert (other.state, other.cancelled_by) == (JobState.CANCELLED, 0)
    end = end_of(other)
    assert end is not None
    assert (end.kind, end.message) == (
        EndKind.CANCELLED, f"Slurm job {cancelled} was cancelled by the account with uid 0.",
    )  # fmt: skip


def test_a_job_that_computes_has_a_cpu_share(site: LoginNode) -> None:
    client = site.client()
    loader = "import time\nend = time.process_time() + 2.0\nwhile time.process_time() < end: pass\n"
    job_id = submitted(client, site.request("dtrain-s-t3.3.1", loader=loader))
    job_in(client, job_id, FINAL, timeout_s=240)
    shares: list[float | None] = []
    wait_until(lambda: shares.append(client.cpu_share(job_id)) or shares[-1], timeout_s=60, what="a share", poll_s=0.5)
    assert 0.0 < (shares[-1] or 0.0) <= 1.0


def test_a_number_that_neither_controller_nor_accounting_knows_has_no_job(site: LoginNode) -> None:
    assert site.client().job(4_000_000) is None


def test_an_account_without_rights_is_refused_with_the_words_of_slurm(site: LoginNode) -> None:
    for account in ("other", "unknown"):
        answer = site.client(account=account).submit(site.request(f"dtrain-s-{account}.1.1"))
        assert isinstance(answer, Refused), answer
        assert answer.kind is FailureKind.NEVER
        assert "Invalid account or account/partition combination specified" in answer.message
