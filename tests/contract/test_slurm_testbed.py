"""The test clusters are real Slurm, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.netns import NamespaceHosts
from testbed.slurm import SlurmCluster, missing, programs
from testbed.slurm.cluster import ENDED
from testbed.slurm.machine import Machine
from testbed.standalone import wait_until

pytest_plugins = ["testbed.netns.plugin", "testbed.slurm.plugin"]

ROOT = Path(__file__).parents[2]


def a_job_on_two_nodes_gets_its_devices(cluster: SlurmCluster, folder: Path) -> None:
    """Two jobs share two nodes. Each step prints node, rank and devices."""
    script = f"""#!/bin/sh
srun --ntasks-per-node=1 sh -c 'echo $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES' >{folder}/$SLURM_JOB_NAME
while [ ! -e {folder}/first ] || [ ! -e {folder}/second ]; do sleep 0.05; done
"""
    options = ("--nodes=2", "--nodelist=n1,n2", "--gpus-per-node=1", "--time=1")
    jobs = [cluster.submit(script, *options, f"--job-name={name}") for name in ("first", "second")]
    for job in jobs:
        assert cluster.wait_for(job, *ENDED)["JobState"] == "COMPLETED"
    lines = [sorted((folder / name).read_text().split("\n")[:2]) for name in ("first", "second")]
    assert sorted(lines) == [["n1 0 0", "n2 1 0"], ["n1 0 1", "n2 1 1"]]


@pytest.fixture
def public() -> Iterator[Path]:
    # Other accounts cannot enter tmp_path: every pytest closes the folders above it.
    with tempfile.TemporaryDirectory(prefix="dtrain-public-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def test_two_jobs_on_the_same_nodes_get_different_devices(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    a_job_on_two_nodes_gets_its_devices(slurm_cluster, tmp_path)


@pytest.mark.nightly
def test_a_later_slurm_runs_jobs_in_the_files_of_this_machine(
    slurm_clusters: Callable[..., SlurmCluster], later_slurm: Path, tmp_path: Path
) -> None:
    cluster = slurm_clusters(root=later_slurm)
    assert cluster.run("sbatch", "--version").stdout.split()[-1] >= "23"
    a_job_on_two_nodes_gets_its_devices(cluster, tmp_path)
    job = cluster.submit(f"#!/bin/sh\nexec srun {sys.executable} -c 'import ssl'\n")
    assert cluster.wait_for(job, *ENDED)["JobState"] == "COMPLETED"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root submits jobs of other accounts")
def test_jobs_belong_to_the_account_that_submits_them(slurm_cluster: SlurmCluster, public: Path) -> None:
    job = slurm_cluster.submit(f"#!/bin/sh\nid -un >{public}/account\n", user="daemon")
    assert slurm_cluster.wait_for(job, *ENDED)["JobState"] == "COMPLETED"
    assert (public / "account").read_text() == "daemon\n"


@pytest.mark.nightly
def test_a_partition_delays_jobs_over_its_limit_and_ends_jobs_at_it(
    slurm_clusters: Callable[..., SlurmCluster],
) -> None:
    cluster = slurm_clusters(nodes=1, partitions={"short": {"Default": "YES", "MaxTime": 1}})
    too_long = cluster.submit("#!/bin/sh\n", "--time=2")
    job = cluster.submit("#!/bin/sh\nexec sleep 600\n")
    assert cluster.wait_for(job, "RUNNING")["TimeLimit"] == "00:01:00"
    # A limit has at least a minute: nearer ends can be set while the job runs.
    cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now+1")
    assert cluster.wait_for(job, *ENDED)["JobState"] == "TIMEOUT"
    assert cluster.job(too_long)["Reason"] == "PartitionTimeLimit"


def test_a_node_that_is_down_ends_its_jobs_and_returns(slurm_cluster: SlurmCluster) -> None:
    job = slurm_cluster.submit("#!/bin/sh\nexec sleep 600\n", "--nodelist=n3", "--no-requeue")
    slurm_cluster.wait_for(job, "RUNNING")
    slurm_cluster.update_node("n3", "DOWN")
    assert slurm_cluster.wait_for(job, *ENDED)["JobState"] == "NODE_FAIL"
    slurm_cluster.update_node("n3", "RESUME")
    wait_until(lambda: slurm_cluster.node_states()["n3"] == "idle", timeout_s=30, what="n3 idle", poll_s=0.2)


def test_a_crash_of_a_node_ends_detached_processes(
    slurm_clusters: Callable[..., SlurmCluster],
) -> None:
    cluster = slurm_clusters(nodes=2)
    script = "#!/bin/sh\nsetsid env -i sleep 600 & wait\n"
    cluster.wait_for(cluster.submit(script, "--nodelist=n2"), "RUNNING")
    machine = cluster.nodes["n2"]
    sleeper = wait_until(lambda: machine.daemon("sleep"), timeout_s=20, what="the job's process", poll_s=0.05)
    # A parent of the daemon that stops with it would keep the crash from ending.
    for by in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(machine.daemon("slurmd"), by)
        time.sleep(0.2)
    cluster.crash_node("n2")
    assert not Path(f"/proc/{sleeper}").exists()
    assert cluster.stopped_daemons() == ["slurmd on n2"]
    cluster.start_node("n2")
    assert cluster.stopped_daemons() == []


@pytest.mark.netns
def test_nodes_have_addresses_that_this_machine_and_other_nodes_reach(
    slurm_cluster: SlurmCluster, slurm_clusters: Callable[..., SlurmCluster]
) -> None:
    output = slurm_cluster.run(
        "srun", "--nodes=4", "--ntasks-per-node=1", "--mem=0", "sh", "-c", "echo $(hostname) $(hostname -I)"
    ).stdout
    addresses = dict(line.split() for line in output.splitlines())
    assert sorted(addresses) == ["n1", "n2", "n3", "n4"]
    assert len(set(addresses.values())) == 4
    listen = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    talk = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2]))).getsockname()[0])"
    machines = slurm_cluster.nodes
    for by, client in ((addresses["n1"], machines["n1"].enter([sys.executable])), ("", [sys.executable])):
        with subprocess.Popen(
            machines["n2"].enter([sys.executable, "-c", listen]), stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            argv = [*client, "-c", talk, "n2" if by else addresses["n2"], port]
            assert subprocess.check_output(argv, text=True, timeout=20).strip().startswith(by)
    job = slurm_cluster.submit(f"#!/bin/sh\nexec srun --nodes=2 --ntasks=2 {sys.executable} -c ''\n", "--nodes=2")
    assert slurm_cluster.wait_for(job, *ENDED)["JobState"] == "COMPLETED"
    second = slurm_clusters(nodes=1)
    networks = [
        re.findall(r"NodeAddr=(\d+\.\d+)\.", (one.folder / "slurm.conf").read_text()) for one in (slurm_cluster, second)
    ]
    assert len(set(networks[0])) == len(set(networks[1])) == 1
    assert networks[0][0] != networks[1][0]


@pytest.mark.netns
def test_nodes_can_be_test_hosts(
    slurm_clusters: Callable[..., SlurmCluster], namespace_hosts: Callable[..., NamespaceHosts]
) -> None:
    hosts = namespace_hosts(count=2)
    cluster = slurm_clusters(hosts=hosts)
    output = cluster.run(
        "srun", "--nodes=2", "--mem=0", "sh", "-c", "echo $SLURMD_NODENAME $(hostname) $(hostname -I)"
    ).stdout
    assert sorted(output.splitlines()) == [f"n{i + 1} ns-{i} {hosts.host(i).address}" for i in range(2)]
    cluster.crash_node("n2")
    assert not hosts.host(1).is_up
    cluster.start_node("n2")
    assert cluster.stopped_daemons() == []


@pytest.mark.nightly
@pytest.mark.skipif(programs.why_no_cgroups() is not None, reason=str(programs.why_no_cgroups()))
@pytest.mark.parametrize("later", [False, True])
def test_cgroups_limit_devices_and_end_detached_processes(
    slurm_clusters: Callable[..., SlurmCluster], request: pytest.FixtureRequest, tmp_path: Path, later: bool
) -> None:
    cluster = slurm_clusters(
        root=request.getfixturevalue("later_slurm") if later else None, nodes=1, node_prefix="cg",
        conf={"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup", "KillWait": 1},
        cgroup={"ConstrainDevices": "yes"},
    )  # fmt: skip
    first, second = (cluster.folder / "devices/cg1" / name for name in ("nvidia0", "nvidia1"))
    script = f"""#!/bin/sh
setsid setsid env -i sleep 600 >/dev/null 2>&1 &
for device in {first} {second}; do head -c1 $device; done 2>{tmp_path}/errors
touch {tmp_path}/tried
exec sleep 600
"""
    job = cluster.submit(script, "--gpus-per-node=1")
    wait_until((tmp_path / "tried").exists, timeout_s=30, what="the job's last line", poll_s=0.05)
    # The device has no driver. The other one is forbidden.
    errors = (tmp_path / "errors").read_text().splitlines()
    assert [line.rpartition(": ")[2] for line in errors] == ["No such device or address", "Operation not permitted"]
    cluster.run("scancel", job)
    assert cluster.wait_for(job, *ENDED)["JobState"] == "CANCELLED"
    assert cluster.nodes["cg1"].daemon("sleep") == 0
    cluster.stop()
    assert list(Path("/sys/fs/cgroup").glob("*/slurm_cg1")) == []


def test_a_job_continues_while_the_controller_is_stopped(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    script = f"#!/bin/sh\nwhile [ ! -e {tmp_path}/end ]; do echo >>{tmp_path}/beats; sleep 0.05; done\n"
    job = slurm_cluster.submit(script)
    wait_until((tmp_path / "beats").exists, timeout_s=20, what="the job's first line", poll_s=0.05)
    slurm_cluster.stop_controller()
    lines = (tmp_path / "beats").stat().st_size
    wait_until(lambda: (tmp_path / "beats").stat().st_size > lines + 5, timeout_s=20, what="more lines", poll_s=0.05)
    assert slurm_cluster.stopped_daemons() == ["slurmctld on controller"]
    slurm_cluster.start_controller()
    assert slurm_cluster.job(job)["JobState"] == "RUNNING"
    (tmp_path / "end").touch()
    assert slurm_cluster.wait_for(job, *ENDED)["JobState"] == "COMPLETED"


def start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [ROOT / "scripts/slurm-testbed", "start", "--folder", folder, "--nodes", "1", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=90)


@pytest.fixture
def folder(public: Path) -> Iterator[Path]:
    """A folder for a cluster that the script starts."""
    if reason := missing():
        pytest.skip(f"no Slurm cluster: {reason}")
    yield public / "cluster"
    SlurmCluster(public / "cluster").stop()


@pytest.mark.nightly
def test_the_script_prints_a_line_for_the_shell_and_stop_leaves_nothing(folder: Path) -> None:
    began = start(folder)
    assert began.stdout == f"export SLURM_CONF={folder}/slurm.conf\n", began.stderr
    assert start(folder).stdout == began.stdout, "a cluster that runs is left alone"
    assert "other options" in start(folder, "--cpus-per-node", "3").stderr
    lines = f"{began.stdout}sbatch --output=/dev/null --wrap 'setsid env -i sleep 600 & wait'; sinfo -h -o %T"
    assert subprocess.check_output(["bash", "-c", lines], text=True, timeout=30).split("\n")[-2] in {"idle", "mixed"}
    machine = Machine(folder, "n1")
    wait_until(lambda: machine.daemon("sleep"), timeout_s=20, what="the job's process", poll_s=0.05)
    namespaces = {os.readlink(f"/proc/{pid}/ns/pid") for pid in SlurmCluster.read(folder).pids()}
    assert len(namespaces) == 2
    if os.geteuid() == 0:
        assert network_entries(folder)
    subprocess.run([ROOT / "scripts/slurm-testbed", "stop", "--folder", folder], check=True, timeout=60)
    assert not folder.exists()
    assert namespaces.isdisjoint(all_namespaces())
    assert network_entries(folder) == []


def test_stop_ends_what_a_killed_start_left(folder: Path) -> None:
    argv = [sys.executable, "-m", "testbed.slurm", "start", "--folder", folder]
    starting = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_until(lambda: Machine(folder, "n2").init_pid, timeout_s=30, what="a namespace of the cluster", poll_s=0.001)
    starting.send_signal(signal.SIGKILL)
    starting.wait()
    namespaces = {os.readlink(f"/proc/{Machine(folder, name).init_pid}/ns/pid") for name in ("controller", "n1", "n2")}
    SlurmCluster(folder).stop()
    assert not folder.exists()
    assert namespaces.isdisjoint(all_namespaces())
    assert network_entries(folder) == []


def test_a_folder_with_other_files_is_refused_and_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("text")
    refused = start(folder)
    assert refused.returncode == 1
    assert "not empty" in refused.stderr
    subprocess.run([ROOT / "scripts/slurm-testbed", "stop", "--folder", folder], check=True, timeout=60)
    assert (folder / "thesis.txt").read_text() == "text"


def network_entries(folder: Path) -> list[str]:
    """Return the links, namespaces and files that the network of a folder's cluster has."""
    folders = (Path("/sys/class/net"), Path("/run/netns"), Path("/etc/netns"))
    tag = SlurmCluster(folder).network_tag
    return [str(entry) for parent in folders if parent.is_dir() for entry in parent.glob(f"{tag}*")]


def all_namespaces() -> set[str]:
    """Return the PID namespaces of all processes that have not ended."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(os.readlink(entry / "ns/pid"))
    return found
