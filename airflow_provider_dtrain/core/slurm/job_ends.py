"""Ends of a job, and changes of a job by hand: the kind of each, with the sentence and what follows."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.slurm.cluster import SlurmJob
from airflow_provider_dtrain.core.slurm.job_states import FINAL, RUNNING, WAITING, JobState
from airflow_provider_dtrain.core.slurm.quantities import slurm_time
from airflow_provider_dtrain.core.slurm.refusals import FailureKind, command_failure

#: Exit code of a supervisor that no follower has spoken to for too long; see ``supervisor/serve/node.py``.
ORPHANED: Final = 3
_HELD: Final = {"JobHeldUser": "its user", "JobHeldAdmin": "an administrator"}
#: Report of the job's script in the comment of the job: phase, exit code, last lines in base64.
_REPORT: Final = re.compile(r"dtrain-(setup|srun):(\d{1,3}):([A-Za-z0-9+/=]*)", re.ASCII)

#: Failures of srun that are the controller's.
_AWAY: Final = (FailureKind.AMBIGUOUS, FailureKind.AWAY, FailureKind.RATE_LIMITED)
#: A shell reports a program that a signal ended with this exit code plus the number of the signal.
SIGNALLED: Final = 128


class EndKind(StrEnum):
    """Kind of the end of a job."""

    COMPLETED = "completed"
    FAILED = "failed"
    #: A signal ended the script or its srun, or the controller did not answer the srun.
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"
    BOOT_FAIL = "boot_fail"
    DEADLINE = "deadline"
    REVOKED = "revoked"
    #: The controller refused the submission, and the job never ran.
    REFUSED = "refused"


class NextStep(StrEnum):
    """Step after the end of a job whose gang had not finished."""

    #: The gang had finished, or its own end decides.
    NONE = "none"
    #: Another job is submitted at once, and the trial resumes from its checkpoint. It counts as no failure.
    RESUME = "resume"
    #: As ``RESUME``, and the next job leaves out the nodes that failed.
    RESUME_ELSEWHERE = "resume_elsewhere"
    #: The trial starts again from its checkpoint, and ``max_restarts`` counts it.
    RESTART = "restart"
    #: The trial is killed.
    KILL = "kill"
    #: The task fails: another job would end in the same way.
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class SetupReport:
    """Report of the script of a job that failed before or while it ran the supervisor."""

    #: ``setup``: the setup lines failed; ``srun``: the step or the start of the supervisor failed.
    phase: str
    exit_code: int
    #: Last lines of standard error, control characters as escapes.
    text: str

    @property
    def sentence(self) -> str:
        """Fact and exit code, without the lines."""
        subject = "The setup lines of the pool" if self.phase == "setup" else "The start of the supervisors by srun"
        return f"{subject} failed with exit code {self.exit_code}."


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """End of a job."""

    kind: EndKind
    #: Sentences for the task log, with the number of the job.
    message: str
    next_step: NextStep
    report: SetupReport | None = None


def setup_report(comment: str) -> SetupReport | None:
    """Return the report in the comment of a job, None without one."""
    match = _REPORT.fullmatch(comment.strip())
    if match is None:
        return None
    try:
        text = base64.b64decode(match[3], validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        text = ""
    return SetupReport(phase=match[1], exit_code=int(match[2]), text=escaped(text.replace("\r", "\n")).strip())


_KINDS: Final[dict[JobState, tuple[EndKind, NextStep, str]]] = {
    JobState.COMPLETED: (EndKind.COMPLETED, NextStep.NONE, "ended with exit code 0."),
    JobState.FAILED: (EndKind.FAILED, NextStep.RESTART, "failed"),
    JobState.TIMEOUT: (
        EndKind.TIMEOUT,
        NextStep.RESUME,
        "reached its time limit. The next job resumes from the latest checkpoint.",
    ),
    JobState.PREEMPTED: (
        EndKind.PREEMPTED,
        NextStep.RESUME,
        "was preempted by Slurm for a more urgent job. The next job resumes from the latest checkpoint.",
    ),
    JobState.NODE_FAIL: (
        EndKind.NODE_FAIL,
        NextStep.RESUME_ELSEWHERE,
        "lost a node. The next job leaves the node out and resumes from the latest checkpoint.",
    ),
    JobState.OUT_OF_MEMORY: (
        EndKind.OUT_OF_MEMORY,
        NextStep.RESTART,
        "used more memory than it has. Raise --memory-per-slot or --memory-per-cpu of the pool, or use less memory.",
    ),
    JobState.CANCELLED: (EndKind.CANCELLED, NextStep.KILL, "was cancelled"),
    JobState.BOOT_FAIL: (
        EndKind.BOOT_FAIL,
        NextStep.RESUME_ELSEWHERE,
        "could not start, because a node did not boot. The next job leaves the node out.",
    ),
    JobState.LAUNCH_FAILED: (
        EndKind.BOOT_FAIL,
        NextStep.RESUME_ELSEWHERE,
        "could not be started on its nodes. The next job leaves them out.",
    ),
    JobState.RECONFIG_FAIL: (
        EndKind.BOOT_FAIL,
        NextStep.RESUME_ELSEWHERE,
        "could not start, because a node could not be configured. The next job leaves the node out.",
    ),
    JobState.DEADLINE: (
        EndKind.DEADLINE,
        NextStep.KILL,
        "was ended at its deadline. Remove --deadline from --sbatch-option of the pool, or start sooner.",
    ),
    JobState.REVOKED: (
        EndKind.REVOKED,
        NextStep.RESUME,
        "was revoked, because another cluster of the federation took it. The next job is submitted.",
    ),
}


def end_of(job: SlurmJob) -> JobEnd | None:
    """Return the end of a job, None while it has not ended on all of its nodes."""
    if job.state not in FINAL:
        return None
    if job.was_refused:
        message = f"Slurm job {job.job_id} was refused: no set of nodes satisfies its request (BadConstraints)."
        return JobEnd(kind=EndKind.REFUSED, message=message, next_step=NextStep.FAIL)
    kind, next_step, phrase = _KINDS[job.state]
    report = setup_report(job.comment)
    if job.state == JobState.FAILED:
        kind, next_step, phrase = _failure(job, report)
    elif job.state == JobState.CANCELLED:
        phrase, next_step = _cancellation(job, next_step)
    message = f"Slurm job {job.job_id} {phrase}"
    if report and kind == EndKind.FAILED and (report.phase, report.exit_code) == ("srun", ORPHANED):
        message = (
            f"Slurm job {job.job_id} ended itself, because no process of Airflow had spoken to it for too long. "
            "The next job resumes from the latest checkpoint."
        )
        return JobEnd(kind=EndKind.COMPLETED, message=message, next_step=NextStep.RESUME)
    if report and kind == EndKind.FAILED:
        # The first line is all that lists show of a failure.
        last = next((line for line in reversed(report.text.splitlines()) if line.strip()), "")
        first = f"{report.sentence.removesuffix('.')}: {last.strip()}" if last else report.sentence
        message = f"Slurm job {job.job_id}: {first}\n{report.text}".rstrip()
    return JobEnd(kind=kind, message=message, next_step=next_step, report=report)


def _failure(job: SlurmJob, report: SetupReport | None) -> tuple[EndKind, NextStep, str]:
    # Slurm 22.05 gives this reason also when a signal ended the script. Status 1 is printed as signal 1.
    if job.reason == "JobLaunchFailure" and job.signal <= 1:
        phrase = "could not be started on its nodes. The next job leaves them out."
        return EndKind.BOOT_FAIL, NextStep.RESUME_ELSEWHERE, phrase
    if job.reason in ("NodeDown", "SystemFailure"):
        phrase = f"failed with its nodes ({job.reason}). The next job leaves them out."
        return EndKind.NODE_FAIL, NextStep.RESUME_ELSEWHERE, phrase
    if report is None and job.signal:
        return EndKind.INTERRUPTED, NextStep.RESTART, f"failed: signal {job.signal} ended its script."
    if report is not None and report.phase == "srun" and report.exit_code > SIGNALLED:
        phrase = f"failed: signal {report.exit_code - SIGNALLED} ended the srun that started its supervisors."
        return EndKind.INTERRUPTED, NextStep.RESTART, phrase
    if report is not None and report.phase == "srun" and _controller_was_away(report):
        phrase = "ended, because the controller did not answer the srun that starts its supervisors."
        return EndKind.INTERRUPTED, NextStep.RESUME, phrase
    code = "an unknown exit code" if job.exit_code is None else f"exit code {job.exit_code}"
    return EndKind.FAILED, NextStep.RESTART, f"failed with {code}."


def _controller_was_away(report: SetupReport) -> bool:
    """Return whether srun failed for want of an answer. The report has lines of other programs as well."""
    own = "\n".join(line for line in report.text.splitlines() if line.startswith("srun: error: "))
    return command_failure(report.exit_code, own).kind in _AWAY


def _cancellation(job: SlurmJob, next_step: NextStep) -> tuple[str, NextStep]:
    if job.reason == "DependencyNeverSatisfied":
        return "was cancelled by Slurm, because its dependency can never be satisfied.", next_step
    if job.reason == "InactiveLimit":
        return "was cancelled by Slurm at its InactiveLimit. The next job resumes.", NextStep.RESUME
    if job.restarts:
        # slurmd does so with a job that it could not start, although the job has --no-requeue.
        return "was put back into the queue and ended there. The next job resumes from the latest checkpoint.", (
            NextStep.RESUME
        )
    by = "" if job.cancelled_by is None else f" by the account with uid {job.cancelled_by}"
    return f"was cancelled{by}.", next_step


class ChangeKind(StrEnum):
    """Kind of a change of a live job that another program or an administrator made."""

    REQUEUED = "requeued"
    HELD = "held"
    RELEASED = "released"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    UPDATED = "updated"


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """Change of a live job by hand."""

    kind: ChangeKind
    #: Sentences with what changed and what follows.
    message: str


_STOPPED: Final = frozenset([JobState.SUSPENDED, JobState.STOPPED])


def changes_of(before: SlurmJob, now: SlurmJob) -> list[JobChange]:
    """Return the changes of a job by hand between two answers of the controller."""
    found: list[JobChange] = []
    name = f"Slurm job {now.job_id}"

    def add(kind: ChangeKind, message: str) -> None:
        found.append(JobChange(kind=kind, message=f"{name} {message}"))

    if (before.state in RUNNING and now.state in WAITING) or (now.restarts or 0) > (before.restarts or 0):
        add(ChangeKind.REQUEUED, "was put back into the queue by hand. It is cancelled, and the next job resumes.")
    was_held, is_held = before.reason in _HELD, now.reason in _HELD
    if is_held and not was_held and now.state in WAITING:
        add(ChangeKind.HELD, f"is held by {_HELD[now.reason]}. Release it with: scontrol release {now.job_id}")
    if was_held and not is_held and before.state in WAITING:
        add(ChangeKind.RELEASED, "is not held now.")
    if now.state in _STOPPED and before.state not in _STOPPED:
        add(ChangeKind.SUSPENDED, "is suspended. Its ranks do not run, and its time limit does not count on.")
    if before.state in _STOPPED and now.state == JobState.RUNNING:
        add(ChangeKind.RESUMED, "runs again.")
    if before.time_limit_s != now.time_limit_s and None not in (before.time_limit_s, now.time_limit_s):
        old, new = slurm_time(before.time_limit_s or 0), slurm_time(now.time_limit_s or 0)
        add(ChangeKind.UPDATED, f"has another time limit: {new} instead of {old}.")
    if before.partition != now.partition and before.state in WAITING and now.state in WAITING:
        add(ChangeKind.UPDATED, f"has another partition: {now.partition} instead of {before.partition}.")
    return found
