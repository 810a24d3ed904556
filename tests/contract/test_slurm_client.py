"""The client of Slurm's commands against a real controller."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.slurm.hostlist import compress, expand
from airflow_provider_dtrain.core.slurm.job_ends import ChangeKind, EndKind, changes_of, end_of
from airflow_provider_dtrain.core.slurm.job_states import FINAL, RUNNING, JobState
from airflow_provider_dtrain.core.slurm.reasons import Outlook, slurm_reason
from airflow_provider_dtrain.core.slurm.refusals import FailureKind
from airflow_provider_dtrain.errors import (
    EnvironmentMissingError,
    HostAuthError,
    HostProtocolError,
    HostUnreachableError,
    SlurmUnavailableError,
)
from airflow_provider_dtrain.hosts.slurm.client import Ambiguous, Refused, Submitted
from airflow_provider_dtrain.hosts.slurm.login_shell import LoginShell
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from testbed.slurm import SlurmCluster, programs
from testbed.standalone import wait_until
from tests.support.slurm_login import LoginNode, job_in, submitted

pytest_plugins = ["testbed.slurm.plugin"]


@pytest.fixture(scope="module", params=["own", pytest.param("trixie", marks=pytest.mark.nightly)])
def cluster(request: pytest.FixtureRequest, slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Cluster of the machine's own version of Slurm, and of a later one."""
    if request.param == "own":
        return slurm_clusters()
    root = programs.default_root(request.param)
    try:
        programs.make_root(request.param, root)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no Slurm of Debian {request.param}: {error}")
    return slurm_clusters(root=root)


@pytest.fixture
def site(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginNode]:
    folder = tmp_path_factory.mktemp("login")
    yield LoginNode(cluster, folder)
    cluster.run("scancel", "-u", "root")
    wait_until(lambda: not cluster.run("squeue", "-h").stdout, timeout_s=40, what="an empty queue", poll_s=0.2)


def test_a_gang_runs_as_one_job_and_is_found_by_its_name(site: LoginNode) -> None:
    client = site.client()
    secret = "a 'quoted' \"$HOME\" `id` \\ text\nEOF\nEND\n"
    job_id = submitted(client, site.request("dtrain-s-1", nodes=2, slots=2, stdin=secret))
    running = job_in(client, job_id, RUNNING)
    assert (running.name, running.nodes, running.batch_node) == ("dtrain-s-1", ("n1", "n2"), "n1")
    assert running.time_limit_s == 600
    assert running.started_s is not None
    assert abs(running.started_s - time.time()) < 60
    assert (running.ends_s or 0) - running.started_s == 600
    files = [site.folder / f"rank-{job_id}-{rank}" for rank in range(2)]
    wait_until(
        lambda: all(file.exists() and file.read_text() for file in files), timeout_s=20, what="ranks", poll_s=0.1
    )
    assert {file.read_text() for file in files} == {repr((secret, "0,1", "2"))}
    (polled,) = client.poll("dtrain-s-")
    assert replace(polled, restarts=0, exit_code=0, eligible_s=running.eligible_s) == running
    assert client.find(["dtrain-s-1", "dtrain-s-2"]) == {"dtrain-s-1": [polled]}
    site.end_ranks()
    ended = job_in(client, job_id, FINAL)
    assert end_of(ended).kind is EndKind.COMPLETED  # type: ignore[union-attr]
    assert [job.state for job in client.poll("dtrain-s-1")] == [JobState.COMPLETED], "MinJobAge has not passed"
    assert client.job(job_id + 1000) is None


def test_a_second_job_of_the_same_name_waits_and_can_be_cancelled(site: LoginNode) -> None:
    client = site.client()
    first, second = (submitted(client, site.request("dtrain-two")) for _ in range(2))
    job_in(client, first, RUNNING)
    jobs = client.find(["dtrain-two"])["dtrain-two"]
    assert [(job.job_id, job.is_waiting) for job in jobs] == [(first, False), (second, True)]
    assert slurm_reason(jobs[1].reason).code == "Dependency"
    client.cancel([second, second + 1000])
    assert job_in(client, second, FINAL).state is JobState.CANCELLED
    assert job_in(client, first, RUNNING).state is JobState.RUNNING
    client.cancel([first])
    cancelled = job_in(client, first, FINAL)
    assert end_of(cancelled).kind is EndKind.CANCELLED  # type: ignore[union-attr]
    client.cancel([first, second])


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"partition": "nope"}, (1, 1), "Invalid partition name specified"),
        ({}, (1, 3), "Requested node configuration is not available"),
        ({"cpus_per_slot": 9}, (1, 1), "Requested node configuration is not available"),
        ({"memory_per_slot": "100G"}, (1, 1), "Memory specification can not be satisfied"),
        ({"gres_type": "a100"}, (1, 1), "Requested node configuration is not available"),
        ({"gres_name": "fpga"}, (1, 1), "Invalid generic resource"),
        ({"sbatch_options": ["--constraint=a100"]}, (1, 1), "Invalid feature specification"),
        ({"sbatch_options": ["--reservation=x"]}, (1, 1), "Requested reservation is invalid"),
        ({"sbatch_options": ["--licenses=x:1"]}, (1, 1), "Invalid license specification"),
        ({"sbatch_options": ["--nodelist=n99"]}, (1, 1), "Invalid node name specified"),
        ({"sbatch_options": ["--frobnicate"]}, (1, 1), "unrecognized option"),
        ({"sbatch_options": ["--begin=whenever"]}, (1, 1), "Invalid --begin specification"),
    ],
)
def test_what_slurm_never_accepts_is_refused_with_its_words(
    site: LoginNode, options: dict[str, Any], shape: tuple[int, int], message: str
) -> None:
    client, name = site.client(**options), f"dtrain-no-{time.monotonic_ns()}"
    answer = client.submit(site.request(name, nodes=shape[0], slots=shape[1]))
    assert isinstance(answer, Refused), answer
    assert answer.kind is FailureKind.NEVER
    assert message in answer.message
    # The controller keeps a record of some of the jobs that it refused.
    assert all(job.was_refused for job in client.find([name]).get(name, []))


@pytest.mark.parametrize(
    ("nodes", "limit_s", "cpus", "code"),
    [(9, 600, 1, "PartitionNodeLimit"), (1, 30 * 86400, 1, "PartitionTimeLimit"), (1, 600, 100, "PartitionConfig")],
    ids=["nodes", "time", "cpus"],
)
def test_what_slurm_accepts_but_never_starts_has_a_reason(
    site: LoginNode, nodes: int, limit_s: int, cpus: int, code: str
) -> None:
    client, name = site.client(cpus_per_slot=cpus), f"dtrain-never-{code}"
    answer = client.submit(site.request(name, nodes=nodes, time_limit_s=limit_s))
    if isinstance(answer, Refused) and (client.version() or (0,)) > (23,):
        assert answer.kind is FailureKind.NEVER, "later versions refuse some of them at once"
        return
    assert isinstance(answer, Submitted), answer

    def reason() -> str:
        return client.find([name])[name][0].reason

    wait_until(lambda: reason() == code, timeout_s=30, what=code, poll_s=0.2)
    assert slurm_reason(code).outlook in (Outlook.NEVER, Outlook.BY_HAND)
    assert job_in(client, answer.job_id, frozenset([JobState.PENDING])).nodes == ()


@pytest.mark.parametrize(
    ("setup", "python", "phase", "code", "text"),
    [
        ("echo before\nmodule() { return 4; }\nmodule load cuda\necho after", "python3", "setup", 4, "Line 3 of"),
        ("if then", "python3", "setup", 2, "line 1: syntax error"),
        ("exit 0", "python3", "setup", 1, "called exit"),
        ("cat\nhead -c 200000 /dev/zero | tr '\\0' x\nexit 9", "python3", "setup", 9, "xxxx"),
        ("PATH=/nowhere\ntail() { echo stolen; }\nsrun() { echo stolen; }", "python3", "srun", 2, "execve(): python3"),
        ("", "python3.1", "srun", 2, "execve(): python3.1"),
    ],
    ids=["line", "syntax", "exit", "flood", "path", "python"],
)
def test_a_job_whose_start_fails_reports_why_without_a_shared_folder(
    site: LoginNode, setup: str, python: str, phase: str, code: int, text: str
) -> None:
    client = site.client(setup=setup, python=python)
    job = job_in(client, submitted(client, site.request("dtrain-setup", loader="print(1)")), FINAL)
    end = end_of(job)
    assert end is not None
    assert end.kind is EndKind.FAILED
    assert end.report is not None
    assert (end.report.phase, end.report.exit_code, job.exit_code) == (phase, code, code)
    assert text in end.message
    assert "stolen" not in end.message
    assert len(end.report.text) <= 700


def test_setup_lines_change_the_environment_and_the_output_file_has_everything(site: LoginNode) -> None:
    output = f"{site.folder}/out-%j.txt"
    client = site.client(setup="export WORD='a b'\necho quiet >&2\nset -u", output=output)
    loader = "import os, sys; print(os.environ['WORD']); sys.exit('the program failed')"
    job_id = submitted(client, site.request("dtrain-out", loader=loader))
    end = end_of(job_in(client, job_id, FINAL))
    assert end is not None
    assert end.report is not None
    assert "the program failed" in end.report.text
    printed = client.output_end(job_id)
    assert printed is not None
    assert "a b\n" in printed
    assert "the program failed" in printed
    assert client.output_end(job_id + 1) is None
    assert site.client().output_end(job_id) is None


def test_a_pool_without_the_comment_reports_nothing(site: LoginNode) -> None:
    client = site.client(setup="exit 3", without_options=["comment"])
    job = job_in(client, submitted(client, site.request("dtrain-quiet")), FINAL)
    assert (job.exit_code, job.comment) == (3, "")


def test_every_generated_option_can_be_left_out(site: LoginNode) -> None:
    without = ["mem", "cpus-per-task", "output", "time", "signal", "dependency", "parsable", "ntasks-per-node"]
    srun = ["srun:mpi", "srun:mem", "srun:cpu-bind", "srun:wait", "srun:export", "srun:input", "srun:job-name"]
    client = site.client(without_options=[*without, *srun], sbatch_options=["--exclusive", f"--chdir={site.folder}"])
    job_id = submitted(client, site.request("dtrain-plain", loader="import sys; sys.stdin.read()"))
    assert job_in(client, job_id, FINAL).state is JobState.COMPLETED
    assert (site.folder / f"slurm-{job_id}.out").exists()


def test_jobs_with_hostile_names_and_comments_are_no_jobs_of_ours(site: LoginNode) -> None:
    client = site.client()
    fake = "999999/x/RUNNING/x/None\n12345:6/dtrain-evil\n|%A|\x1b[2J"
    options = ("--begin=now+1hour", f"--comment={fake}", f"--job-name={fake}")
    job_id = int(site.cluster.submit("#!/bin/sh\nsleep 1\n", *options))
    assert not {"dtrain-evil", fake} & {job.name for job in client.poll("dtrain-")}
    assert client.find(["dtrain-evil"]) == {}
    (job,) = [job for job in client.poll("") if job.job_id == job_id]
    assert job.name == fake
    shown = client.job(job_id)
    assert shown is not None
    assert (shown.name, shown.state) == (fake, JobState.PENDING)


def test_jobs_of_another_account_with_our_name_are_not_ours(site: LoginNode) -> None:
    site.cluster.submit("#!/bin/sh\nsleep 60\n", "--job-name=dtrain-theirs", "--time=1", user="daemon")
    try:
        assert site.client().find(["dtrain-theirs"]) == {}
    finally:
        site.cluster.run("scancel", "-u", "daemon")


def test_the_login_may_print_banners_read_the_input_and_filter_the_queue(site: LoginNode) -> None:
    site.profile(
        "echo Welcome\nprintf 'no newline'\ncat\nexport SQUEUE_STATES=RUNNING SQUEUE_FORMAT=%i SQUEUE_USERS=daemon"
    )
    client = site.client()
    job_id = submitted(client, site.request("dtrain-banner", stdin="secret"))
    assert [job.job_id for job in client.poll("dtrain-banner")] == [job_id]
    assert client.config().cluster == "testbed"


def test_each_request_to_the_controller_is_counted(site: LoginNode) -> None:
    client = site.client()

    def counted(call: Callable[[], object]) -> tuple[int, int]:
        before, own = requests(site.cluster), client.controller_requests
        call()
        return requests(site.cluster) - before, client.controller_requests - own

    held = replace(client.options, sbatch_options=("--begin=now+1hour",))
    client.options = held
    counts = {"submit": counted(lambda: client.submit(site.request("dtrain-count")))}
    (job,) = client.poll("dtrain-count")
    counts["poll"] = counted(lambda: client.poll("dtrain-"))
    counts["find"] = counted(lambda: client.find(["dtrain-count"]))
    counts["job"] = counted(lambda: client.job(job.job_id))
    counts["starts"] = counted(lambda: client.expected_starts([job.job_id]))
    counts["partitions"] = counted(client.partitions)
    counts["config"] = counted(client.config)
    counts["addresses"] = counted(lambda: client.node_addresses(["n1", "n3"]))
    counts["programs"] = counted(client.programs)
    counts["version"] = counted(client.version)
    counts["cancel"] = counted(lambda: client.cancel([job.job_id]))
    assert {name: real for name, (real, _) in counts.items()} == {name: own for name, (_, own) in counts.items()}
    assert counts["submit"] == (1, 1)


def requests(cluster: SlurmCluster) -> int:
    """Return the requests of users that the controller has counted, without those for its counters."""
    text = cluster.run("sdiag").stdout.partition("by message type")[2].partition("by user")[0]
    own = r"^\s+(?:REQUEST_(?!STATS|COMPLETE|STEP|HET)\w+)\s.*count:(\d+)"
    return sum(int(count) for count in re.findall(own, text, re.MULTILINE))


def test_a_cluster_is_described(site: LoginNode) -> None:
    client = site.client()
    (partition,) = client.partitions()
    assert (partition.name, partition.is_default, partition.state) == ("main", True, "UP")
    assert partition.max_time_s == 86400
    assert partition.sizes(client.options) == {2: 4}
    assert [node.name for node in partition.nodes] == ["n1", "n2", "n3", "n4"]
    assert all(node.is_usable and node.gres == (("gpu", "", 2),) for node in partition.nodes)
    config = client.config()
    assert config.version == client.version()
    assert (config.proctrack, config.has_accounting) == ("proctrack/linuxproc", False)
    assert not config.contains_processes
    shown = site.cluster.run("scontrol", "show", "node", "n1,n2").stdout
    addresses = re.findall(r"NodeAddr=(\S+)", shown)
    assert client.node_addresses(["n1", "n2"]) == dict(zip(["n1", "n2"], addresses, strict=True))
    assert client.node_addresses([]) == {}
    programs = client.programs()
    assert all(programs[name] for name in ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"))


def test_a_drained_node_is_not_usable(site: LoginNode) -> None:
    site.cluster.update_node("n4", "DRAIN")
    try:
        (partition,) = site.client().partitions()
        assert {node.name: node.is_usable for node in partition.nodes} == {
            "n1": True,
            "n2": True,
            "n3": True,
            "n4": False,
        }
        assert partition.nodes[3].reason == "by hand"
    finally:
        site.cluster.update_node("n4", "RESUME")


def test_slurm_expects_the_start_of_a_waiting_job(site: LoginNode) -> None:
    client = site.client(sbatch_options=["--exclusive"])
    for number in range(2):
        submitted(client, site.request(f"dtrain-start-{number}", nodes=4))
    second = client.find(["dtrain-start-1"])["dtrain-start-1"][0].job_id
    wait_until(lambda: client.expected_starts([second]), timeout_s=60, what="an expected start", poll_s=0.5)
    assert 500 < client.expected_starts([second])[second] - time.time() < 700
    assert client.expected_starts([]) == {}
    assert client.expected_starts([second + 1000]) == {}


@pytest.mark.parametrize("text", ["n1", "n[1-3]", "n[08-12]", "n[1-3,7,9-10],login", "r[1-2]n[01-03]", "n1,m1,n2"])
def test_lists_of_hosts_mean_what_slurm_means(site: LoginNode, text: str) -> None:
    names = expand(text)
    assert names == site.cluster.run("scontrol", "show", "hostnames", text).stdout.split()
    assert set(site.cluster.run("scontrol", "show", "hostnames", compress(names)).stdout.split()) == set(names)


def test_changes_by_hand_are_noticed(site: LoginNode) -> None:
    client, control = site.client(), site.cluster.run
    job_id = submitted(client, site.request("dtrain-hand"))
    running = job_in(client, job_id, RUNNING)
    # A step that is suspended while it starts is stuck for minutes.
    wait_until((site.folder / f"rank-{job_id}-0").exists, timeout_s=20, what="the rank", poll_s=0.1)
    control("scontrol", "update", f"jobid={job_id}", "timelimit=20")
    control("scontrol", "suspend", str(job_id))
    (suspended,) = client.poll("dtrain-hand")
    assert [change.kind for change in changes_of(running, suspended)] == [ChangeKind.SUSPENDED, ChangeKind.UPDATED]
    control("scontrol", "resume", str(job_id))
    (resumed,) = client.poll("dtrain-hand")
    assert [change.kind for change in changes_of(suspended, resumed)] == [ChangeKind.RESUMED]
    waiting_id = submitted(client, site.request("dtrain-hand"))
    waiting = client.find(["dtrain-hand"])["dtrain-hand"][1]
    control("scontrol", "hold", str(waiting_id))
    held = client.find(["dtrain-hand"])["dtrain-hand"][1]
    assert [change.kind for change in changes_of(waiting, held)] == [ChangeKind.HELD]
    refused = control("scontrol", "requeue", str(job_id), check=False)
    assert refused.returncode, "a job that was submitted with --no-requeue is not put back"


def test_a_node_that_fails_ends_the_job_with_its_kind(site: LoginNode) -> None:
    client = site.client()
    job_id = submitted(client, site.request("dtrain-node", nodes=2, slots=2))
    job = job_in(client, job_id, RUNNING)
    try:
        site.cluster.update_node(job.nodes[1], "DOWN")
        ended = job_in(client, job_id, FINAL)
    finally:
        site.cluster.update_node(job.nodes[1], "RESUME")
    assert end_of(ended).kind is EndKind.NODE_FAIL  # type: ignore[union-attr]
    assert ended.nodes == job.nodes
    assert ended.failed_node in ("", job.nodes[1])
    assert ended.failed_node or (client.version() or (0,)) < (24,)


@pytest.mark.nightly
def test_a_controller_that_is_away_says_nothing_about_jobs(site: LoginNode) -> None:
    client = site.client()
    job_id = submitted(client, site.request("dtrain-away"))
    job_in(client, job_id, RUNNING)
    site.cluster.stop_controller()
    try:
        with pytest.raises(SlurmUnavailableError, match="connect failure"):
            client.poll("dtrain-")
        answer = client.submit(site.request("dtrain-away-2"))
        assert isinstance(answer, Refused)
        assert answer.kind is FailureKind.AWAY
        with pytest.raises(SlurmUnavailableError):
            client.job(job_id)
    finally:
        site.cluster.start_controller()
    assert job_in(client, job_id, RUNNING).state is JobState.RUNNING
    assert client.find(["dtrain-away-2"]) == {}


@pytest.mark.nightly
def test_a_controller_that_hangs_may_have_accepted_the_job(site: LoginNode) -> None:
    client = site.client()
    pid = site.cluster.controller.daemon("slurmctld")
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        answer = client.submit(site.request("dtrain-hang"))
    finally:
        os.kill(pid, signal.SIGCONT)
        # The nsenter above it stops as well, and would not wait for its end.
        os.kill(parent_of(pid), signal.SIGCONT)
    assert isinstance(answer, Ambiguous), answer
    wait_until(lambda: client.find(["dtrain-hang"]), timeout_s=30, what="the accepted job", poll_s=0.2)


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("cat >/dev/null; echo 'sbatch: error: Batch job submission failed: Unexpected message received' >&2; exit 1",
         "Unexpected message received"),
        ("cat >/dev/null; echo your quota is exceeded", "your quota is exceeded"),
        ("cat >/dev/null; echo 12; exit 1", "12"),
        ("cat >/dev/null; echo 12x34", "12x34"),
        ("cat >/dev/null; echo ١٢", "printed ١٢"),
        ("yes | head -c 20000000", "more than"),
        ("printf 12; sleep 600", "deadline"),
        ("trap '' TERM; printf 12; sleep 600 & wait; wait", "deadline"),
        ("exit 1", "no message"),
    ],
    ids=["busy", "text", "number-and-error", "half-number", "digits", "megabytes", "hangs", "ignores-term", "silent"],
)  # fmt: skip
def test_an_answer_that_is_not_clear_is_ambiguous(site: LoginNode, script: str, message: str) -> None:
    site.fake("sbatch", script)
    answer = site.client(timeout_s=1).submit(site.request("dtrain-fake"))
    assert isinstance(answer, Ambiguous), answer
    assert message in answer.message


def test_a_submission_that_was_cut_off_does_not_arrive_later(site: LoginNode) -> None:
    site.fake("sbatch", f"echo $$ >{site.folder}/pid; sleep 600")
    assert isinstance(site.client(timeout_s=1).submit(site.request("dtrain-late")), Ambiguous)
    assert not Path("/proc", (site.folder / "pid").read_text().strip()).exists()


@pytest.mark.parametrize(
    ("profile", "error", "message"),
    [
        ("echo 'Your password has expired' >&2; exit 1", HostAuthError, "has expired"),
        ("echo 'This account is currently not available.'; exit 1", HostProtocolError, "not available"),
        ("exec yes", HostProtocolError, "more than"),
        ("printf 'half a li'; exec sleep 600", HostUnreachableError, "had not ended after 3 s"),
    ],
    ids=["expired", "closed", "flood", "hangs"],
)
def test_a_login_that_does_not_run_commands_is_a_clear_error(
    site: LoginNode, profile: str, error: type[Exception], message: str
) -> None:
    site.profile(profile)
    shell = LoginShell(LocalTransport("login", home=site.folder), margin_s=2)
    with pytest.raises(error, match=message):
        shell.run(["true"], timeout_s=1)


def test_a_login_node_without_bash_is_a_clear_error(site: LoginNode) -> None:
    (site.folder / "bin").mkdir()
    (site.folder / "bin/sh").symlink_to("/bin/sh")
    shell = LoginShell(LocalTransport("login", home=site.folder, env={"PATH": f"{site.folder}/bin"}))
    with pytest.raises(EnvironmentMissingError, match="needs sh, bash and timeout"):
        shell.run(["true"], timeout_s=1)


@pytest.mark.parametrize("text", ["garbage", "%mark1/2", ""])
def test_a_queue_that_is_not_slurms_is_a_clear_error(site: LoginNode, text: str) -> None:
    format_of = "for last; do :; done; mark=${last%%:*}; cat /dev/null"
    site.fake("squeue", f'{format_of}; echo {shlex.quote(text)} | sed "s/%mark/$mark:/"')
    if text == "%mark1/2":
        with pytest.raises(HostProtocolError, match="fields"):
            site.client().poll("")
    else:
        assert site.client().poll("") == []


def test_a_pool_without_slurm_is_a_clear_error(site: LoginNode) -> None:
    site.profile(
        f"mkdir -p {site.folder}/few; for p in env id timeout printf sh; do "
        f"ln -sf $(command -v $p) {site.folder}/few/; done; PATH={site.folder}/few"
    )
    client = site.client()
    assert set(client.programs().values()) == {None}
    with pytest.raises(EnvironmentMissingError, match="squeue"):
        client.poll("")
    answer = client.submit(site.request("dtrain-none"))
    assert isinstance(answer, Refused)
    assert answer.kind is FailureKind.MISSING
