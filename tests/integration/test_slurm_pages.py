"""The job scripts, trainings and commands of docs/coming-from-sbatch.md and docs/slurm.md run on a real cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from testbed.netns import NamespaceHosts
from testbed.slurm.cluster import ENDED, SlurmCluster
from tests.support.cli_world import World
from tests.support.cluster import Cluster
from tests.support.engines import Engine, config, held
from tests.support.login_node import ADDRESS, login_node
from tests.support.slurm_pools import in_pool, set_pool

pytest_plugins = ["testbed.slurm.plugin", "tests.support.cli_world"]
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="gangs of several nodes need a network of their own for each node"),
]
ROOT = Path(__file__).parents[2]
PORTING = (ROOT / "docs/coming-from-sbatch.md").read_text()
PAGE = (ROOT / "docs/slurm.md").read_text()
WAYS = {"srun starts the ranks": "", "torchrun": "", "Accelerate": "accelerate", "Lightning": "lightning"}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return PORTING.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def scripts(title: str) -> tuple[str, str]:
    """Return the training script before and after."""
    if unchanged := blocks(section(title), "python"):
        return unchanged[0], unchanged[0]
    (diff,) = blocks(section(title), "diff")
    lines = diff.splitlines(keepends=True)
    return tuple("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))  # type: ignore[return-value]


@pytest.fixture
def pool(engine: Engine, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine with the pool ``hpc``, whose slots are CPUs of a cluster."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    set_pool(engine)
    yield engine
    slurm_cluster.run("scancel", "--user=root")


def losses(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(\d+) ranks, loss (\S+)", text)


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.parametrize("title", WAYS)
async def test_a_ported_training_has_the_loss_of_its_job_script(
    pool: Engine, slurm_cluster: SlurmCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path, title: str
) -> None:
    if WAYS[title]:
        pytest.importorskip(WAYS[title])
    caplog.set_level(logging.INFO)
    before, after = scripts(title)
    (job_script,) = blocks(section(title), "bash")
    variables = {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = submitted(slurm_cluster, tmp_path / "before", job_script, before, variables)
    (expected,) = losses(done)
    assert expected[0] == "4"

    folder = tmp_path / "after"
    folder.mkdir()
    (folder / "train.py").write_text(after)
    (document,) = (yaml.safe_load(text) for text in blocks(section(title), "yaml"))
    document["environment"] = {
        "variables": {name: variables[name] for name in ("ACCELERATE_USE_CPU", "OMP_NUM_THREADS")}
    }
    outcome = await pool.carry(pool.submit({**document, "max_restarts": 0}, folder=folder), most_s=240)
    assert outcome is not None
    assert outcome.state == "completed", (outcome, caplog.text[-3000:])
    assert outcome.result is not None
    assert [len(host["ranks"]) for host in outcome.result["hosts"]] == [2, 2]
    assert losses(caplog.text) == [expected]
    assert held(pool) == []


@pytest.mark.nightly
@pytest.mark.torch
async def test_a_script_without_the_library_resumes_in_the_next_job(
    pool: Engine, slurm_cluster: SlurmCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    loop = "for step in range(begin, steps):\n"
    slow = "import time\nprint('begins at', begin, flush=True)\n" + loop + "    time.sleep(0.1)\n"
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent/train.py").write_text(scripts("torchrun")[1].replace(loop, slow))
    (document,) = (yaml.safe_load(text) for text in blocks(section("torchrun"), "yaml"))
    document["entrypoint"] = "torchrun train.py --steps 400"
    ticket = pool.submit({**document, "max_restarts": 0}, folder=tmp_path / "sent")
    carrying = asyncio.ensure_future(pool.carry(ticket, most_s=300))
    async with asyncio.timeout(120):
        while "begins at 0" not in caplog.text:
            assert not carrying.done(), carrying.result()
            await asyncio.sleep(0.1)
    job = pool.hook.store.external_jobs.of_allocation(pool.hook.store.attempts.get(ticket.attempt_id).allocation_id)
    assert job is not None
    slurm_cluster.run("scontrol", "update", f"JobId={job.number}", "EndTime=now+40")
    outcome = await carrying
    assert outcome is not None
    assert outcome.state == "completed", (outcome, caplog.text[-3000:])
    begins = [int(step) for step in re.findall(r"begins at (\d+)", caplog.text)]
    assert len(begins) >= 2, begins
    assert begins[-1] > 0
    assert pool.hook.store.trials.get(ticket.trial_id).restarts == 0


def submitted(cluster: SlurmCluster, folder: Path, script: str, program: str, variables: dict[str, str]) -> str:
    """Run a job script on the cluster in a folder with its training, and return the job's output."""
    folder.mkdir()
    (folder / "train.py").write_text(program)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    exported = "".join(f"export {name}='{value}'\n" for name, value in {**variables, "PATH": path}.items())
    head, options, rest = script.split("\n", 2)
    job = cluster.run(
        "sbatch", "--parsable", f"--chdir={folder}", f"--output={folder}/output",
        input=f"{head}\n{options}\n{exported}{rest}",
    ).stdout.strip()  # fmt: skip
    state = cluster.wait_for(job, *ENDED, timeout_s=240)["JobState"]
    output = (folder / "output").read_text(errors="replace")
    assert state == "COMPLETED", output
    return output


def test_each_way_has_its_section() -> None:
    titles = re.findall(r"^## (.*)$", PORTING, re.MULTILINE)
    assert titles == ["From options to fields", *WAYS]
    assert all(len(blocks(section(title), "yaml")) == 1 for title in WAYS)


def commands() -> list[str]:
    """Return the commands of docs/slurm.md in order."""
    lines = "".join(blocks(PAGE, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]


@pytest.mark.nightly
@pytest.mark.airflow
def test_every_command_of_the_page_succeeds(
    world: World, slurm_clusters: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    cluster = slurm_clusters(nodes=2, partitions={"gpu": {"Default": "YES", "MaxTime": "1-00:00:00"}})
    (setup,) = blocks(PAGE, "sh")
    (tmp_path / "setup.sh").write_text(setup)
    documents = blocks(PAGE, "yaml")
    for number, text in enumerate(documents):
        (tmp_path / f"{number}.yaml").write_text(text)
    (tmp_path / "train.py").touch()
    job = cluster.submit("#!/bin/sh\nexec sleep 600\n")
    cluster.wait_for(job, "RUNNING")
    assert world("init").code == 0
    with login_node(tmp_path / "login", cluster.environment) as login:
        places = {"setup.sh": str(tmp_path / "setup.sh"), "4711": job, "login.example.com": ADDRESS}
        places |= {
            "/home/airflow/.ssh/id_ed25519": str(login.private_key),
            "login ann": f"login root --conn-port {login.port}",
        }
        for command in commands():
            for name, place in places.items():
                command = command.replace(name, place)
            argv = shlex.split(re.sub(r"ssh-ed25519 \w+", login.host_key, command))
            if argv[0] == "airflow":
                done = world.airflow(*argv[1:])
                assert done.code == 0, f"{command}: {done.out}{done.err}"
                assert "Warning: the scheduler" not in done.err
            else:
                assert f"{job} RUNNING" in cluster.run(*argv).stdout or argv[0] != "squeue"
        assert cluster.wait_for(job, *ENDED)["JobState"] == "CANCELLED"
        shown = world("pools", "describe", "hpc", "-o", "json").json
        assert [one["name"] for one in shown["scheduler"]["partitions"]] == ["gpu"]
        done = world("explain", str(tmp_path / "0.yaml"), "-o", "json")
        assert done.json["outlook"] == "never"
        assert "A gang of 16 slots does not fit" in done.json["reason"]
    assert shown["backend"] == "slurm"
    wanted = {"partition": "gpu", "time_limit": "24h", "time_min": "2h", "memory_per_cpu": "4G"}
    assert {name: shown[name] for name in wanted} == wanted
    assert "max_jobs" not in shown, "unset by the last command"
    assert shown["setup"] == setup
    assert shown["sbatch_options"] == ["--constraint=a100", "--licenses=data:1"]
    assert shown["without_options"] == ["mem", "srun:mpi"]
    for number in range(len(documents)):
        done = world("configs", "validate", str(tmp_path / f"{number}.yaml"))
        assert done.code == 0, done.out + done.err


async def test_a_gang_of_two_nodes_trains_over_a_login_node(
    engine: Engine, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with login_node(tmp_path / "login", slurm_cluster.environment) as login:
        monkeypatch.setenv("AIRFLOW_CONN_SLURM_LOGIN", login.connection)
        set_pool(engine, conn_id="slurm_login")
        outcome = await engine.carry(engine.submit(in_pool(config("facts", slots=4))))
        assert outcome is not None
        assert outcome.state == "completed", outcome
        assert outcome.result is not None
        assert [len(host["ranks"]) for host in outcome.result["hosts"]] == [2, 2]
        assert held(engine) == []
        engine.hook.links.close_all()


@pytest.fixture
def airflow(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An Airflow with the example DAGs, a pool of one host, and a pool of the cluster."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    dags = shutil.copytree(ROOT / "dags", tmp_path / "dags")
    (tmp_path / "airflow").mkdir()
    with NamespaceHosts(count=1, slots=2) as hosts:
        cluster = Cluster(tmp_path / "airflow", dags, {"gpus": hosts})
        try:
            cluster.start()
            options = ["--slots", "cpu", "--slots-per-node", "1", "--python", sys.executable]
            cluster.cli("pools", "set", "hpc", "--backend", "slurm", "--conn", "local", *options)
            yield cluster
        finally:
            cluster.close()


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.airflow
def test_the_example_trains_on_a_host_and_on_the_cluster(airflow: Cluster) -> None:
    conf = {"slots_per_trial": 2, "hosts": "gpus", "cluster": "hpc", "epochs": 2}
    state, run_id = airflow.run("dtrain_slurm", conf)
    log = airflow.airflow.log("dtrain_slurm", run_id, "train")
    assert state == "success", log[-6000:]
    results = [airflow.airflow.xcom("dtrain_slurm", run_id, task) for task in ("rehearsal", "train")]
    assert [len(result["hosts"]) for result in results] == [1, 2]
    assert Path(results[1]["checkpoint"]).is_dir(), "the checkpoint outlives the job"
    assert airflow.taken() == []
