"""States, ends, changes and pending reasons of Slurm jobs, and refusals of Slurm's commands."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from airflow_provider_dtrain.core.slurm.cluster import SlurmJob
from airflow_provider_dtrain.core.slurm.job_ends import (
    ORPHANED,
    ChangeKind,
    EndKind,
    NextStep,
    changes_of,
    end_of,
    setup_report,
)
from airflow_provider_dtrain.core.slurm.job_states import FINAL, RUNNING, WAITING, JobState, job_state
from airflow_provider_dtrain.core.slurm.reasons import Outlook, slurm_reason
from airflow_provider_dtrain.core.slurm.refusals import FailureKind, command_failure
from airflow_provider_dtrain.supervisor.serve import node

JOB = SlurmJob(job_id=7, name="dtrain-a", state=JobState.RUNNING, reason="None", partition="main", time_limit_s=60)


def test_each_state_has_a_sentence_and_at_most_one_phase() -> None:
    for state in JobState:
        assert state.sentence.endswith(".")
        assert sum(state in phase for phase in (WAITING, RUNNING, FINAL)) == (
            state not in (JobState.COMPLETING, JobState.UNKNOWN)
        )


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CG", JobState.COMPLETING), ("CANCELLED by 1000", JobState.CANCELLED), ("NODE_FAIL", JobState.NODE_FAIL),
        ("COMPLETED,COMPLETING", JobState.COMPLETING), ("TIMEOUT+", JobState.TIMEOUT), ("", JobState.UNKNOWN),
        ("NEW_STATE", JobState.UNKNOWN), ("PR", JobState.PREEMPTED),
    ],
)  # fmt: skip
def test_texts_of_states_are_read(text: str, state: JobState) -> None:
    assert job_state(text) is state


@pytest.mark.parametrize("state", sorted(set(JobState) - FINAL))
def test_a_job_that_has_not_ended_has_no_end(state: JobState) -> None:
    assert end_of(replace(JOB, state=state)) is None


@pytest.mark.parametrize(
    ("state", "kind", "step"),
    [
        (JobState.COMPLETED, EndKind.COMPLETED, NextStep.NONE),
        (JobState.FAILED, EndKind.FAILED, NextStep.RESTART),
        (JobState.TIMEOUT, EndKind.TIMEOUT, NextStep.RESUME),
        (JobState.PREEMPTED, EndKind.PREEMPTED, NextStep.RESUME),
        (JobState.NODE_FAIL, EndKind.NODE_FAIL, NextStep.RESUME_ELSEWHERE),
        (JobState.OUT_OF_MEMORY, EndKind.OUT_OF_MEMORY, NextStep.RESTART),
        (JobState.CANCELLED, EndKind.CANCELLED, NextStep.KILL),
        (JobState.BOOT_FAIL, EndKind.BOOT_FAIL, NextStep.RESUME_ELSEWHERE),
        (JobState.LAUNCH_FAILED, EndKind.BOOT_FAIL, NextStep.RESUME_ELSEWHERE),
        (JobState.RECONFIG_FAIL, EndKind.BOOT_FAIL, NextStep.RESUME_ELSEWHERE),
        (JobState.DEADLINE, EndKind.DEADLINE, NextStep.KILL),
        (JobState.REVOKED, EndKind.REVOKED, NextStep.RESUME),
    ],
)
def test_each_final_state_has_its_kind_and_next_step(state: JobState, kind: EndKind, step: NextStep) -> None:
    end = end_of(replace(JOB, state=state))
    assert end is not None
    assert (end.kind, end.next_step) == (kind, step)
    assert end.message.startswith("Slurm job 7 ")
    assert end.message.endswith(".")


def test_ends_depend_on_reason_signal_and_account() -> None:
    failed = replace(JOB, state=JobState.FAILED, exit_code=3)
    for changes, kind, next_step, words in (
        ({}, EndKind.FAILED, NextStep.RESTART, "exit code 3"),
        ({"signal": 9}, EndKind.INTERRUPTED, NextStep.RESTART, "signal 9 ended its script"),
        ({"reason": "JobLaunchFailure"}, EndKind.BOOT_FAIL, NextStep.RESUME_ELSEWHERE, "could not be started"),
        ({"reason": "JobLaunchFailure", "signal": 10}, EndKind.INTERRUPTED, NextStep.RESTART, "signal 10"),
        ({"reason": "NodeDown"}, EndKind.NODE_FAIL, NextStep.RESUME_ELSEWHERE, "failed with its nodes"),
        ({"comment": comment("srun", 137, b"")}, EndKind.INTERRUPTED, NextStep.RESTART, "signal 9 ended the srun"),
        (
            {"comment": comment("srun", 1, AWAY)},
            EndKind.INTERRUPTED,
            NextStep.RESUME,
            "controller did not answer",
        ),
        ({"comment": comment("srun", 1, AWAY[6:])}, EndKind.FAILED, NextStep.RESTART, "exit code 1"),
        ({"comment": comment("srun", 1, REFUSED)}, EndKind.FAILED, NextStep.RESTART, "Requested node configuration"),
        ({"comment": comment("setup", 137, b"")}, EndKind.FAILED, NextStep.RESTART, "exit code 137"),
    ):
        end = end_of(replace(failed, **changes))
        assert end is not None
        assert (end.kind, end.next_step) == (kind, next_step)
        assert words in end.message
    cancelled = replace(JOB, state=JobState.CANCELLED, cancelled_by=1000)
    assert "uid 1000" in end_of(cancelled).message  # type: ignore[union-attr]
    assert end_of(replace(cancelled, reason="InactiveLimit")).next_step is NextStep.RESUME  # type: ignore[union-attr]


def test_a_refused_submission_is_no_job_that_ran() -> None:
    refused = replace(JOB, state=JobState.FAILED, reason="BadConstraints")
    assert end_of(refused).next_step is NextStep.FAIL  # type: ignore[union-attr]
    assert refused.was_refused
    assert not replace(refused, nodes=("n1",)).was_refused
    assert not replace(refused, reason="NonZeroExitCode").was_refused


#: Of Slurm 22.05, when its controller was stopped as srun began.
AWAY = b"srun: error: Unable to confirm allocation for job 7: Socket timed out on send/recv operation"
REFUSED = b"srun: error: Unable to create step for job 7: Requested node configuration is not available"


def comment(phase: str, code: int, text: bytes) -> str:
    return f"dtrain-{phase}:{code}:{base64.b64encode(text).decode()}"


def test_a_failed_script_reports_its_last_lines() -> None:
    job = replace(JOB, state=JobState.FAILED, exit_code=5, comment=comment("setup", 5, b"no module\x1b[2J cuda\n"))
    end = end_of(job)
    assert end is not None
    assert end.report is not None
    assert (end.report.phase, end.report.exit_code) == ("setup", 5)
    text = "no module\\x1b[2J cuda"
    assert (
        end.message
        == f"Slurm job 7: The setup lines of the pool failed with exit code 5: no module\\x1b[2J cuda\n{text}"
    )
    srun = end_of(replace(job, comment=comment("srun", 2, b"execve(): python3: No such file")))
    assert srun is not None
    assert "srun failed with exit code 2: execve(): python3" in srun.message


@pytest.mark.parametrize("text", ["", "hello", "dtrain-setup:1", "dtrain-x:1:YQ==", "dtrain-setup:-1:YQ==", "a\nb"])
def test_a_comment_of_users_is_no_report(text: str) -> None:
    assert setup_report(text) is None


def test_a_job_that_airflow_left_alone_is_no_failure() -> None:
    text = base64.b64encode(b"dtrain, node 0 of job 7: no follower for 900 s").decode()
    job = replace(JOB, state=JobState.FAILED, exit_code=3, comment=f"dtrain-srun:{ORPHANED}:{text}")
    end = end_of(job)
    assert end is not None
    assert (end.kind, end.next_step) == (EndKind.COMPLETED, NextStep.RESUME)
    assert "no process of Airflow" in end.message
    assert ORPHANED == node.ORPHANED
    setup = end_of(replace(job, comment=f"dtrain-setup:{ORPHANED}:{text}"))
    assert setup is not None
    assert setup.kind == EndKind.FAILED


def test_a_broken_report_still_has_its_exit_code() -> None:
    report = setup_report("dtrain-srun:1:abc")
    assert report is not None
    assert (report.exit_code, report.text) == (1, "")


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        ({}, {}, []),
        ({}, {"state": JobState.PENDING}, [ChangeKind.REQUEUED]),
        ({"restarts": 0}, {"restarts": 1}, [ChangeKind.REQUEUED]),
        ({"state": JobState.PENDING, "reason": "Priority"}, {"state": JobState.PENDING, "reason": "Resources"}, []),
        (
            {"state": JobState.PENDING, "reason": "Priority"},
            {"state": JobState.PENDING, "reason": "JobHeldAdmin"},
            [ChangeKind.HELD],
        ),
        (
            {"state": JobState.PENDING, "reason": "JobHeldUser"},
            {"state": JobState.PENDING, "reason": "Resources"},
            [ChangeKind.RELEASED],
        ),
        ({}, {"state": JobState.SUSPENDED}, [ChangeKind.SUSPENDED]),
        ({"state": JobState.SUSPENDED}, {}, [ChangeKind.RESUMED]),
        ({}, {"time_limit_s": 120}, [ChangeKind.UPDATED]),
        ({}, {"time_limit_s": None}, []),
        (
            {"state": JobState.PENDING},
            {"state": JobState.PENDING, "partition": "x"},
            [ChangeKind.UPDATED],
        ),
        ({}, {"state": JobState.COMPLETED}, []),
    ],
)
def test_changes_by_hand_are_noticed(before: dict, now: dict, kinds: list[ChangeKind]) -> None:  # type: ignore[type-arg]
    found = changes_of(replace(JOB, **before), replace(JOB, **now))
    assert [change.kind for change in found] == kinds
    assert all("job 7" in change.message for change in found)


@pytest.mark.parametrize(
    ("text", "outlook"),
    [
        ("Resources", Outlook.WAIT), ("(Priority)", Outlook.WAIT), ("PartitionTimeLimit", Outlook.NEVER),
        ("JobHeldUser", Outlook.BY_HAND), ("QOSMaxJobsPerUserLimit", Outlook.WAIT), ("AssocGrpGRES", Outlook.WAIT),
        ("QOSMaxGRESPerJob", Outlook.NEVER), ("QOSMinGRES", Outlook.NEVER), ("MaxGRESPerAccount", Outlook.WAIT),
        ("AssocGrpCPURunMinutesLimit", Outlook.WAIT), ("QOSMaxWallDurationPerJobLimit", Outlook.NEVER),
        ("AssocMaxSubmitJobLimit", Outlook.WAIT), ("", Outlook.WAIT),
    ],
)  # fmt: skip
def test_a_reason_has_an_outlook(text: str, outlook: Outlook) -> None:
    reason = slurm_reason(text)
    assert reason.outlook is outlook
    assert reason.sentence.endswith((".", ")"))


def test_a_reason_names_its_nodes() -> None:
    reason = slurm_reason("ReqNodeNotAvail, UnavailableNodes:n[1-2],m3")
    assert (reason.code, reason.nodes) == ("ReqNodeNotAvail", "n[1-2],m3")
    assert "Not available: n[1-2],m3." in reason.sentence
    down = slurm_reason("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions")
    assert (down.code, down.outlook) == ("NodesUnavailable", Outlook.WAIT)


def test_an_unknown_reason_stays_as_it_is() -> None:
    assert slurm_reason("QuantumFlux, x").sentence == "QuantumFlux, x"
    assert "\x1b" not in slurm_reason("a\x1b[2Jb\nc").sentence
    assert len(slurm_reason("x" * 10_000).sentence) <= 500


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("Batch job submission failed: Invalid partition name specified", FailureKind.NEVER),
        ("Invalid --time specification", FailureKind.NEVER),
        ("Batch job submission failed: Unspecified error", FailureKind.NEVER),
        ("Batch job submission failed: Unexpected message received", FailureKind.AMBIGUOUS),
        ("Batch job submission failed: Socket timed out on send/recv operation", FailureKind.AMBIGUOUS),
        ("Unable to contact slurm controller (connect failure)", FailureKind.AWAY),
        ("error: Unable to contact slurm controller (connect failure)\nerror: Socket timed out on send/recv operation",
         FailureKind.AMBIGUOUS),
        ("Slurm temporarily unable to accept job, sleeping and retrying", FailureKind.AMBIGUOUS),
        ("AssocMaxSubmitJobLimit\nBatch job submission failed: Job violates accounting/QOS policy", FailureKind.LIMIT),
        ("QOSMaxGRESPerJob\nBatch job submission failed: Job violates accounting/QOS policy", FailureKind.NEVER),
        ("Batch job submission failed: Required partition not available (inactive or drain)", FailureKind.NOT_NOW),
        ("slurm RPC rate limit exceeded, sleeping", FailureKind.RATE_LIMITED),
        ("RPC rate limit exceeded\nUnexpected message received", FailureKind.AMBIGUOUS),
        ("Your Kerberos ticket has expired", FailureKind.LOGIN),
        ("something else", FailureKind.UNKNOWN),
        ("", FailureKind.UNKNOWN),
    ],
)  # fmt: skip
def test_a_failure_has_a_kind(stderr: str, kind: FailureKind) -> None:
    lines = "\n".join(f"sbatch: error: {line}" if kind != FailureKind.UNKNOWN else line for line in stderr.split("\n"))
    assert command_failure(1, lines).kind is kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (124, FailureKind.AMBIGUOUS),
        (137, FailureKind.AMBIGUOUS),
        (-9, FailureKind.AMBIGUOUS),
        (127, FailureKind.MISSING),
    ],
)
def test_an_exit_code_of_the_deadline_says_nothing_about_the_job(code: int, kind: FailureKind) -> None:
    assert command_failure(code, "sbatch: error: Batch job submission failed: Invalid account").kind is kind


def test_the_message_is_one_line_without_prefixes() -> None:
    text = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Not \x1b[1mnow\n"
    assert command_failure(1, text).message == "AssocMaxSubmitJobLimit. Not \\x1b[1mnow."
