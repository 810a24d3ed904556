"""Rows and records in the output of Slurm's commands, also of a hostile or broken peer."""

from __future__ import annotations

import pytest

from airflow_provider_dtrain.core.slurm.job_states import JobState
from airflow_provider_dtrain.core.slurm.refusals import FailureKind
from airflow_provider_dtrain.hosts.slurm import answers
from airflow_provider_dtrain.hosts.slurm.client import Ambiguous, Refused, Submission, Submitted, submission_of
from airflow_provider_dtrain.hosts.slurm.login_shell import CommandOutput


def test_hostile_fields_make_no_rows() -> None:
    table = answers.Table(("%A", "%j"))
    form = table.format
    evil = "x\n1:2/3\n%A"
    output = form.replace("%A", "7").replace("%j", evil) + "\n" + form.replace("%A", "8").replace("%j", "ok") + "\n"
    assert list(table.rows(f"CLUSTER: c\n{output}")) == [["7", evil], ["8", "ok"]]
    assert answers.Table(("%A",)).format != answers.Table(("%A",)).format
    with pytest.raises(ValueError, match="1 fields, expected 2"):
        list(table.rows(form.partition("/")[0] + "\n"))


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("gpu:a100:4(S:0-1),nvme:1", (("gpu", "a100", 4), ("nvme", "", 1))),
        ("gpu:8(IDX:0,2-7)", (("gpu", "", 8),)), ("(null)", ()), ("", ()),
        ("bandwidth:lustre:4G", (("bandwidth", "lustre", 4 << 30),)),
        ("gpu", ()),
    ],
)  # fmt: skip
def test_generic_resources_are_read(text: str, gres: tuple[tuple[str, str, int], ...]) -> None:
    assert answers.gres_of(text) == gres


def test_nodes_are_read_with_their_marks() -> None:
    name, nodes = answers.nodes_of(["main", "down*", "64+", "1000", "gpu:2", "n[1-2]", "broken fan\x1b[2J"])
    assert (name, [node.name for node in nodes]) == ("main", ["n1", "n2"])
    assert (nodes[0].state, nodes[0].is_silent, nodes[0].is_usable, nodes[0].cpus) == ("DOWN", True, False, 64)
    assert "\x1b" not in nodes[0].reason
    assert answers.nodes_of(["main", "idle~", "1", "1", "(null)", "n1", "none"])[1][0].is_usable


def test_a_job_of_the_accounting_is_read() -> None:
    row = ["12", "CANCELLED by 1000", "0:15", "None", "1795792563", "1795792563", "1795792595", "1795792600"] + (
        ["n[1-2]", "main", "60", "dtrain-a"]
    )
    job = answers.accounted_job(row)
    assert (job.job_id, job.name, job.state, job.cancelled_by) == (12, "dtrain-a", JobState.CANCELLED, 1000)
    assert (job.nodes, job.signal, job.time_limit_s) == (("n1", "n2"), 15, 3600)
    assert answers.accounted_job([*row[:6], "None", "Unknown", "None assigned", *row[9:]]).started_s is None


@pytest.mark.parametrize("output", ["", "garbage", "JobId=1", "JobId=x JobName=a UserId=root(0)"])
def test_an_answer_without_a_job_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="no job"):
        answers.shown_job(output)


def test_the_name_and_the_comment_of_a_job_stand_for_no_field() -> None:
    output = (
        "JobId=3 JobName=a\n JobState=COMPLETED UserId=root(0) JobState=RUNNING Reason=None ExitCode=0:0 "
        "TimeLimit=01:00:00 NodeList=n1 BatchHost=n1 Restarts=0 Comment=JobState=FAILED x  StdErr=/dev/null"
    )
    job = answers.shown_job(output)
    assert (job.state, job.name, job.comment) == (JobState.RUNNING, "a\n JobState=COMPLETED", "JobState=FAILED x")


@pytest.mark.parametrize("text", ["Unknown", "N/A", "", "2026-11-27T15:00:00", "0", "9" * 30])
def test_a_time_that_is_not_known_is_none(text: str) -> None:
    assert answers.epoch_s(text) is None


def test_a_configuration_is_read() -> None:
    lines = ("ClusterName = c", "SLURM_VERSION = 23.11.4", "ProctrackType = proctrack/cgroup", "KillWait = 30 sec") + (
        ("MinJobAge = 300 sec", "PriorityFlags = ACCRUE_ALWAYS,FAIR_TREE", "PreemptMode = GANG,SUSPEND")
        + ("AccountingStorageType = accounting_storage/slurmdbd", "PrivateData = none", "MaxJobCount = 10000")
    )
    config = answers.config_of("\n".join(lines))
    assert config.version == (23, 11, 4)
    assert config.contains_processes
    assert config.accrues_while_held
    assert config.has_accounting
    assert (config.kill_wait_s, config.min_job_age_s, config.max_job_count) == (30, 300, 10000)
    assert (config.preempt_mode, config.private_data) == (frozenset(["GANG", "SUSPEND"]), frozenset())
    with pytest.raises(ValueError, match="no configuration"):
        answers.config_of("ProctrackType = x")


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "expected"),
    [
        (0, "12\n", "", Submitted(job_id=12)),
        (0, "12;c2\n", "", Submitted(job_id=12, cluster="c2")),
        (0, "banner\nSubmitted batch job 12 on cluster c2\n", "", Submitted(job_id=12, cluster="c2")),
        (0, "12\n", "sbatch: Warning: slow\n", Submitted(job_id=12, warning="sbatch: Warning: slow")),
        (1, "", "sbatch: error: Batch job submission failed: Invalid qos specification",
         Refused(kind=FailureKind.NEVER, message="Invalid qos specification.")),
        (1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
         Refused(kind=FailureKind.AWAY, message="Unable to contact slurm controller (connect failure).")),
    ],
)  # fmt: skip
def test_the_answer_of_a_submission_is_read(code: int, stdout: str, stderr: str, expected: Submission) -> None:
    assert submission_of(CommandOutput(exit_code=code, stdout=stdout, stderr=stderr)) == expected


@pytest.mark.parametrize(
    ("code", "stdout", "stderr"),
    [(0, "", ""), (0, "12x", ""), (1, "12", "sbatch: error: Batch job submission failed: Invalid qos specification")]
    + [(1, "", ""), (124, "", "sbatch: error: Batch job submission failed: Invalid qos"), (0, "١٢", "")]
    + [(0, "99999999999999", "")],
)
def test_an_answer_that_is_not_clear_may_have_been_accepted(code: int, stdout: str, stderr: str) -> None:
    answer = submission_of(CommandOutput(exit_code=code, stdout=stdout, stderr=stderr))
    assert isinstance(answer, Ambiguous)
    assert answer.message
